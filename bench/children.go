package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/sqlite"
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent"
)

// storeKind is where the children of a row keep their logs.
type storeKind struct {
	name  string
	short string
	open  func(context.Context, *bench) (session.Store, error)
}

func liveOnly() storeKind {
	return storeKind{"in memory, live only", "live", func(context.Context, *bench) (session.Store, error) { return nil, nil }}
}

func inMemory() storeKind {
	return storeKind{"in memory, stored", "memory", func(context.Context, *bench) (session.Store, error) { return memory.New(), nil }}
}

func onSQLite() storeKind {
	return storeKind{"on SQLite", "sqlite", func(ctx context.Context, b *bench) (session.Store, error) { return b.newDB(ctx) }}
}

// newDB opens an empty database with full durability on a real file.
func (b *bench) newDB(ctx context.Context) (*sqlite.Store, error) {
	n := b.files.Add(1)
	return sqlite.Open(ctx, filepath.Join(b.dir, fmt.Sprintf("%s-%d-%d.db", b.group, pid(), n)), sqlite.Options{})
}

// oneShots measures one-shot children, so many at once, each from a goroutine of its own.
func oneShots(kind storeKind, counts ...int) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) error {
		for _, n := range counts {
			if err := oneShotsOf(ctx, b, kind, childWork(kind, n), n, func(r *rig, req subagent.Request) error {
				return atOnce(n, func(int) error { return r.oneShot(ctx, req) })
			}); err != nil {
				return err
			}
		}
		return nil
	}
}

// oneShotsInMemory is oneShots, and then measures as many that all live before the
// first of them is waited for.
func oneShotsInMemory(kind storeKind) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) error {
		if err := oneShots(kind, 1, 100, 1000)(ctx, b); err != nil {
			return err
		}
		for _, n := range []int{100, 1000} {
			if err := oneShotsOf(ctx, b, kind, aliveWork(kind, n), n, func(r *rig, req subagent.Request) error {
				return r.oneShotsAlive(ctx, n, req)
			}); err != nil {
				return err
			}
		}
		return nil
	}
}

func oneShotsOf(ctx context.Context, b *bench, kind storeKind, work string, n int, do func(*rig, subagent.Request) error) (err error) {
	store, err := kind.open(ctx, b)
	if err != nil {
		return err
	}
	r, err := newRig(ctx, store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	parent, err := r.newAgent(ctx)
	if err != nil {
		return err
	}
	req := request(parent)
	return b.measure(work, n, func(p *probe) error {
		before := syncs(store)
		err := do(r, req)
		p.count("syncs", syncs(store)-before)
		return err
	})
}

const workStructured = "one-shot child in memory, live only, answer as JSON of a schema"

// structuredAnswer measures a child that hands in its answer through the tool, and
// whose schema the service has seen before, as that of a delegation tool.
func structuredAnswer(ctx context.Context, b *bench) (err error) {
	answer := scripted.Script{{Repeat: true, Steps: []scripted.Step{{scripted.CallLiteral(structured.ToolName, `{"answer":42}`)}}}}
	r, err := newRigOf(ctx, nil, answer, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	parent, err := r.newAgent(ctx)
	if err != nil {
		return err
	}
	req := request(parent)
	req.OutputSchema = []byte(`{"type":"object","properties":{"answer":{"type":"integer"}},"required":["answer"],"additionalProperties":false}`)
	return b.measure(workStructured, 1, func(*probe) error { return r.oneShot(ctx, req) })
}

func childWork(kind storeKind, n int) string {
	return fmt.Sprintf("one-shot child %s, %s at once", kind.name, thousands(n))
}

func aliveWork(kind storeKind, n int) string {
	return fmt.Sprintf("  %s, %s started before the first is waited for", kind.short, thousands(n))
}

// syncs is how often a store has made something durable, 0 for stores without a disk.
func syncs(store session.Store) float64 {
	if s, ok := store.(*sqlite.Store); ok {
		return float64(s.Stats().Commits)
	}
	return 0
}

// atOnce calls fn n times, in as many goroutines, and returns the first error.
func atOnce(n int, fn func(i int) error) error {
	if n == 1 {
		return fn(0)
	}
	var g sync.WaitGroup
	var first atomic.Pointer[error]
	for i := range n {
		g.Go(func() {
			if err := fn(i); err != nil {
				first.CompareAndSwap(nil, &err)
			}
		})
	}
	g.Wait()
	if err := first.Load(); err != nil {
		return *err
	}
	return nil
}
