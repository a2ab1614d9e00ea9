package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// slow holds up the syncs of the write-ahead log and looks at what goes on meanwhile.
func slow(in *injector, dir string) {
	ctx := context.Background()
	fault := func(format string, args ...any) { fmt.Printf("fault "+format+"\n", args...) }
	path := filepath.Join(dir, "s.db")
	s, err := sqlite.Open(ctx, path, sqlite.Options{Heartbeat: time.Hour})
	if err != nil {
		fault("%v", err)
		return
	}
	const sessions = 20
	writers := make([]session.Writer, sessions)
	for i := range writers {
		id := session.ID(fmt.Sprintf("s%02d", i))
		if writers[i], err = s.Create(ctx, header(id, 1), session.Meta{Root: id}, events(0, 1, 0), nil); err != nil {
			fault("%v", err)
			return
		}
	}
	gate, reached := make(chan struct{}), make(chan struct{}, 100)
	in.arm(func(c diskCall) diskFault {
		if c.Name == "sync" && strings.HasSuffix(c.File, "-wal") {
			reached <- struct{}{}
			return diskFault{Wait: gate}
		}
		return diskFault{}
	})
	before := s.Stats()
	acks := make(chan error, sessions)
	var wg sync.WaitGroup
	begin := func(list []session.Writer) {
		for _, w := range list {
			wg.Go(func() { acks <- w.Append(ctx, 1, events(1, 1, 0), nil) })
		}
	}
	begin(writers[:1])
	<-reached
	begin(writers[1:])
	for s.Waiting() < sessions-1 {
		runtime.Gosched()
	}
	if len(acks) > 0 {
		fault("an append was acknowledged before its sync: %v", <-acks)
	}
	// Readers do not wait for the disk.
	if n, err := count(ctx, s, "s00"); err != nil || n != 1 {
		fault("a reader sees %d events, %v", n, err)
	}
	if l, err := s.List(ctx, session.Filter{}, session.Page{}); err != nil || len(l.Records) != sessions {
		fault("a listing has %d records, %v", len(l.Records), err)
	}
	// Within its deadline an owner needs no disk.
	if err := writers[0].Check(ctx); err != nil {
		fault("check: %v", err)
	}
	// Past it, it has to renew, and who cannot wait is told so; nothing was begun for it.
	s.Age(12 * time.Second)
	impatient, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	if err := writers[0].Check(impatient); !errors.Is(err, context.DeadlineExceeded) {
		fault("check past the deadline: %v", err)
	}
	if _, err := s.Create(impatient, header("late", 1), session.Meta{Root: "late"}, nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		fault("create: %v", err)
	}
	cancel()
	close(gate)
	wg.Wait()
	for range sessions {
		if err := <-acks; err != nil {
			fault("append: %v", err)
		}
	}
	if n := s.Stats().Commits - before.Commits; n != 2 {
		fault("%d syncs, where %d appends waited together for the second", n, sessions-1)
	}
	in.arm(nil)
	if ok, err := s.Exists(ctx, "late"); err != nil || ok {
		fault("what nobody waited for was made: %v, %v", ok, err)
	}
	if err := s.Close(ctx); err != nil {
		fault("%v", err)
	}
	fmt.Println("done")
}

// A disk whose syncs take long: nothing is acknowledged before its sync, who waits
// together shares the next one, the queue holds one request a caller, readers and an
// owner within its deadline do not wait, and a caller's ctx is honoured (D3, D21).
func TestSlowDisk(t *testing.T) {
	o := start(t, "slow", quickDir(t))
	for o.out.Scan() {
		switch word, rest, _ := strings.Cut(o.out.Text(), " "); word {
		case "fault":
			t.Error(rest)
		case "skip":
			t.Skip("the disk cannot be held up here: " + rest)
		case "done":
			return
		default:
			t.Fatalf("the other process said %q", o.out.Text())
		}
	}
	t.Error("the other process ended")
}
