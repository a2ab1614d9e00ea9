package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
	"github.com/offshoot-dev/offshoot/subagent/fork"
)

// forkSizes are the lengths of the parents' logs.
func forkSizes() []int64 { return []int64{1_000, 10_000} }

func forkWork(n int64) string {
	return fmt.Sprintf("fork of a parent of %s events in memory (creation)", thousands(int(n)))
}

func forkDiskWork(n int64) string {
	return fmt.Sprintf("fork of a parent of %s events on SQLite (creation, stored)", thousands(int(n)))
}

func forkChildWork(n int64) string {
	return fmt.Sprintf("  one-shot child of the fork provider, %s events, on SQLite", thousands(int(n)))
}

// forkOf makes an agent that shares its parent's whole log.
func (r *rig) forkOf(ctx context.Context, parent *agent.Agent, deferred bool) (*agent.Handle, error) {
	return r.agents.Create(ctx, agent.Create{
		Owner: parent, Options: agent.Options{Provider: route, Model: model},
		Session: session.New{
			ParentSession: parent.ID(), Root: parent.ID(), Origin: session.OriginSubagent, DelegationDepth: 1, Deferred: deferred,
			Seed: &session.Seed{Prefix: parent.Session().Prefix()},
		},
	})
}

// forks measures the creation of a child that shares its parent's whole log.
func forks(ctx context.Context, b *bench) error {
	for _, n := range forkSizes() {
		if err := forksOf(ctx, b, n); err != nil {
			return err
		}
	}
	return nil
}

func forksOf(ctx context.Context, b *bench, n int64) (err error) {
	r, err := newRig(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	parent, err := r.newAgent(ctx)
	if err != nil {
		return err
	}
	if err := fill(ctx, parent.Session(), n); err != nil {
		return err
	}
	return b.measure(forkWork(n), 1, func(p *probe) error {
		h, err := r.forkOf(ctx, parent, true)
		p.pause()
		if err != nil {
			return err
		}
		return h.Dispose(ctx)
	})
}

// forksOnDisk measures what forks of a stored parent cost and leave.
func forksOnDisk(ctx context.Context, b *bench) error {
	for _, n := range forkSizes() {
		for range b.samples {
			for work, fn := range map[string]func(context.Context, *rig, *agent.Agent) error{
				forkDiskWork(n): storeFork, forkChildWork(n): forkChild,
			} {
				s, err := b.forkSample(ctx, n, work, fn)
				if err != nil {
					return err
				}
				if err := b.out.Encode(s); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func storeFork(ctx context.Context, r *rig, parent *agent.Agent) error {
	h, err := r.forkOf(ctx, parent, false)
	if err != nil {
		return err
	}
	return errors.Join(h.Agent().Session().Flush(ctx), h.Dispose(ctx))
}

func forkChild(ctx context.Context, r *rig, parent *agent.Agent) error {
	return r.child(ctx, fork.DefaultName, request(parent))
}

// forkSample forks a parent many times on a copy of its database, which is closed
// before it is measured: the log that a database keeps beside itself is empty then.
func (b *bench) forkSample(ctx context.Context, n int64, work string, fn func(context.Context, *rig, *agent.Agent) error) (_ sample, err error) {
	const count = 200
	dir, err := b.longLogs(ctx, n, 2)
	if err != nil {
		return sample{}, err
	}
	own := filepath.Join(b.dir, fmt.Sprintf("fork-%d-%d-%d", n, pid(), b.files.Add(1)))
	if err := os.CopyFS(own, os.DirFS(dir)); err != nil {
		return sample{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(own)) }()
	path := filepath.Join(own, dbName)
	before, err := os.Stat(path)
	if err != nil {
		return sample{}, err
	}
	s, err := forkMany(ctx, path, count, work, fn)
	if err != nil {
		return sample{}, err
	}
	after, err := os.Stat(path)
	if err != nil {
		return sample{}, err
	}
	s.Values["B of disk"] = float64(after.Size()-before.Size()) / count
	return s, nil
}

func forkMany(ctx context.Context, path string, count int, work string, fn func(context.Context, *rig, *agent.Agent) error) (_ sample, err error) {
	db, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		return sample{}, err
	}
	r, err := newRig(ctx, db)
	if err != nil {
		return sample{}, errors.Join(err, db.Close(context.WithoutCancel(ctx)))
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	h, err := r.agents.Resume(ctx, agent.Resume{ID: logID(0), Options: agent.Options{Provider: route, Model: model}})
	if err != nil {
		return sample{}, err
	}
	// A turn of its own, so that the header of its requests is in the log, as it is
	// in that of every parent that delegates.
	if err := turn(ctx, h.Agent()); err != nil {
		return sample{}, err
	}
	p := newProbe()
	p.start()
	began := time.Now()
	for range count {
		if err := fn(ctx, r, h.Agent()); err != nil {
			return sample{}, err
		}
		p.ops++
	}
	took := time.Since(began)
	s := p.done(work)
	s.Wall = float64(took) / float64(count)
	if s.Values == nil {
		s.Values = map[string]float64{}
	}
	return s, nil
}
