//go:build unix

package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// rival plays the other process of the tests below. Each works until it is killed,
// and says of everything that it was told when it was told.
func rival(ctx context.Context, role string, s *sqlite.Store) bool {
	say := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	mark := func(head, k int64) []session.Event {
		return []session.Event{session.RawEvent(session.Event{Type: "turn/start", Seq: head, Time: 1}, fmt.Appendf(nil, `{"by":"%d-%d"}`, os.Getpid(), k))}
	}
	in := bufio.NewScanner(os.Stdin)
	switch role {
	case "contend": // for one session, made by whoever comes first
		for k := int64(0); ; k++ {
			w, err := s.Create(ctx, header("s", 1), session.Meta{Root: "s"}, nil, nil)
			if errors.Is(err, session.ErrExists) {
				w, err = s.Open(ctx, "s")
			}
			var owned *session.OwnedError
			if errors.As(err, &owned) {
				continue
			}
			head, herr := int64(0), error(nil)
			if err == nil {
				head, herr = w.Head(ctx)
			}
			if err = errors.Join(err, herr); err == nil {
				say("try %d %d-%d", head, os.Getpid(), k)
				err = w.Append(ctx, head, mark(head, k), nil)
			}
			if err != nil {
				say("error %v", err)
				return true
			}
			say("ack %d %d-%d", head, os.Getpid(), k)
			if err := w.Close(ctx); err != nil {
				say("error %v", err)
				return true
			}
		}
	case "create": // each id that is named
		for in.Scan() {
			id := session.ID(in.Text())
			_, err := s.Create(ctx, header(id, 1), session.Meta{Root: id}, mark(0, 1), nil)
			var owned *session.OwnedError
			switch {
			case err == nil:
				say("made %s", id)
			case errors.Is(err, session.ErrExists), errors.As(err, &owned):
				say("lost %s", id)
			default:
				say("error %v", err)
			}
		}
		return true
	case "delete": // each id that is named
		for in.Scan() {
			id := session.ID(in.Text())
			err := s.Delete(ctx, id)
			switch {
			case err == nil:
				say("deleted %s", id)
			case errors.Is(err, session.ErrInUse), errors.Is(err, session.ErrNotFound):
				say("refused %s", id)
			default:
				say("error %v", err)
			}
		}
		return true
	case "append": // to one session, until it is lost
		w, err := s.Create(ctx, header("s", 1), session.Meta{Root: "s"}, nil, nil)
		if errors.Is(err, session.ErrExists) {
			w, err = s.Open(ctx, "s")
		}
		head := int64(0)
		if err == nil {
			head, err = w.Head(ctx)
		}
		for err == nil {
			if err = w.Append(ctx, head, mark(head, head), nil); err == nil {
				say("ack %d %d-%d", head, os.Getpid(), head)
				head++
			}
		}
		var fenced *session.FencedError
		if errors.As(err, &fenced) {
			say("fenced %d", head)
			return true
		}
		say("error %v", err)
		return true
	}
	return false
}

func rounds(short, long int) int {
	if soak {
		return long
	}
	return short
}

// reader collects what a rival says.
func (o *other) follow(lines chan<- string) {
	for o.out.Scan() {
		lines <- o.out.Text()
	}
	lines <- "end"
}

// D18, D21: several processes contend for one session, are killed again and again
// and replaced. What was acknowledged stands in the log once, at the place that was
// told; nobody else's stands between; and whoever is left goes on.
func TestRivalsAreKilled(t *testing.T) {
	path := newPath(t)
	lines := make(chan string)
	acked := map[string]int64{} // by mark
	tried := map[string]int64{}
	var live []*other
	begin := func() {
		o := start(t, "contend", path)
		live = append(live, o)
		go o.follow(lines)
	}
	for range 3 {
		begin()
	}
	note := func(line string) bool {
		var seq int64
		var mark string
		switch {
		case line == "end":
			return false
		case strings.HasPrefix(line, "error"):
			t.Errorf("a rival said %q", line)
		default:
			word := ""
			if _, err := fmt.Sscanf(line, "%s %d %s", &word, &seq, &mark); err != nil {
				t.Fatalf("a rival said %q", line)
			}
			if word == "ack" {
				acked[mark] = seq
			} else {
				tried[mark] = seq
			}
		}
		return true
	}
	for round := range rounds(12, 200) {
		for n := len(acked); len(acked) < n+10; {
			if !note(<-lines) {
				t.Fatal("a rival ended by itself")
			}
		}
		victim := live[round%len(live)]
		victim.signal(syscall.SIGKILL)
		for note(<-lines) {
			continue
		}
		live = append(live[:round%len(live)], live[round%len(live)+1:]...)
		_ = victim.cmd.Wait() // it was killed
		begin()
	}
	for _, o := range live {
		o.signal(syscall.SIGKILL)
	}
	for left := len(live); left > 0; {
		if !note(<-lines) {
			left--
		}
	}
	s := mustOpen(t, path, normal)
	seen := map[string]int64{}
	n := int64(0)
	for e, err := range s.ReadFrom(t.Context(), "s", 0) {
		if err != nil {
			t.Fatal(err)
		}
		mark := strings.TrimSuffix(strings.TrimPrefix(string(e.Data()), `{"by":"`), `"}`)
		if at, twice := seen[mark]; twice {
			t.Errorf("%s stands at %d and %d", mark, at, n)
		}
		if e.Seq != n || tried[mark] != n {
			t.Errorf("%s stands at %d (seq %d), it was to stand at %d", mark, n, e.Seq, tried[mark])
		}
		seen[mark] = n
		n++
	}
	for mark, seq := range acked {
		if at, ok := seen[mark]; !ok || at != seq {
			t.Errorf("%s was acknowledged at %d and stands at %d, %v", mark, seq, at, ok)
		}
	}
	t.Logf("%d acknowledged, %d stored", len(acked), len(seen))
	if err := s.QuickCheck(t.Context()); err != nil {
		t.Error(err)
	}
}

