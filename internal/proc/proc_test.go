//go:build unix

package proc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/offshoot-dev/offshoot/internal/proc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shell starts a script and closes the process at the end of the test.
func shell(t *testing.T, cfg proc.Config, script string) *proc.Process {
	t.Helper()
	cfg.Path, cfg.Args = "sh", []string{"-c", script}
	p, err := proc.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return p
}

func wait(t *testing.T, p *proc.Process) proc.Exit {
	t.Helper()
	exit, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return exit
}

func noMark(n int) string { return fmt.Sprintf("<%d>", n) }

func TestExitAndOutput(t *testing.T) {
	out := proc.NewCapture(1000, 0)
	p := shell(t, proc.Config{Stdout: out, Stderr: out, Dir: t.TempDir()}, `echo one; echo two >&2; cat; exit 7`)
	if got := wait(t, p); got != (proc.Exit{Code: 7}) {
		t.Errorf("exit %+v", got)
	}
	if got := out.Text(noMark); got != "one\ntwo\n" {
		t.Errorf("output %q", got)
	}
	p = shell(t, proc.Config{}, `kill -9 $$`)
	if got := wait(t, p); got != (proc.Exit{Code: -1, Signal: "SIGKILL"}) {
		t.Errorf("exit %+v", got)
	}
}

func TestPipes(t *testing.T) {
	p := shell(t, proc.Config{StdinPipe: true, StdoutPipe: true}, `while read l; do echo "<$l>"; done`)
	if _, err := io.WriteString(p.Stdin(), "a\nb\n"); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(p.Stdout())
	if err != nil || string(got) != "<a>\n<b>\n" {
		t.Errorf("read %q, %v", got, err)
	}
	if got := wait(t, p); got.Code != 0 {
		t.Errorf("exit %+v", got)
	}
}

func TestStartFails(t *testing.T) {
	for _, cfg := range []proc.Config{
		{Path: "/nonexistent/program"},
		{Path: "no-such-program-anywhere"},
		{Path: "sh", Dir: "/nonexistent"},
		{Path: "sh", StdoutPipe: true, Stdout: io.Discard},
	} {
		cfg.Stderr = io.Discard
		if _, err := proc.Start(cfg); err == nil || !strings.Contains(err.Error(), cfg.Path) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestScrubW34(t *testing.T) {
	in := []string{
		"PATH=/bin", "HOME=/h", "LANG=C", "OPENAI_API_KEY=1", "my_password_file=1", "AWS_Secret=1", "GH_TOKEN=1",
		"DSH_HOME=1", "OFFSHOOT_HOME=1", "X=a=b", "broken", "=C:=x",
	}
	want := []string{"PATH=/bin", "HOME=/h", "LANG=C", "X=a=b"}
	if diff := cmp.Diff(want, proc.Scrub(in)); diff != "" {
		t.Error(diff)
	}
	out := proc.NewCapture(1<<16, 0)
	p := shell(t, proc.Config{Stdout: out, Environ: append(in, "OFFSHOOT_PROC=outer"),
		Env: map[string]string{"GIVEN_TOKEN": "yes", "HOME": "/other"}}, `env`)
	wait(t, p)
	got := map[string]string{}
	for line := range strings.Lines(out.Text(noMark)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		got[name] = value
	}
	for _, shells := range []string{"PWD", "SHLVL", "_", "OLDPWD"} {
		delete(got, shells)
	}
	outer, mark, _ := strings.Cut(got["OFFSHOOT_PROC"], ":")
	if outer != "outer" || len(mark) < 20 {
		t.Errorf("marks %q", got["OFFSHOOT_PROC"])
	}
	delete(got, "OFFSHOOT_PROC")
	wantEnv := map[string]string{"PATH": "/bin", "HOME": "/other", "LANG": "C", "X": "a=b", "GIVEN_TOKEN": "yes"}
	if !maps.Equal(got, wantEnv) {
		t.Errorf("environment %v, want %v", got, wantEnv)
	}
}

// linger starts one process in the group, one in a session of its own, and one
// double-forked orphan in a session of its own, then says so. tail is what the
// script does next. The returned function lists which of them are alive.
func linger(t *testing.T, tail string) (script string, alive func() []string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("whole trees are ended on Linux only: there is no /proc elsewhere")
	}
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("setsid is not installed")
	}
	base := 100000 + rand.IntN(800000)
	arg := func(i int) string { return fmt.Sprintf("%d.%d", base, i) }
	script = fmt.Sprintf("sleep %s & setsid sleep %s & setsid sh -c 'sleep %s & exit' ; echo ready; %s", arg(1), arg(2), arg(3),
		strings.ReplaceAll(tail, "SLEEP", "sleep "+arg(4)))
	return script, func() []string {
		var found []string
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				continue // ended meanwhile
			}
			argv := bytes.Split(data, []byte{0})
			if len(argv) > 1 && string(argv[0]) == "sleep" && strings.HasPrefix(string(argv[1]), fmt.Sprint(base)) {
				found = append(found, string(argv[1]))
			}
		}
		slices.Sort(found)
		return found
	}
}

