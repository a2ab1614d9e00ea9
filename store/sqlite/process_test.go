//go:build unix

package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// The test binary runs itself as another process that plays one of the roles.
const (
	roleEnv = "OFFSHOOT_SQLITE_TEST_ROLE"
	pathEnv = "OFFSHOOT_SQLITE_TEST_PATH"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if code, ok := diskRole(role); ok {
			os.Exit(code)
		}
		os.Exit(runRole(role))
	}
	os.Exit(m.Run())
}

// runRole is the other process. It speaks lines: what it did on stdout, and what
// to do next on stdin.
func runRole(role string) int {
	ctx := context.Background()
	fail := func(err error) int {
		fmt.Println("error", err)
		return 1
	}
	s, err := sqlite.Open(ctx, os.Getenv(pathEnv), sqlite.Options{Heartbeat: time.Hour})
	if err != nil {
		return fail(err)
	}
	if rival(ctx, role, s) {
		return 0
	}
	in := bufio.NewReader(os.Stdin)
	next := func() string { line, _ := in.ReadString('\n'); return strings.TrimSpace(line) }
	switch role {
	case "hold": // create or open "s", then append one event for each line
		w, err := s.Create(ctx, header("s", 1), session.Meta{Root: "s"}, events(0, 1, 0), nil)
		if errors.Is(err, session.ErrExists) {
			w, err = s.Open(ctx, "s")
		}
		if err != nil {
			return fail(err)
		}
		fmt.Println("ready")
		for next() != "" {
			head, err := w.Head(ctx)
			if err == nil {
				err = w.Append(ctx, head, events(head, 1, 0), nil)
			}
			var fenced *session.FencedError
			if errors.As(err, &fenced) {
				fmt.Println("fenced")
				continue
			}
			if err != nil {
				return fail(err)
			}
			fmt.Println("appended", head)
		}
	case "race": // open "s" until it works, append one event, give up, n times
		n, _ := strconv.Atoi(next())
		for n > 0 {
			w, err := s.Open(ctx, "s")
			var owned *session.OwnedError
			if errors.As(err, &owned) {
				continue
			}
			var head int64
			if err == nil {
				head, err = w.Head(ctx)
			}
			if err == nil {
				err = w.Append(ctx, head, events(head, 1, 0), nil)
			}
			if err == nil {
				err = w.Close(ctx)
			}
			if err != nil {
				return fail(err)
			}
			fmt.Println("appended", head)
			n--
		}
	case "storm": // append to several sessions until killed; tell what is stored
		lines := make(chan string)
		for i := range 4 {
			go func() {
				id := session.ID(fmt.Sprintf("s%d", i))
				w, err := s.Create(ctx, header(id, 1), session.Meta{Root: id}, events(0, 3, 0), nil)
				for head := int64(3); err == nil; head += 3 {
					lines <- fmt.Sprintf("stored %s %d", id, head)
					err = w.Append(ctx, head, events(head, 3, 700), nil)
				}
				lines <- "error " + err.Error()
			}()
		}
		for {
			fmt.Println(<-lines)
		}
	}
	if err := s.Close(ctx); err != nil {
		return fail(err)
	}
	return 0
}

// other is another process at work.
type other struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func start(t *testing.T, role, path string) *other {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, pathEnv+"="+path)
	cmd.Stderr = os.Stderr
	o := &other{t: t, cmd: cmd}
	if o.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	o.out = bufio.NewScanner(out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended already
		_ = cmd.Wait()         // and was killed; its status says nothing
	})
	return o
}

func (o *other) line() string {
	o.t.Helper()
	if !o.out.Scan() {
		o.t.Fatalf("the other process said nothing more: %v", o.out.Err())
	}
	return o.out.Text()
}

func (o *other) expect(want string) {
	o.t.Helper()
	if got := o.line(); got != want {
		o.t.Fatalf("the other process said %q, want %q", got, want)
	}
}

func (o *other) say(line string) {
	o.t.Helper()
	if _, err := fmt.Fprintln(o.in, line); err != nil {
		o.t.Fatal(err)
	}
}

func (o *other) signal(sig syscall.Signal) {
	o.t.Helper()
	if err := o.cmd.Process.Signal(sig); err != nil {
		o.t.Fatal(err)
	}
}

