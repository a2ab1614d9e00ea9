package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// bigLog is how much text a big log holds.
const bigLog = 200 << 20

// shape is what a big log is made of.
type shape struct {
	name   string
	prompt int // bytes of a prompt
	result int // bytes of a tool's result
}

func shapes() []shape {
	return []shape{
		{"small events", 250, 250},
		{"prompts of 64 KiB", 64 << 10, 16 << 10},
		{"results of 4 MiB", 1 << 10, 4 << 20},
	}
}

func bigWork(what string, s shape) string { return fmt.Sprintf("%s of 200 MiB, %s", what, s.name) }

const (
	bigVerify = "sessions verify ID"
	bigShow   = "sessions show ID"
	bigEvents = "sessions show ID --events --json"
	bigJSON   = "sessions show ID --json"
	bigExport = "sessions export ID"
	bigImport = "sessions import FILE"
	bigResume = "resume, heap beside the log"
)

func bigRows() []row {
	peak := []limit{{"MB peak", 64 << 20 / 1e6, 0}}
	var list []row
	for _, s := range shapes() {
		for _, what := range []string{bigVerify, bigShow, bigEvents, bigJSON, bigExport, bigImport} {
			list = append(list, row{bigWork(what, s), "big", peak})
		}
		list = append(list, row{bigWork(bigResume, s), "big", []limit{{"× log", 2.5, 0}}})
	}
	return list
}

// bigFixture is a database with one session of bigLog.
func (b *bench) bigFixture(ctx context.Context, s shape) (string, error) {
	return b.fixture(ctx, "big-"+strings.ReplaceAll(s.name, " ", "-"), func(reg *session.Registry) error {
		return storeSession(ctx, reg, session.New{ID: "big", Cwd: "/"}, func(log *session.Session) error {
			text := func(n int, turn int64) string {
				line := fmt.Sprintf("turn %d says <something> & \"more\"; ", turn)
				return strings.Repeat(line, n/len(line)+1)[:n]
			}
			size := 0
			for turn := int64(1); size < bigLog; turn++ {
				prompt := user(fmt.Sprint("m", turn), text(s.prompt, turn))
				drafts := turnEvents(turn)
				for i := range drafts {
					switch p := drafts[i].Payload.(type) {
					case *session.InboxSpliced:
						if len(p.Inserted) > 0 {
							p.Inserted = []message.Message{prompt}
						}
					case *session.UserMessage:
						p.Message = prompt
					case *session.ToolResult:
						p.Message.Content[0].Content[0].Text = text(s.result, turn)
					}
				}
				if _, err := log.Append(drafts...); err != nil {
					return err
				}
				if err := log.Flush(ctx); err != nil {
					return err
				}
				for e := range log.Events(log.Head() - int64(len(drafts))) {
					size += len(e.Data()) + 100
				}
			}
			return nil
		})
	})
}

// big measures what reads one long log: the peak of memory of whole processes, and
// the heap of a session that was resumed.
func big(ctx context.Context, b *bench) error {
	for _, s := range shapes() {
		dir, err := b.bigFixture(ctx, s)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, dbName)
		for what, args := range map[string][]string{
			bigVerify: {"verify", "big"}, bigShow: {"show", "big"}, bigEvents: {"show", "big", "--events", "--json"}, bigJSON: {"show", "big", "--json"},
			bigExport: {"export", "big"},
		} {
			if err := b.processes(ctx, bigWork(what, s), nil, append([]string{b.offshoot, "sessions"}, append(args, "--store", path)...)...); err != nil {
				return err
			}
		}
		if err := b.bigImported(ctx, s, path); err != nil {
			return err
		}
		one, err := bigResumed(ctx, s, path)
		if err != nil {
			return err
		}
		if err := b.out.Encode(one); err != nil {
			return err
		}
		if err := os.RemoveAll(dir); err != nil { // they are big
			return err
		}
	}
	return nil
}

// bigImported exports a big log and imports it again and again, each time into nothing.
func (b *bench) bigImported(ctx context.Context, s shape, path string) error {
	file := path + ".jsonl"
	if out, err := exec.CommandContext(ctx, b.offshoot, "sessions", "export", "big", "--store", path, "--out", file).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	store := filepath.Join(filepath.Dir(path), "imported", dbName)
	return b.processesOf(ctx, bigWork(bigImport, s), nil, func(int) ([]string, error) {
		return []string{b.offshoot, "sessions", "import", file, "--store", store}, os.RemoveAll(filepath.Dir(store))
	})
}

// bigResumed compares the heap that a resumed session holds with its log's bytes.
func bigResumed(ctx context.Context, s shape, path string) (_ sample, err error) {
	db, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		return sample{}, err
	}
	defer func() { err = errors.Join(err, db.Close(context.WithoutCancel(ctx))) }()
	reg, err := newSessions(ctx, db)
	if err != nil {
		return sample{}, err
	}
	before, _ := settled()
	began := time.Now()
	log, err := reg.PrepareStored(ctx, "big")
	if err == nil {
		err = log.Load(ctx)
	}
	if err != nil {
		return sample{}, err
	}
	took := time.Since(began)
	after, _ := settled()
	size := 0
	for e := range log.Events(0) {
		size += len(e.AppendEnvelope(nil)) + 1
	}
	held := after - before
	runtime.KeepAlive(log)
	return sample{
		Work: bigWork(bigResume, s), Wall: float64(took), Bytes: held,
		Values: map[string]float64{"× log": held / float64(size), "MB of log": float64(size) / 1e6},
	}, reg.Abandon(ctx, log)
}
