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
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/sqlite"
	"github.com/offshoot-dev/offshoot/subagent"
)

const (
	children = 10_000
	rootID   = session.ID("root")

	workListLive  = "list 10,000 live children"
	workListBoth  = "list 10,000 live children that are stored, too"
	workListOpen  = "list 10,000 stored children, open store"
	workListStore = "  the store's own listing, without identities"
	workListNew   = "list 10,000 stored children, new process"
	workListTool  = "offshoot agents children --json of 10,000, new process"
	workListAll   = "offshoot sessions list --all --json of 10,000, new process"
	workVersion   = "offshoot version, the process alone"
	workFirst     = "offshoot run, first result from a local endpoint"
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
					if err := storeSession(ctx, reg, childOf(i), func(s *session.Session) error { return fillChild(s, i) }); err != nil {
						return err
					}
				}
				return nil
			})
		})
	})
}

func childOf(i int) session.New {
	return session.New{ID: session.ID(fmt.Sprintf("child-%05d", i)), ParentSession: rootID, Root: rootID, Origin: session.OriginSubagent, DelegationDepth: 1}
}

// fillChild is the whole log of a one-shot child.
func fillChild(s *session.Session, i int) error {
	label := fmt.Sprintf("look at part %d of the parser", i)
	d, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeOneShot, Provider: "spawn", Label: &label})
	if err != nil {
		return err
	}
	_, err = s.Append(append(turnEvents(1), drafts(d)...)...)
	return err
}

// list lists the root's children as the product does.
func list(ctx context.Context, l subagent.Lister) error {
	rows, err := l.ListChildren(ctx, rootID)
	if err != nil {
		return err
	}
	n := 0
	for i := range rows {
		if r := &rows[i]; r.Kind == subagent.RowChild && r.Label != nil && !r.HasChildren {
			n++
		}
	}
	if n != children {
		return fmt.Errorf("%d children are listed of %d", n, children)
	}
	return nil
}

// lister lists what is live in a registry and what its store holds.
func lister(ctx context.Context, store session.Store) (subagent.Lister, error) {
	units, err := projection.NewRegistry(projection.BuiltIn()...)
	if err != nil {
		return subagent.Lister{}, err
	}
	reg, err := session.NewRegistry(ctx, session.Config{Store: store, NewCells: units.NewCells})
	return subagent.Lister{Sessions: reg, Projections: units}, err
}

// listLive measures the listing of children that are live, without a store and on one
// that holds them too.
func listLive(ctx context.Context, b *bench) (err error) {
	store, err := sqlite.Open(ctx, filepath.Join(b.dir, fmt.Sprintf("live-%d", pid()), dbName), sqlite.Options{Synchronous: sqlite.Normal})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close(context.WithoutCancel(ctx))) }()
	for work, kind := range map[string]session.Store{workListLive: nil, workListBoth: store} {
		l, err := lister(ctx, kind)
		if err != nil {
			return err
		}
		const at = 64
		if err := atOnce(at, func(part int) error {
			for i := part; i < children; i += at {
				s, err := l.Sessions.Prepare(ctx, childOf(i))
				if err != nil {
					return err
				}
				if _, err := l.Sessions.Enter(s); err != nil { // live to the end of the process
					return err
				}
				if err := errors.Join(fillChild(s, i), s.Flush(ctx)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
		if err := b.measure(work, 1, func(*probe) error { return list(ctx, l) }); err != nil {
			return err
		}
	}
	return nil
}

// listFile is the whole of a process that lists.
func listFile(ctx context.Context, path string) error {
	s, err := sqlite.OpenReadOnly(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	l, err := lister(ctx, s)
	if err == nil {
		err = list(ctx, l)
	}
	return errors.Join(err, s.Close(context.WithoutCancel(ctx)))
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
	l, err := lister(ctx, db)
	if err == nil {
		err = b.measure(workListOpen, 1, func(*probe) error { return list(ctx, l) })
	}
	if err == nil {
		err = b.measure(workListStore, 1, func(*probe) error {
			_, err := db.List(ctx, session.Filter{Parent: rootID}, session.Page{Limit: children})
			return err
		})
	}
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
	if err := b.processes(ctx, workListTool, nil, b.offshoot, "agents", "children", string(rootID), "--json", "--store", path); err != nil {
		return err
	}
	return b.processes(ctx, workListAll, nil, b.offshoot, "sessions", "list", "--all", "--json", "--store", path)
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
	case (work == workListTool || work == workListAll) && int64(n)+rest < 100*children:
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