// One of several processes makes a session, and the others learn of it (D22).
func TestRivalsCreate(t *testing.T) {
	path := newPath(t)
	others := []*other{start(t, "create", path), start(t, "create", path), start(t, "create", path)}
	for i := range rounds(40, 1000) {
		id := fmt.Sprintf("s%d", i)
		for _, o := range others {
			o.say(id)
		}
		made := 0
		for _, o := range others {
			switch line := o.line(); line {
			case "made " + id:
				made++
			case "lost " + id:
			default:
				t.Fatalf("a rival said %q", line)
			}
		}
		if made != 1 {
			t.Fatalf("%s was made %d times", id, made)
		}
	}
}

// A session is deleted by one process while another opens it: one of them wins, and
// the other is told. What was opened is there and can be gone on with (design § 4).
func TestRivalDeletes(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, sqlite.Options{Synchronous: sqlite.Normal})
	o := start(t, "delete", path)
	opened := 0
	for i := range rounds(60, 1000) {
		id := session.ID(fmt.Sprintf("s%d", i))
		if err := create(t, s, id, 3).Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		o.say(string(id))
		w, err := s.Open(t.Context(), id)
		switch line := o.line(); {
		case err == nil && line == "refused "+string(id):
			opened++
			if err := errors.Join(w.Append(t.Context(), 3, events(3, 1, 0), nil), w.Close(t.Context())); err != nil {
				t.Errorf("%s was opened, but: %v", id, err)
			}
			if n := length(t, s, id); n != 4 {
				t.Errorf("%s has %d events", id, n)
			}
		case errors.Is(err, session.ErrNotFound) && line == "deleted "+string(id):
			if ok, err := s.Exists(t.Context(), id); err != nil || ok {
				t.Errorf("%s was deleted and is there: %v, %v", id, ok, err)
			}
		default:
			t.Errorf("open said %v, the rival said %q", err, line)
		}
	}
	t.Logf("opened %d times", opened)
}

// While another process writes, every listing and every reading is of one moment:
// as much as was acknowledged before, and nothing by halves (D12).
func TestListWhileARivalWrites(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, normal)
	o := start(t, "append", path)
	acked := int64(0)
	for range rounds(100, 3000) {
		line := o.line()
		if _, err := fmt.Sscanf(line, "ack %d", &acked); err != nil {
			t.Fatalf("the rival said %q", line)
		}
		l, err := s.List(t.Context(), session.Filter{}, session.Page{})
		if err != nil || len(l.Records) != 1 || l.Records[0].Head < acked+1 || !l.Records[0].Live {
			t.Fatalf("%d acknowledged; the listing has %+v, %v", acked+1, l.Records, err)
		}
		if n := length(t, s, "s"); n < l.Records[0].Head {
			t.Fatalf("%d events, %d were listed before", n, l.Records[0].Head)
		}
	}
}

// A process is stopped in the middle of its appends, for longer than the take-over
// age as its host counts it, again and again; the taker goes on, and the other is
// fenced out when it wakes: its events end where the taker's begin (design § 4).
func TestTakeOverDuringAppend(t *testing.T) {
	path := newPath(t)
	var sleep time.Duration
	s := mustOpen(t, path, sqlite.Options{Synchronous: sqlite.Normal, Heartbeat: time.Hour, BusyTimeout: 50 * time.Millisecond}.WithUptime(func() time.Duration { return sqlite.HostUptime() + sleep }))
	head := int64(0)
	for round := range rounds(6, 100) {
		o := start(t, "append", path)
		acked := head
		for acked < head+int64(5+round%7) {
			line := o.line()
			if _, err := fmt.Sscanf(line, "ack %d", &acked); err != nil {
				t.Fatalf("the rival said %q", line)
			}
		}
		o.signal(syscall.SIGSTOP)
		// What it still said is in the pipe. A transaction that it had begun holds the
		// lock of the file for as long as it sleeps.
		sleep = 0
		var owned *session.OwnedError
		if _, err := s.Open(t.Context(), "s"); err == nil {
			t.Fatal("opened before the take-over age")
		} else if !errors.As(err, &owned) && !strings.Contains(err.Error(), "locked by another process") {
			t.Fatal(err)
		}
		sleep = 16 * time.Second
		w, err := s.Open(t.Context(), "s")
		if err != nil {
			if !strings.Contains(err.Error(), "locked by another process") {
				t.Fatalf("take over: %v", err)
			}
			o.signal(syscall.SIGKILL)
			_ = o.cmd.Wait() // it was killed
			if w, err = s.Open(t.Context(), "s"); err != nil {
				t.Fatalf("take over from the dead: %v", err)
			}
			o = nil
		}
		at, err := w.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if at < acked+1 {
			t.Fatalf("%d events, %d were acknowledged", at, acked+1)
		}
		if err := w.Append(t.Context(), at, events(at, 2, 0), nil); err != nil {
			t.Fatal(err)
		}
		if o != nil {
			o.signal(syscall.SIGCONT)
			for line := o.line(); ; line = o.line() {
				if line == fmt.Sprintf("fenced %d", at) {
					break
				}
				if _, err := fmt.Sscanf(line, "ack %d", &acked); err != nil || acked >= at {
					t.Fatalf("taken over at %d, the rival said %q", at, line)
				}
			}
		}
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		head = at + 2
	}
	if n := length(t, s, "s"); n != head {
		t.Errorf("%d events, want %d", n, head)
	}
}
