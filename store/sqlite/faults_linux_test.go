package sqlite_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// span is how many events of a session may be stored; -1 is no row. Both are the
// same where the store has said so.
type span struct{ Min, Max int64 }

// diary does things to a store and keeps account of what it was told. A failure is
// settled as package session does: by reading back.
type diary struct {
	ctx  context.Context
	path string
	s    *sqlite.Store

	mu      sync.Mutex // guards following
	spans   map[session.ID]span
	writers map[session.ID]session.Writer
	errs    []error
	settled func() // called when a failure was settled, or could not be
	noted   func() // called under the lock when the account has changed
}

func newDiary(path string) *diary {
	return &diary{ctx: context.Background(), path: path, spans: map[session.ID]span{}, writers: map[session.ID]session.Writer{}, settled: func() {}, noted: func() {}}
}

func (d *diary) note(id session.ID, s span) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spans[id] = s
	d.noted()
}

func (d *diary) of(id session.ID) (span, session.Writer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.spans[id]
	if !ok {
		s = span{-1, -1}
	}
	return s, d.writers[id]
}

func (d *diary) hold(id session.ID, w session.Writer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.writers[id] = w; w == nil {
		delete(d.writers, id)
	}
}

func (d *diary) failed(err error) {
	d.mu.Lock()
	d.errs = append(d.errs, err)
	d.mu.Unlock()
}

// create makes a session with n events behind its prefix.
func (d *diary) create(id, root session.ID, prefix session.PrefixRef, n int64) {
	old, _ := d.of(id)
	if old.Max >= 0 {
		return
	}
	d.note(id, span{-1, prefix.Len + n})
	w, err := d.s.Create(d.ctx, header(id, 1), session.Meta{Root: root, Prefix: prefix}, events(prefix.Len, n, 0), []session.Checkpoint{
		{Key: session.CellState, Version: 1, Seq: prefix.Len + n - 1, Value: []byte(`{"state":"idle"}`)},
	})
	var missing *session.PrefixError
	switch {
	case err == nil:
		d.hold(id, w)
		d.note(id, span{prefix.Len + n, prefix.Len + n})
		return
	case errors.As(err, &missing):
		d.note(id, span{-1, -1}) // the prefix's owner failed before
		return
	}
	d.failed(err)
	if stored, err := d.s.Exists(d.ctx, id); err != nil {
		d.failed(err)
	} else if stored {
		d.note(id, span{prefix.Len + n, prefix.Len + n})
	} else {
		d.note(id, span{-1, -1})
	}
	d.settled()
}

func (d *diary) append(id session.ID, n int64, size int) {
	s, w := d.of(id)
	if w == nil {
		return
	}
	if s.Min != s.Max {
		if s, w = d.settle(id, s, w); s.Min != s.Max {
			return
		}
	}
	d.note(id, span{s.Min, s.Max + n})
	err := w.Append(d.ctx, s.Min, events(s.Min, n, size), nil)
	if err == nil {
		d.note(id, span{s.Max + n, s.Max + n})
		return
	}
	d.failed(err)
	d.settle(id, span{s.Min, s.Max + n}, w)
	d.settled()
}

// settle reads the head back.
func (d *diary) settle(id session.ID, s span, w session.Writer) (span, session.Writer) {
	head, err := w.Head(d.ctx)
	switch {
	case err != nil:
		d.failed(err)
	case head < s.Min || head > s.Max:
		d.failed(fmt.Errorf("impossible: the head of %s is %d, not %d to %d", id, head, s.Min, s.Max))
	default:
		s = span{head, head}
		d.note(id, s)
	}
	return s, w
}

func (d *diary) close(id session.ID) {
	_, w := d.of(id)
	if w == nil {
		return
	}
	if err := w.Close(d.ctx); err != nil {
		d.failed(err)
		d.settled()
	}
	d.hold(id, nil)
}

func (d *diary) open(id session.ID) {
	s, w := d.of(id)
	if s.Min < 0 || w != nil {
		return
	}
	w, err := d.s.Open(d.ctx, id)
	if err != nil {
		d.failed(err)
		d.settled()
		return
	}
	d.hold(id, w)
}

func (d *diary) delete(id session.ID) {
	s, w := d.of(id)
	if s.Min < 0 || w != nil {
		return
	}
	d.note(id, span{-1, s.Max})
	err := d.s.Delete(d.ctx, id)
	switch {
	case err == nil:
		d.note(id, span{-1, -1})
		return
	case errors.Is(err, session.ErrInUse):
		d.note(id, s) // something of its tree could not be given up
		return
	}
	d.failed(err)
	if stored, err := d.s.Exists(d.ctx, id); err != nil {
		d.failed(err)
	} else if stored {
		d.note(id, s)
	} else {
		d.note(id, span{-1, -1})
	}
	d.settled()
}