// latch is a writer that tells when something was written.
type latch struct{ ch chan struct{} }

func newLatch() *latch { return &latch{make(chan struct{}, 64)} }

func (l *latch) Write(b []byte) (int, error) {
	select {
	case l.ch <- struct{}{}:
	default:
	}
	return len(b), nil
}

func TestCloseEndsTheWholeTree(t *testing.T) {
	script, alive := linger(t, "SLEEP")
	ready := newLatch()
	p := shell(t, proc.Config{Stdout: ready}, script)
	<-ready.ch
	begin := time.Now()
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := alive(); len(left) > 0 {
		t.Errorf("left alive: %v", left)
	}
	if took := time.Since(begin); took > proc.DefaultGrace {
		t.Errorf("processes that obey SIGTERM took %v", took)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestExitEndsWhatIsLeft(t *testing.T) {
	script, alive := linger(t, "exit 3")
	out := proc.NewCapture(100, 0)
	p := shell(t, proc.Config{Stdout: out}, script)
	// All three hold the output pipe open; Wait must return nevertheless.
	got := wait(t, p)
	if got.Code != 3 || got.Left < 2 { // the orphan's sleep may not have begun yet
		t.Errorf("exit %+v", got)
	}
	if left := alive(); len(left) > 0 {
		t.Errorf("left alive: %v", left)
	}
	if got := out.Text(noMark); got != "ready\n" {
		t.Errorf("output %q", got)
	}
}

func TestLadder(t *testing.T) {
	t.Run("a process that ignores the request is killed after the grace", func(t *testing.T) {
		script, alive := linger(t, "trap '' TERM; echo; while :; do SLEEP; done")
		ready := newLatch()
		p := shell(t, proc.Config{Stdout: ready, Grace: 50 * time.Millisecond}, script)
		<-ready.ch
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := alive(); len(left) > 0 {
			t.Errorf("left alive: %v", left)
		}
	})
	t.Run("the end of ctx cuts the grace short", func(t *testing.T) {
		ready := newLatch()
		p := shell(t, proc.Config{Stdout: ready, Grace: time.Hour}, `trap '' TERM; echo ready; while :; do sleep 1; done`)
		<-ready.ch
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if got := wait(t, p); got.Signal != "SIGKILL" {
			t.Errorf("exit %+v", got)
		}
	})
	t.Run("a process that obeys ends itself", func(t *testing.T) {
		ready := newLatch()
		p := shell(t, proc.Config{Stdout: ready, Grace: time.Hour}, `trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done`)
		<-ready.ch
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := wait(t, p); got.Code != 5 {
			t.Errorf("exit %+v", got)
		}
	})
	t.Run("the end of the input is enough for one that reads", func(t *testing.T) {
		p := shell(t, proc.Config{StdinPipe: true, Grace: time.Hour}, `trap '' TERM; cat; exit 6`)
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := wait(t, p); got.Code != 6 && got.Signal != "SIGTERM" { // the trap may not be set yet
			t.Errorf("exit %+v", got)
		}
	})
}

func TestWaitHonoursContext(t *testing.T) {
	p := shell(t, proc.Config{Grace: -1}, `sleep 1000`)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := p.Wait(ctx); !errors.Is(err, why) {
		t.Errorf("wait: %v", err)
	}
	select {
	case <-p.Done():
		t.Error("the end of the waiting ended the process")
	default:
	}
}

func TestCapture(t *testing.T) {
	all := []byte(strings.Repeat("0123456789", 10))
	for chunk := 1; chunk <= len(all); chunk++ {
		c := proc.NewCapture(7, 13)
		for part := range slices.Chunk(all, chunk) {
			if n, err := c.Write(part); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		want := string(all[:7]) + "<80>" + string(all[87:])
		if got := c.Text(noMark); got != want || c.Total() != 100 {
			t.Errorf("chunks of %d: %q, total %d", chunk, got, c.Total())
		}
	}
	for _, tt := range []struct {
		head, tail int
		in, want   string
	}{
		{4, 4, "abcdefgh", "abcdefgh"},
		{4, 0, "abcdef", "abcd<2>"},
		{0, 4, "abcdef", "<2>cdef"},
		{4, 4, "äöü" + "€€€", "äö<8>€"}, // 15 bytes, cut between runes
		{3, 3, "äöüäöü", "ä<8>ü"},
	} {
		c := proc.NewCapture(tt.head, tt.tail)
		if _, err := io.WriteString(c, tt.in); err != nil {
			t.Fatal(err)
		}
		if got := c.Text(noMark); got != tt.want {
			t.Errorf("%d+%d of %q: %q, want %q", tt.head, tt.tail, tt.in, got, tt.want)
		}
	}
}

func BenchmarkRun(b *testing.B) {
	for b.Loop() {
		p, err := proc.Start(proc.Config{Path: "true"})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := p.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