// D18: two real processes contend for one session; the one that holds it is
// named, and its end frees it.
func TestTwoProcesses(t *testing.T) {
	path := newPath(t)
	o := start(t, "hold", path)
	o.expect("ready")
	s := mustOpen(t, path, normal)
	_, err := s.Open(t.Context(), "s")
	var owned *session.OwnedError
	if !errors.As(err, &owned) || owned.Owner.PID != o.cmd.Process.Pid {
		t.Fatalf("open: %v, want OwnedError by %d", err, o.cmd.Process.Pid)
	}
	o.say("more")
	o.expect("appended 1")
	if n := length(t, s, "s"); n != 2 {
		t.Fatalf("%d events", n)
	}
	if err := o.in.Close(); err != nil { // it closes its store and ends
		t.Fatal(err)
	}
	if err := o.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	w, err := s.Open(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append(t.Context(), 2, events(2, 1, 0), nil); err != nil {
		t.Fatal(err)
	}
}

// D18: two processes take turns; no event is lost, none stands twice.
func TestTwoProcessesTakeTurns(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, sqlite.Options{Heartbeat: time.Hour})
	w := create(t, s, "s", 0)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	const each = 15
	others := []*other{start(t, "race", path), start(t, "race", path)}
	seen := map[string]bool{}
	for _, o := range others {
		o.say(strconv.Itoa(each))
	}
	for _, o := range others {
		for range each {
			line := o.line()
			if !strings.HasPrefix(line, "appended ") || seen[line] {
				t.Fatalf("the other process said %q", line)
			}
			seen[line] = true
		}
	}
	if n := length(t, s, "s"); n != 2*each {
		t.Fatalf("%d events, want %d", n, 2*each)
	}
}

// D4, D21: killed while it appends, in groups: every acknowledged event is
// there, none twice, no batch by halves. The owner is a zombie then, which is no
// obstacle either: its heartbeat is far from old.
func TestKillWhileAppending(t *testing.T) {
	path := newPath(t)
	acked := map[session.ID]int64{}
	o := start(t, "storm", path)
	read := func() {
		var id session.ID
		var head int64
		line := o.out.Text()
		if _, err := fmt.Sscanf(line, "stored %s %d", &id, &head); err != nil {
			t.Fatalf("the other process said %q", line)
		}
		acked[id] = head
	}
	for len(acked) < 4 || acked["s0"] < 60 {
		if !o.out.Scan() {
			t.Fatal("the other process ended early")
		}
		read()
	}
	o.signal(syscall.SIGKILL)
	for o.out.Scan() {
		read()
	}
	// Not waited for yet: a zombie is as dead as it gets.
	s := mustOpen(t, path, normal)
	for id, head := range acked {
		w, err := s.Open(t.Context(), id)
		var owned *session.OwnedError
		for errors.As(err, &owned) { // its last threads are still ending
			owned = nil
			w, err = s.Open(t.Context(), id)
		}
		if err != nil {
			t.Fatalf("open %s: %v", id, err)
		}
		n := length(t, s, id)
		if n < head || n > head+3 || n%3 != 0 {
			t.Errorf("%s has %d events of which %d were acknowledged", id, n, head)
		}
		if err := w.Append(t.Context(), n, events(n, 1, 0), nil); err != nil {
			t.Errorf("append to %s: %v", id, err)
		}
	}
}

// A paused owner with an old heartbeat is taken over, and fenced out when it
// wakes up (design § 4).
func TestPausedProcessIsFencedOut(t *testing.T) {
	path := newPath(t)
	o := start(t, "hold", path)
	o.expect("ready")
	o.say("more")
	o.expect("appended 1")
	o.signal(syscall.SIGSTOP)
	early := mustOpen(t, path, normal)
	var owned *session.OwnedError
	if _, err := early.Open(t.Context(), "s"); !errors.As(err, &owned) {
		t.Fatalf("open before the take-over age: %v", err)
	}
	opt := normal
	opt.Now = func() time.Time { return time.Now().Add(16 * time.Second) }
	late := mustOpen(t, path, opt)
	w, err := late.Open(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append(t.Context(), 2, events(2, 1, 0), nil); err != nil {
		t.Fatal(err)
	}
	o.signal(syscall.SIGCONT)
	o.say("more")
	o.expect("fenced")
	if n := length(t, late, "s"); n != 3 {
		t.Fatalf("%d events", n)
	}
}