// discard has the session's writer delete it.
func (d *diary) discard(id session.ID) {
	s, w := d.of(id)
	if w == nil {
		return
	}
	d.note(id, span{-1, s.Max})
	err := w.Discard(d.ctx)
	if err == nil {
		d.hold(id, nil)
		d.note(id, span{-1, -1})
		return
	}
	d.failed(err)
	if stored, err := d.s.Exists(d.ctx, id); err != nil {
		d.failed(err)
	} else if stored {
		d.note(id, s)
	} else {
		d.close(id)
		d.note(id, span{-1, -1})
	}
	d.settled()
}

func (d *diary) check(id session.ID) {
	_, w := d.of(id)
	if w == nil {
		return
	}
	d.s.Age(12 * time.Second) // past the owner's own deadline
	if err := w.Check(d.ctx); err != nil {
		d.failed(err)
	}
}

// work is the whole of what a store does, one thing after another, and at the end
// several at once.
func (d *diary) work() {
	d.create("a", "a", session.PrefixRef{}, 3)
	d.append("a", 1, 0)
	d.append("a", 2, 9000)
	d.create("b", "a", session.PrefixRef{}, 1)
	d.append("b", 1, 0)
	d.create("c", "a", session.PrefixRef{ID: "a", Len: 4}, 1)
	d.append("c", 1, 0)
	d.close("b")
	d.open("b")
	d.append("b", 1, 0)
	d.create("d", "d", session.PrefixRef{}, 2)
	d.create("e", "e", session.PrefixRef{ID: "d", Len: 1}, 1)
	d.close("d")
	d.delete("d")
	d.check("a")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			id := session.ID(fmt.Sprintf("g%d", i))
			d.create(id, id, session.PrefixRef{}, 1)
			d.append(id, 1, 100)
		})
	}
	wg.Wait()
	d.create("f", "f", session.PrefixRef{}, 2)
	d.append("f", 1, 9000)
	d.discard("f")
	d.close("c")
}

// opened opens the store, again if the disk is to blame.
func (d *diary) opened(heal func()) error {
	var err error
	if d.s, err = sqlite.Open(d.ctx, d.path, sqlite.Options{Heartbeat: time.Hour}); err != nil {
		d.failed(err)
		d.settled()
		heal()
		d.s, err = sqlite.Open(d.ctx, d.path, sqlite.Options{Heartbeat: time.Hour})
	}
	return err
}

// faults says what is wrong with the errors that were told: each is one line that
// names the file.
func (d *diary) faults() (out []string) {
	for _, err := range d.errs {
		text := err.Error()
		if strings.Contains(text, "\n") || !strings.Contains(text, d.path) || strings.Contains(text, "impossible") {
			out = append(out, fmt.Sprintf("the error %q", text))
		}
	}
	return out
}

// compare says where a file contradicts the account.
func compare(ctx context.Context, path string, spans map[session.ID]span) (out []string) {
	fail := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	later := func() time.Time { return time.Now().Add(16 * time.Second) }
	s, err := sqlite.Open(ctx, path, sqlite.Options{Heartbeat: time.Hour, Now: later})
	if err != nil {
		return []string{err.Error()}
	}
	if err := s.QuickCheck(ctx); err != nil {
		fail("%v", err)
	}
	for _, id := range slices.Sorted(maps.Keys(spans)) {
		want := spans[id]
		n, err := count(ctx, s, id)
		if errors.Is(err, session.ErrNotFound) {
			n = -1
		} else if err != nil {
			fail("%s: %v", id, err)
			continue
		}
		if n < want.Min || n > want.Max {
			fail("%s has %d events, the store said %d to %d", id, n, want.Min, want.Max)
		}
		if n < 0 {
			continue
		}
		w, err := s.Open(ctx, id)
		if err != nil {
			fail("%s cannot be gone on with: %v", id, err)
			continue
		}
		if err := errors.Join(w.Append(ctx, n, events(n, 1, 0), nil), w.Close(ctx)); err != nil {
			fail("%s: %v", id, err)
		}
	}
	if err := s.Close(ctx); err != nil {
		fail("%v", err)
	}
	return out
}

// count reads a log and checks every event of it.
func count(ctx context.Context, s session.Store, id session.ID) (n int64, err error) {
	for e, err := range s.ReadFrom(ctx, id, 0) {
		if err != nil {
			return n, err
		}
		if e.Seq != n || !strings.HasPrefix(string(e.Data()), fmt.Sprintf(`{"n":%d,`, n)) {
			return n, fmt.Errorf("event %d is %s", n, e.AppendEnvelope(nil))
		}
		n++
	}
	return n, nil
}

