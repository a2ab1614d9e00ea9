package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// Each tree of the library is a root with nine children that have run one turn.
const treeSize = 10

func scaleWork(what string, n int) string {
	return fmt.Sprintf("%s, %s sessions", what, thousands(n))
}

// The things whose cost is looked at beside 10,000 and 100,000 stored sessions.
const (
	scaleOpen   = "open and close the store for writing"
	scaleTurn   = "create, append to and give up a session"
	scaleBeat   = "heartbeat of an owner"
	scaleResume = "take ownership of a session and read it"
	scalePage   = "list the newest 50 roots"
	scaleTree   = "list a tree of 10"
	scaleWhole  = "list all (a session)"
	scaleShow   = "sessions show by the beginning of an id, new process"
	scaleFirst  = "sessions list --limit 20, new process"
	scaleGrove  = "sessions tree ID of 10, new process"
	scalePrune  = "sessions prune --dry-run, new process"
)

func scaleRows(n int) []row {
	group := fmt.Sprintf("scale-%d", n)
	var list []row
	for _, what := range []string{scaleOpen, scaleTurn, scaleBeat, scaleResume, scalePage, scaleTree, scaleWhole, scaleFirst, scaleShow, scaleGrove, scalePrune} {
		list = append(list, row{scaleWork(what, n), group, nil})
	}
	return list
}

func libraryRoot(i int) session.ID { return session.ID(fmt.Sprintf("%08x-root", i*2654435761%(1<<32))) }

// library is a database of n sessions in trees of treeSize.
func (b *bench) library(ctx context.Context, n int) (string, error) {
	return b.fixture(ctx, fmt.Sprintf("library-%d", n), func(reg *session.Registry) error {
		const at = 64
		label := "look at a part of the parser"
		d, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeOneShot, Provider: "spawn", Label: &label})
		if err != nil {
			return err
		}
		return atOnce(at, func(part int) error {
			for i := part; i < n/treeSize; i += at {
				root := libraryRoot(i)
				for child := range treeSize {
					s := session.New{ID: root, Cwd: "/home/somebody/work"}
					if child > 0 {
						s = session.New{
							ID: session.ID(fmt.Sprintf("%s-%d-child", root, child)), ParentSession: root, Root: root,
							Origin: session.OriginSubagent, DelegationDepth: 1, Cwd: "/home/somebody/work",
						}
					}
					if err := storeSession(ctx, reg, s, func(s *session.Session) error {
						events := turnEvents(1)
						if child > 0 {
							events = append(events, drafts(d)...)
						}
						_, err := s.Append(events...)
						return err
					}); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

// scale measures what should not cost more because other sessions are stored.
func scale(n int) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) error {
		dir, err := b.library(ctx, n)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, dbName)
		if err := b.scaleStore(ctx, path, n); err != nil {
			return err
		}
		one := string(libraryRoot(7))
		for _, p := range []struct {
			what string
			args []string
		}{
			{scaleFirst, []string{"sessions", "list", "--limit", "20"}},
			{scaleShow, []string{"sessions", "show", one + "-3-chi", "--events"}},
			{scaleGrove, []string{"sessions", "tree", one}},
			{scalePrune, []string{"sessions", "prune", "--older-than", "90d", "--dry-run"}},
		} {
			if err := b.processes(ctx, scaleWork(p.what, n), nil, append([]string{b.offshoot}, append(p.args, "--store", path)...)...); err != nil {
				return err
			}
		}
		return nil
	}
}

func (b *bench) scaleStore(ctx context.Context, path string, n int) (err error) {
	err = b.measure(scaleWork(scaleOpen, n), 1, func(*probe) error {
		db, err := sqlite.Open(ctx, path, sqlite.Options{})
		if err != nil {
			return err
		}
		return db.Close(ctx)
	})
	if err != nil {
		return err
	}
	db, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close(context.WithoutCancel(ctx))) }()
	made := 0
	header := func() session.Header {
		made++
		return session.Header{Version: session.FormatVersion, ID: session.ID(fmt.Sprintf("new-%d-%d", pid(), made)), CreatedAt: 1, Cwd: "/"}
	}
	event := func(seq int64) []session.Event {
		return []session.Event{session.RawEvent(session.Event{Type: session.TypeTurnStart, Seq: seq, Time: 1}, []byte(`{"turn":1}`))}
	}
	if err := b.measure(scaleWork(scaleTurn, n), 1, func(p *probe) error {
		h := header()
		w, err := db.Create(ctx, h, session.Meta{Root: h.ID}, event(0), nil)
		if err != nil {
			return err
		}
		err = errors.Join(w.Append(ctx, 1, event(1), nil), w.Close(ctx))
		p.pause()
		return errors.Join(err, db.Delete(ctx, h.ID))
	}); err != nil {
		return err
	}
	if err := b.measure(scaleWork(scaleBeat, n), 1, func(p *probe) error {
		p.pause()
		// The first thing that a store does as an owner renews its row.
		own, err := sqlite.Open(ctx, path, sqlite.Options{})
		if err != nil {
			return err
		}
		p.start()
		w, err := own.Open(ctx, libraryRoot(3))
		p.pause()
		if err == nil {
			err = w.Close(ctx)
		}
		return errors.Join(err, own.Close(ctx))
	}); err != nil {
		return err
	}
	reg, err := newSessions(ctx, db)
	if err != nil {
		return err
	}
	if err := b.measure(scaleWork(scaleResume, n), 1, func(*probe) error {
		s, err := reg.PrepareStored(ctx, libraryRoot(5))
		if err != nil {
			return err
		}
		return reg.Abandon(ctx, s)
	}); err != nil {
		return err
	}
	for _, l := range []struct {
		what   string
		filter session.Filter
		page   session.Page
		want   int
	}{
		{scalePage, session.Filter{Top: true}, session.Page{Limit: 50, Newest: true}, 50},
		{scaleTree, session.Filter{Root: libraryRoot(11)}, session.Page{}, treeSize},
	} {
		if err := b.measure(scaleWork(l.what, n), 1, func(*probe) error {
			got, err := db.List(ctx, l.filter, l.page)
			if err == nil && len(got.Records) != l.want {
				err = fmt.Errorf("%d records of %d", len(got.Records), l.want)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return b.measure(scaleWork(scaleWhole, n), n, func(*probe) error {
		seen := 0
		for p := (session.Page{}); ; {
			got, err := db.List(ctx, session.Filter{}, p)
			if err != nil {
				return err
			}
			seen += len(got.Records)
			if p.After = got.Next; p.After == "" {
				break
			}
		}
		if seen != n {
			return fmt.Errorf("%d sessions are listed of %d", seen, n)
		}
		return nil
	})
}
