package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

const (
	children = 10_000
	rootID   = session.ID("root")

	workListOpen = "list 10,000 stored children, open store"
	workListNew  = "list 10,000 stored children, new process"
	workListTool = "offshoot sessions list --all --json of 10,000, new process"
	workVersion  = "offshoot version, the process alone"
	workFirst    = "offshoot run, first result from a local endpoint"
)

func pid() int { return os.Getpid() }

// settled returns the bytes in use and the goroutines, when the collector found
// nothing more to do.
func settled() (heap, goroutines float64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc), float64(runtime.NumGoroutine())
}

// childrenDB is a database with a root and 10,000 children that have run.
func (b *bench) childrenDB(ctx context.Context) (string, error) {
	return b.fixture(ctx, "children", func(reg *session.Registry) error {
		return storeSession(ctx, reg, session.New{ID: rootID}, func(root *session.Session) error {
			if err := fill(ctx, root, 1); err != nil {
				return err
			}
			const at = 64
			return atOnce(at, func(part int) error {
				for i := part; i < children; i += at {
					n := session.New{ID: session.ID(fmt.Sprintf("child-%05d", i)), ParentSession: rootID, Root: rootID, Origin: session.OriginSubagent, DelegationDepth: 1}
					if err := storeSession(ctx, reg, n, func(s *session.Session) error {
						label := fmt.Sprintf("look at part %d of the parser", i)
						d, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeOneShot, Provider: "spawn", Label: &label})
						if err != nil {
							return err
						}
						_, err = s.Append(append(turnEvents(1), drafts(d)...)...)
						return err
					}); err != nil {
						return err
					}
				}
				return nil
			})
		})
	})
}

func list(ctx context.Context, s session.Store) error {
	l, err := s.List(ctx, session.Filter{Parent: rootID}, session.Page{Limit: children})
	if err != nil {
		return err
	}
	if len(l.Records) != children {
		return fmt.Errorf("%d children are listed of %d", len(l.Records), children)
	}
	return nil
}

// listFile is the whole of a process that lists.
func listFile(ctx context.Context, path string) error {
	s, err := sqlite.OpenReadOnly(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	return errors.Join(list(ctx, s), s.Close(context.WithoutCancel(ctx)))
}

func listing(ctx context.Context, b *bench) (err error) {
	dir, err := b.childrenDB(ctx)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, dbName)
	db, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	err = b.measure(workListOpen, 1, func(*probe) error { return list(ctx, db) })
	if err := errors.Join(err, db.Close(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := b.processes(ctx, workListNew, nil, self, "-list", path); err != nil {
		return err
	}
	return b.processes(ctx, workListTool, nil, b.offshoot, "sessions", "list", "--all", "--json", "--store", path)
}

// processes measures whole processes, each from a process between that does nothing
// else: a new process inherits the peak of memory of the one that starts it.
func (b *bench) processes(ctx context.Context, work string, env []string, args ...string) error {
	return b.processesOf(ctx, work, env, func(int) ([]string, error) { return args, nil })
}

// processesOf is processes whose arguments are made for each of them.
func (b *bench) processesOf(ctx context.Context, work string, env []string, argsOf func(i int) ([]string, error)) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for i := range max(5, b.samples) + 1 {
		args, err := argsOf(i)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, self, append([]string{"-exec", work, "--"}, args...)...)
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "OFFSHOOT_HOME=" + filepath.Join(b.dir, "home")}, env...)
		cmd.Dir, cmd.Stderr = b.dir, os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s: %w", work, err)
		}
		var s sample
		if err := json.Unmarshal(out, &s); err != nil {
			return fmt.Errorf("%s: %w", work, err)
		}
		if i == 0 {
			continue // the first finds nothing in the caches
		}
		if err := b.out.Encode(s); err != nil {
			return err
		}
	}
	return nil
}

// process measures one process to its end, or to the first byte of its result.
func process(ctx context.Context, work string, args []string) (sample, error) {
	if len(args) == 0 {
		return sample{}, errors.New("flag -exec: no command is given")
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return sample{}, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return sample{}, err
	}
	n, readErr := io.ReadFull(out, make([]byte, 1))
	first := time.Since(began)
	rest, drainErr := io.Copy(io.Discard, out)
	if err := errors.Join(cmd.Wait(), drainErr); err != nil {
		return sample{}, fmt.Errorf("%s: %w: %s", work, err, &said)
	}
	s := sample{Work: work, Wall: float64(time.Since(began)), CPU: float64(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()), Values: map[string]float64{}}
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		s.Values["MB peak"] = peakBytes(u) / 1e6
	}
	switch {
	case work == workFirst && readErr != nil:
		return sample{}, fmt.Errorf("%s: no result: %s", work, &said)
	case work == workFirst:
		s.Values["ms to the end"] = s.Wall / 1e6
		s.Wall = float64(first)
	case work == workListTool && int64(n)+rest < 100*children:
		return sample{}, fmt.Errorf("%s: only %d bytes: %s", work, int64(n)+rest, &said)
	}
	return s, nil
}

// firstResult measures the command against an endpoint on this machine that answers
// at once.
func firstResult(ctx context.Context, b *bench) error {
	if err := b.processes(ctx, workVersion, nil, b.offshoot, "version"); err != nil {
		return err
	}
	const name = "fake-model"
	server, err := fakemodel.Open(fakemodel.Options{Models: []string{name}, Discard: true})
	if err != nil {
		return err
	}
	defer server.Close()
	work := filepath.Join(b.dir, "project")
	if err := os.MkdirAll(work, 0o700); err != nil {
		return err
	}
	env := []string{"OPENAI_BASE_URL=" + server.URL(), "OPENAI_API_KEY=sk-bench"}
	return b.processes(ctx, workFirst, env, b.offshoot, "run", "--quiet", "--cwd", work, "--model", "openai:"+name, "What is the answer?")
}