// diskFaults are the ways in which a call fails.
func diskFaults() map[string]diskFault {
	return map[string]diskFault{
		"I/O error":             {Err: unix.EIO},
		"I/O error, torn":       {Err: unix.EIO, Torn: true},
		"I/O error, too late":   {Err: unix.EIO, After: true},
		"full":                  {Err: unix.ENOSPC},
		"full, torn":            {Err: unix.ENOSPC, Torn: true},
		"over the quota":        {Err: unix.EDQUOT},
		"read-only of a sudden": {Err: unix.EROFS},
	}
}

// diskRole is the other process of the tests below. It says what is wrong, one
// fault a line, then "done" and how much it tried.
func diskRole(role string) (code int, ok bool) {
	if role != "disk" && role != "crash" && role != "slow" {
		return 0, false
	}
	in, err := newInjector()
	if err != nil {
		fmt.Println("skip", err)
		return 0, true
	}
	switch role {
	case "disk":
		sick(in, os.Getenv(pathEnv))
	case "crash":
		crash(in, os.Getenv(pathEnv))
	case "slow":
		slow(in, os.Getenv(pathEnv))
	}
	return 0, true
}

// sick runs the work once for each call that it makes, which fails, alone or with
// all that follow until the disk is well again; then everything has to go on.
func sick(in *injector, dir string) {
	stride, err := strconv.Atoi(os.Getenv("OFFSHOOT_SQLITE_TEST_STRIDE"))
	if err != nil {
		fmt.Println("fault", err)
		return
	}
	once := func(name string, plan func(diskCall) diskFault) (calls []diskCall) {
		d := newDiary(filepath.Join(dir, fmt.Sprintf("%x.db", time.Now().UnixNano())))
		say := func(faults []string) {
			for _, f := range faults {
				fmt.Printf("fault %s: %s\n", name, f)
			}
		}
		in.arm(plan)
		heal := func() { calls = append(calls, in.arm(nil)...) }
		if err := d.opened(heal); err != nil {
			say([]string{"after the disk was well again: " + err.Error()})
			return calls
		}
		d.work()
		heal()
		met := len(d.errs)
		d.recovers(say)
		if err := d.s.Close(d.ctx); err != nil {
			say([]string{"close: " + err.Error()})
		}
		if left := openFiles(d.path); len(left) > 0 {
			say([]string{fmt.Sprintf("still open after the store was closed: %q", left)})
		}
		say(d.faults())
		say(compare(d.ctx, d.path, d.spans))
		if plan == nil && met > 0 {
			say([]string{"without a fault it failed"})
		}
		return calls
	}
	total := len(once("healthy", func(diskCall) diskFault { return diskFault{} }))
	tried := 0
	for n := 0; n < total; n += stride {
		for kind, f := range diskFaults() {
			once(fmt.Sprintf("%s at call %d", kind, n), func(c diskCall) diskFault {
				if c.N == n {
					return f
				}
				return diskFault{}
			})
			once(fmt.Sprintf("%s from call %d on", kind, n), func(c diskCall) diskFault {
				if c.N >= n {
					return f
				}
				return diskFault{}
			})
			tried += 2
		}
	}
	// Only the database file fails, so nothing of the write-ahead log is ever folded in.
	once("no checkpoint", func(c diskCall) diskFault {
		if strings.HasSuffix(c.File, ".db") {
			return diskFault{Err: unix.EIO}
		}
		return diskFault{}
	})
	fmt.Println("done", tried, "of", total)
}

// openFiles returns the files of a store that this process has open.
func openFiles(path string) (open []string) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return []string{err.Error()}
	}
	for _, fd := range fds {
		// One that is not there any more was the folder itself.
		if file, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(file, path) {
			open = append(open, filepath.Base(file))
		}
	}
	return open
}

// recovers goes on, on the same store, when the disk is well again: everything that
// failed works now, and nobody else is kept from what is not held.
func (d *diary) recovers(say func([]string)) {
	told := len(d.errs)
	var faults []string
	for _, id := range slices.Sorted(maps.Keys(d.writers)) {
		d.append(id, 1, 0)
		d.check(id)
	}
	d.s.Age(12 * time.Second) // a heartbeat is due
	d.create("z", "z", session.PrefixRef{}, 1)
	other, err := sqlite.Open(d.ctx, d.path, sqlite.Options{Heartbeat: time.Hour})
	if err != nil {
		say([]string{"another opening: " + err.Error()})
		return
	}
	held := map[session.ID]bool{} // by tree
	for _, id := range slices.Sorted(maps.Keys(d.writers)) {
		held[rootOf(id)] = true
	}
	for _, id := range slices.Sorted(maps.Keys(d.spans)) {
		switch s, w := d.of(id); {
		case s.Max < 0 || s.Min < 0:
		case w == nil && !held[rootOf(id)]:
			w, err := other.Open(d.ctx, id)
			if err != nil {
				faults = append(faults, fmt.Sprintf("%s is given up, but: %v", id, err))
				continue
			}
			if err := w.Close(d.ctx); err != nil {
				faults = append(faults, err.Error())
			}
		case w == nil:
			d.open(id)
			d.append(id, 1, 0)
		}
	}
	if err := other.Close(d.ctx); err != nil {
		faults = append(faults, err.Error())
	}
	for _, err := range d.errs[told:] {
		faults = append(faults, "after the disk was well again: "+err.Error())
	}
	say(faults)
}

