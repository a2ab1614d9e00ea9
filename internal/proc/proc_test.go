//go:build unix

package proc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/offshoot-dev/offshoot/internal/proc"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(helperVar); kind != "" {
		helper(kind)
	}
	proc.Supervise()
	goleak.VerifyTestMain(m)
}

// helperVar makes the test binary a program of its own; see helper.
const helperVar = "PROC_TEST_HELPER"

// helper is a program that starts the shell script that it is given and waits for
// its end. It is run by tests that kill it.
func helper(kind string) {
	if kind == "supervised" {
		proc.Supervise()
	}
	p, err := proc.Start(proc.Config{Path: "sh", Args: []string{"-c", os.Args[1]}, Stdout: os.Stdout, Stderr: os.Stderr})
	if err == nil {
		_, err = p.Wait(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(3)
}

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

func TestExitAndOutput(t *testing.T) { inModes(t, testExitAndOutput) }

func testExitAndOutput(t *testing.T) {
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

func TestPipes(t *testing.T) { inModes(t, testPipes) }

func testPipes(t *testing.T) {
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

func TestStartFails(t *testing.T) { inModes(t, testStartFails) }

func testStartFails(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cfg  proc.Config
		want error
	}{
		{proc.Config{Path: "/nonexistent/program"}, fs.ErrNotExist},
		{proc.Config{Path: "no-such-program-anywhere"}, exec.ErrNotFound},
		{proc.Config{Path: plain}, fs.ErrPermission},
		{proc.Config{Path: "sh", Dir: "/nonexistent"}, fs.ErrNotExist},
		{proc.Config{Path: "sh", StdoutPipe: true, Stdout: io.Discard}, nil},
		{proc.Config{Path: "sh", EOFGrace: time.Second}, nil},
		{proc.Config{Path: "sh", Args: []string{"a\x00b"}}, nil},
	} {
		tt.cfg.Stderr = io.Discard
		_, err := proc.Start(tt.cfg)
		if err == nil || !strings.Contains(err.Error(), tt.cfg.Path) || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%+v: %v", tt.cfg, err)
		}
	}
}

func TestScrubW34(t *testing.T) { inModes(t, testScrubW34) }

func testScrubW34(t *testing.T) {
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

func TestCloseEndsTheWholeTree(t *testing.T) { inModes(t, testCloseEndsTheWholeTree) }

func testCloseEndsTheWholeTree(t *testing.T) {
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

func TestExitEndsWhatIsLeft(t *testing.T) { inModes(t, testExitEndsWhatIsLeft) }

func testExitEndsWhatIsLeft(t *testing.T) {
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

func TestLadder(t *testing.T) { inModes(t, testLadder) }

func testLadder(t *testing.T) {
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
		p := shell(t, proc.Config{StdinPipe: true, EOFGrace: time.Hour, Grace: time.Hour}, `trap 'exit 5' TERM; cat; exit 6`)
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := wait(t, p); got.Code != 6 {
			t.Errorf("exit %+v", got)
		}
	})
	t.Run("one that does not read is asked to end", func(t *testing.T) {
		ready := newLatch()
		p := shell(t, proc.Config{StdinPipe: true, Stdout: ready, EOFGrace: 20 * time.Millisecond, Grace: time.Hour},
			`trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done`)
		<-ready.ch
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := wait(t, p); got.Code != 5 {
			t.Errorf("exit %+v", got)
		}
	})
	t.Run("the end of ctx cuts both graces short", func(t *testing.T) {
		ready := newLatch()
		p := shell(t, proc.Config{StdinPipe: true, Stdout: ready, EOFGrace: time.Hour, Grace: time.Hour},
			`trap '' TERM; echo ready; while :; do sleep 1; done`)
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
	t.Run("so does a kill", func(t *testing.T) {
		ready := newLatch()
		p := shell(t, proc.Config{StdinPipe: true, Stdout: ready, EOFGrace: time.Hour, Grace: time.Hour},
			`trap '' TERM; echo ready; while :; do sleep 1; done`)
		<-ready.ch
		closed := make(chan error, 1)
		go func() { closed <- p.Close(t.Context()) }()
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if got := wait(t, p); got.Signal != "SIGKILL" {
			t.Errorf("exit %+v", got)
		}
	})
	t.Run("what is started later and left alone is asked too", func(t *testing.T) {
		// The trap comes last: a shell with one loses signals between its fork and its exec.
		script, alive := linger(t, `trap 'setsid -f SLEEP; exit 5' TERM; echo ready; while :; do sleep 0.01; done`)
		ready := newLatch()
		p := shell(t, proc.Config{Stdout: ready, Grace: time.Hour}, strings.Replace(script, "echo ready", ":", 1))
		<-ready.ch
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := wait(t, p); got.Code != 5 || got.Left != 0 {
			t.Errorf("exit %+v", got)
		}
		if left := alive(); len(left) > 0 {
			t.Errorf("left alive: %v", left)
		}
	})
	t.Run("what is started in order to end well is not", func(t *testing.T) {
		told := filepath.Join(t.TempDir(), "told")
		ready := newLatch()
		p := shell(t, proc.Config{Stdout: ready, Grace: time.Hour},
			`trap 'sh -c "sleep 0.1; echo >`+told+`"; exit 5' TERM; echo ready; while :; do sleep 0.01; done`)
		<-ready.ch
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(told); err != nil {
			t.Errorf("it was ended before it was done: %v", err)
		}
	})
	t.Run("what the first process leaves at the end of its input is asked to end", func(t *testing.T) {
		script, alive := linger(t, "cat") // for the skips
		told := filepath.Join(t.TempDir(), "told")
		ready := newLatch()
		p := shell(t, proc.Config{StdinPipe: true, Stdout: ready, EOFGrace: time.Hour, Grace: time.Hour},
			`setsid sh -c 'trap "echo >`+told+`; exit" TERM; echo ready; while :; do sleep 0.01; done' & `+strings.Replace(script, "echo ready", ":", 1))
		<-ready.ch
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := wait(t, p); got != (proc.Exit{}) {
			t.Errorf("exit %+v", got)
		}
		if _, err := os.Stat(told); err != nil {
			t.Errorf("it was not asked: %v", err)
		}
		if left := alive(); len(left) > 0 {
			t.Errorf("left alive: %v", left)
		}
	})
}

// The exit of the first process and the end of the tree are two events.
func TestExited(t *testing.T) { inModes(t, testExited) }

func testExited(t *testing.T) {
	linger(t, "") // for the skips
	gate := fifo(t)
	ready := newLatch()
	p := shell(t, proc.Config{StdinPipe: true, Stdout: ready, EOFGrace: time.Hour, Grace: time.Hour},
		`setsid sh -c 'trap "" TERM; echo ready; read x <`+gate+`' & cat; exit 4`)
	<-ready.ch
	select {
	case <-p.Exited():
		t.Error("it has not exited")
	default:
	}
	closed := make(chan error, 1)
	go func() { closed <- p.Close(t.Context()) }()
	<-p.Exited()
	select {
	case <-p.Done():
		t.Error("the tree has not ended")
	default:
	}
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if got := wait(t, p); got != (proc.Exit{Code: 4}) {
		t.Errorf("exit %+v", got)
	}
}

// fifo makes a named pipe.
func fifo(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A child that closes its output has ended it, although it goes on.
func TestOutputEndsWithTheChildsOwn(t *testing.T) {
	inModes(t, func(t *testing.T) {
		p := shell(t, proc.Config{StdinPipe: true, StdoutPipe: true, EOFGrace: time.Hour}, `echo out; exec >&-; read x; exit 3`)
		got, err := io.ReadAll(p.Stdout())
		if err != nil || string(got) != "out\n" {
			t.Errorf("read %q, %v", got, err)
		}
		select {
		case <-p.Exited():
			t.Error("it has exited")
		default:
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := wait(t, p); got.Code != 3 {
			t.Errorf("exit %+v", got)
		}
	})
}

// W18: what a child says on the side never holds it up, and is kept within a bound.
func TestNoise(t *testing.T) {
	inModes(t, func(t *testing.T) {
		lines := proc.NewLines(3, 100)
		p := shell(t, proc.Config{StdoutPipe: true, Stderr: lines}, `i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo "line $i" >&2; done; echo >&2; printf rest >&2; echo done`)
		got, err := io.ReadAll(p.Stdout())
		if err != nil || string(got) != "done\n" {
			t.Errorf("read %q, %v", got, err)
		}
		wait(t, p)
		if diff := cmp.Diff([]string{"line 19999", "line 20000", "rest"}, lines.Lines()); diff != "" {
			t.Error(diff)
		}
	})
}

// However Start, the exit, Kill and Close meet, the end is one.
func TestRaces(t *testing.T) {
	inModes(t, func(t *testing.T) {
		for i := range 20 {
			p, err := proc.Start(proc.Config{Path: "sh", Args: []string{"-c", "exit 2"}, StdinPipe: true, StdoutPipe: true, EOFGrace: time.Duration(i%2) * time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			var calls sync.WaitGroup
			calls.Go(func() {
				if err := p.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
			if i%3 == 0 {
				calls.Go(func() {
					if err := p.Kill(); err != nil {
						t.Error(err)
					}
				})
			}
			calls.Wait()
			switch got := wait(t, p); got {
			case proc.Exit{Code: 2}, proc.Exit{Code: -1, Signal: "SIGTERM"}, proc.Exit{Code: -1, Signal: "SIGKILL"}:
			default:
				t.Errorf("exit %+v", got)
			}
		}
	})
}

func TestWaitHonoursContext(t *testing.T) { inModes(t, testWaitHonoursContext) }

func testWaitHonoursContext(t *testing.T) {
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

func TestLines(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []string
		want []string
	}{
		{"nothing", nil, nil},
		{"blank lines are none", []string{"\n \r\n\t"}, nil},
		{"lines in pieces", []string{"a", "b\nc", "\n"}, []string{"ab", "c"}},
		{"what is not ended counts", []string{"a\nb"}, []string{"a", "b"}},
		{"the last ones", []string{"1\n2\n3\n4\n", "5\n"}, []string{"3", "4", "5"}},
		{"the last ones, one not ended", []string{"1\n2\n3\n4"}, []string{"2", "3", "4"}},
		{"a long line is cut", []string{"0123456", "789", "abc\nx\n"}, []string{"01234567", "x"}},
		{"between runes", []string{"1234567ä\n"}, []string{"1234567"}},
	} {
		lines := proc.NewLines(3, 8)
		for _, part := range tt.in {
			if n, err := io.WriteString(lines, part); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		for range 2 { // reading changes nothing
			if diff := cmp.Diff(tt.want, lines.Lines()); diff != "" {
				t.Errorf("%s: %s", tt.name, diff)
			}
		}
	}
}

func BenchmarkRun(b *testing.B) {
	for _, mode := range modes() {
		b.Run(mode.name, func(b *testing.B) {
			mode.set(b)
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
		})
	}
}

// A mode is a way to run a process that this system has.
type mode struct {
	name       string
	supervised bool
}

func modes() []mode {
	all := []mode{{"alone", false}}
	if runtime.GOOS == "linux" {
		all = append(all, mode{"supervised", true})
	}
	return all
}

// set selects the mode until the test ends.
func (m mode) set(t testing.TB) {
	before := proc.Supervised()
	proc.SetSupervised(m.supervised)
	t.Cleanup(func() { proc.SetSupervised(before) })
}

// inModes runs a test in every mode.
func inModes(t *testing.T, f func(t *testing.T)) {
	for _, mode := range modes() {
		t.Run(mode.name, func(t *testing.T) {
			mode.set(t)
			f(t)
		})
	}
}