func rootOf(id session.ID) session.ID {
	if id == "b" || id == "c" {
		return "a"
	}
	return id
}

// crash works until the given call fails in the given way, tells the account once
// the failure was settled, and is killed.
func crash(in *injector, path string) {
	var n int
	kind, at, _ := strings.Cut(os.Getenv("OFFSHOOT_SQLITE_TEST_FAULT"), "@")
	n, err := strconv.Atoi(at)
	if err != nil {
		fmt.Println("fault", err)
		return
	}
	f := diskFaults()[kind]
	if kind == "kill" {
		f = diskFault{Kill: true}
	}
	d := newDiary(path)
	tell := func() {
		text, err := json.Marshal(d.spans)
		fmt.Println("account", string(text), err)
	}
	d.settled = func() {
		d.mu.Lock() // for good
		tell()
		_ = unix.Kill(os.Getpid(), unix.SIGKILL) // it does not fail for this process
		select {}
	}
	in.arm(func(c diskCall) diskFault {
		if c.N == n {
			return f
		}
		return diskFault{}
	})
	if kind == "kill" {
		// Before each step the account is what may be, behind it what is.
		d.noted = tell
	}
	if err := d.opened(func() { in.arm(nil) }); err != nil {
		fmt.Println("fault", err)
		return
	}
	d.work()
	if err := d.s.Close(d.ctx); err != nil {
		d.settled()
	}
	tell()
}

// quickDir returns a folder in memory, where there is one: what fails here is not up
// to the disk, and a sync costs nothing.
func quickDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "offshoot-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestEveryDiskFault: each system call by which the engine changes the disk fails in
// every way, once and until the disk is well again. What was acknowledged is there,
// what was settled as not stored is not, every error is one line that names the file,
// and the same store goes on (D4, D21, D22; design § 4).
func TestEveryDiskFault(t *testing.T) {
	stride := "61"
	if soak {
		stride = "3"
	}
	t.Setenv("OFFSHOOT_SQLITE_TEST_STRIDE", stride)
	o := start(t, "disk", quickDir(t))
	for {
		line := o.line()
		switch word, rest, _ := strings.Cut(line, " "); word {
		case "fault":
			t.Error(rest)
		case "skip":
			t.Skip("the disk cannot be made to fail here: " + rest)
		case "done":
			t.Log(line)
			return
		default:
			t.Fatalf("the other process said %q", line)
		}
	}
}

// TestCrashAfterADiskFault: the process dies right after it told the outcome of a
// write that failed. The next one finds exactly that.
func TestCrashAfterADiskFault(t *testing.T) {
	calls, kinds := []int{60, 74, 81}, []string{"I/O error", "I/O error, too late", "full, torn", "kill"}
	if soak {
		kinds = append(slices.Sorted(maps.Keys(diskFaults())), "kill")
		for calls = nil; len(calls) < 130; {
			calls = append(calls, 2*len(calls))
		}
	}
	for _, kind := range kinds {
		for _, n := range calls {
			path := filepath.Join(quickDir(t), "s.db")
			t.Setenv("OFFSHOOT_SQLITE_TEST_FAULT", fmt.Sprintf("%s@%d", kind, n))
			o := start(t, "crash", path)
			var spans map[session.ID]span
			for o.out.Scan() {
				word, rest, _ := strings.Cut(o.out.Text(), " ")
				switch word {
				case "skip":
					t.Skip("the disk cannot be made to fail here: " + rest)
				case "fault":
					t.Errorf("%s at call %d: %s", kind, n, rest)
				case "account":
					spans = nil
					if err := json.Unmarshal([]byte(strings.TrimSuffix(rest, " <nil>")), &spans); err != nil {
						t.Fatal(err)
					}
				}
			}
			_ = o.cmd.Wait() // it was killed
			for _, f := range compare(t.Context(), path, spans) {
				t.Errorf("%s at call %d: %s", kind, n, f)
			}
		}
	}
}
