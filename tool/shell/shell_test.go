package shell_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/tool"
	"github.com/offshoot-dev/offshoot/tool/shell"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mount(t *testing.T, e shell.Executor, opts shell.Options) *tool.Scope {
	t.Helper()
	defs, err := shell.Tools(e, opts)
	if err != nil {
		t.Fatal(err)
	}
	s := tool.New().Root()
	for _, d := range defs {
		if d.ReadOnly || d.ConcurrencySafe != nil {
			t.Errorf("%s says that it is harmless", d.Name)
		}
		if _, err := s.Register(d); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func call(ctx context.Context, s *tool.Scope, cwd, args string) tool.Result {
	return s.Execute(ctx, tool.CallInput{ID: "c", Name: "bash", Args: args, Cwd: cwd}, tool.ExecOptions{})
}

func text(r tool.Result) string { return message.JoinText(r.Content) }

// fake answers with an Outcome and keeps the Spec.
type fake struct {
	spec shell.Spec
	out  shell.Outcome
	err  error
}

func (f *fake) Name() string { return "fake" }
func (f *fake) Run(_ context.Context, spec shell.Spec) (shell.Outcome, error) {
	f.spec = spec
	return f.out, f.err
}

func TestReport(t *testing.T) {
	tests := []struct {
		name string
		out  shell.Outcome
		err  error
		code string
		want string
	}{
		{"output", shell.Outcome{Output: "a\nb\n"}, nil, "", "a\nb"},
		{"nothing", shell.Outcome{}, nil, "", "[exit code 0, no output]"},
		{"a failing command is no failing tool", shell.Outcome{Output: "no", Code: 2}, nil, "", "no\n[exit code 2]"},
		{"signal", shell.Outcome{Code: -1, Signal: "SIGSEGV"}, nil, "", "[ended by signal SIGSEGV]"},
		{"background", shell.Outcome{Output: "x\n", Ended: 2}, nil, "", "x\n[background processes ended with the shell: 2]"},
		{"timeout", shell.Outcome{Output: "half\n", TimedOut: true, Code: -1, Signal: "SIGTERM"}, nil, tool.CodeTimeout,
			"Error: bash: the command was ended because it took longer than 2m0s\nhalf"},
		{"silent timeout", shell.Outcome{TimedOut: true}, nil, tool.CodeTimeout,
			"Error: bash: the command was ended because it took longer than 2m0s\n[it had printed nothing]"},
		{"cannot run", shell.Outcome{Code: -1}, errors.New("no shell"), tool.CodeToolFailed, "Error: bash: no shell"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := call(t.Context(), mount(t, &fake{out: tt.out, err: tt.err}, shell.Options{}), "/w", `{"command":"x"}`)
			if text(r) != tt.want || r.Code != tt.code {
				t.Errorf("code %q, text %q, want %q, %q", r.Code, text(r), tt.code, tt.want)
			}
			if !bytes.HasPrefix(r.Meta, []byte(`{"exitCode":`)) {
				t.Errorf("meta %s", r.Meta)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	f := &fake{}
	s := mount(t, f, shell.Options{MaxOutput: 100})
	if r := call(t.Context(), s, "/w", `{"command":"ls","timeout_ms":1500}`); r.IsError {
		t.Fatal(text(r))
	}
	want := shell.Spec{Command: "ls", Dir: "/w", Timeout: 1500 * time.Millisecond, MaxOutput: 100}
	if diff := cmp.Diff(want, f.spec); diff != "" {
		t.Error(diff)
	}
	for args, cwd := range map[string]string{
		`{}`: "/w", `{"command":" "}`: "/w", `{"command":"x","timeout_ms":600001}`: "/w", `{"command":"x","timeout_ms":0}`: "/w",
		`{"command":"x","cd":"y"}`: "/w", `{"command":"ok"}`: "",
	} {
		f.spec = shell.Spec{}
		if r := call(t.Context(), s, cwd, args); !r.IsError || f.spec.Command != "" {
			t.Errorf("%s in %q ran: %q", args, cwd, text(r))
		}
	}
	for _, bad := range []shell.Options{{MaxOutput: -1}, {DefaultTimeout: time.Hour}, {MaxTimeout: -1}} {
		if _, err := shell.Tools(f, bad); err == nil {
			t.Errorf("accepted %+v", bad)
		}
	}
}

func TestOneExecutorT32(t *testing.T) {
	var slot shell.Slot
	unmount, err := slot.Mount(&fake{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = slot.Mount(&shell.Local{})
	want := &shell.MountedError{Mounted: "fake", Refused: "local"}
	var got *shell.MountedError
	if !errors.As(err, &got) || *got != *want || !strings.Contains(err.Error(), `"fake"`) || !strings.Contains(err.Error(), `"local"`) {
		t.Errorf("second mount: %v", err)
	}
	unmount()
	if _, err := slot.Mount(&shell.Local{}); err != nil {
		t.Error(err)
	}
	unmount() // the handle of a mount that is gone must not end another
	if e := slot.Mounted(); e == nil || e.Name() != "local" {
		t.Errorf("mounted: %v", e)
	}
}

func TestLocal(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("processes are not supported on Windows")
	}
	t.Setenv("OFFSHOOT_TEST_VALUE", "leak")
	t.Setenv("SOME_API_KEY", "leak")
	dir := t.TempDir()
	s := mount(t, &shell.Local{Env: map[string]string{"GIVEN": "yes"}}, shell.Options{MaxOutput: 1000})
	for _, tt := range []struct{ name, command, want string }{
		{"streams in order", `echo 1; echo 2 >&2; echo 3`, "1\n2\n3"},
		{"exit code", `echo out; exit 3`, "out\n[exit code 3]"},
		{"signal", `kill -KILL $$`, "[ended by signal SIGKILL]"},
		{"no input", `cat; echo end`, "end"},
		{"cwd", `echo hi > f; cat f`, "hi"},
		{"scrubbed environment (W34)", `echo "$GIVEN,$SOME_API_KEY,$OFFSHOOT_TEST_VALUE"`, "yes,,"},
		{"invalid UTF-8", `printf 'a\377b'`, "a\uFFFDb"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if r := call(t.Context(), s, dir, `{"command":`+strconv.Quote(tt.command)+`}`); r.IsError || text(r) != tt.want {
				t.Errorf("got %q, want %q", text(r), tt.want)
			}
		})
	}
	if r := call(t.Context(), s, filepath.Join(dir, "none"), `{"command":"echo"}`); !r.IsError {
		t.Errorf("ran in a missing folder: %q", text(r))
	}
	t.Run("bounded output", func(t *testing.T) {
		r := call(t.Context(), s, dir, `{"command":"echo first; head -c 30000000 /dev/zero | tr '\\0' x; echo; echo last"}`)
		got := text(r)
		if len(got) > 1200 || !strings.HasPrefix(got, "first\nxx") || !strings.HasSuffix(got, "xx\nlast") ||
			!strings.Contains(got, shell.DroppedLine(29999012, 1000)) || !bytes.Contains(r.Meta, []byte(`"bytes":30000012`)) {
			t.Errorf("%d bytes: %.30q … %q, meta %s", len(got), got, got[len(got)-30:], r.Meta)
		}
	})
	// core D45: what the shell keeps by default is enough for 5 MiB; of it nothing is lost.
	t.Run("long output", func(t *testing.T) {
		const line = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde\n"
		want := strings.Repeat(line, 5<<20/len(line))
		r := call(t.Context(), mount(t, &shell.Local{}, shell.Options{}), dir, `{"command":"yes `+strings.TrimSpace(line)+` | head -c 5242880"}`)
		if r.IsError || r.Cut == nil {
			t.Fatalf("%d bytes, not cut", len(text(r)))
		}
		if got, lost := r.Cut.Texts(0); len(got) != 1 || lost != 0 || got[0]+"\n" != want || len(text(r)) > tool.DefaultLimit {
			t.Errorf("%d texts, %d bytes of %d, %d lost; the model reads %d", len(got), r.Cut.Size(), len(want), lost, len(text(r)))
		}
	})
	t.Run("sh where there is no bash", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		out, err := (&shell.Local{Shell: "/bin/sh"}).Run(t.Context(), shell.Spec{Command: "echo $0", Dir: dir, Timeout: time.Minute, MaxOutput: 100})
		if err != nil || out.Output != "/bin/sh\n" {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

// sleepers returns a command that starts a sleeping child, a sleeping grandchild
// and one in the background, and counts those alive.
func sleepers(t *testing.T) (start string, alive func() int) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the process table is read from /proc")
	}
	arg := fmt.Sprintf("%d.5", 100000+rand.IntN(800000))
	start = fmt.Sprintf("sleep %s & (sleep %s) & sh -c 'sleep %s; true' & ", arg, arg, arg)
	return start, func() int {
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, f := range files {
			if data, err := os.ReadFile(f); err == nil && bytes.Contains(data, []byte(arg)) {
				n++
			}
		}
		return n
	}
}

func TestNothingStaysBehind(t *testing.T) {
	s := mount(t, &shell.Local{}, shell.Options{})
	t.Run("timeout", func(t *testing.T) {
		start, alive := sleepers(t)
		r := call(t.Context(), s, t.TempDir(), `{"command":`+strconv.Quote("echo before; "+start+"wait")+`,"timeout_ms":300}`)
		if r.Code != tool.CodeTimeout || !strings.HasSuffix(text(r), "\nbefore") || !bytes.Contains(r.Meta, []byte(`"timedOut":true`)) {
			t.Errorf("%s %q", r.Code, text(r))
		}
		if n := alive(); n != 0 {
			t.Errorf("%d processes left", n)
		}
	})
	t.Run("cancel", func(t *testing.T) {
		start, alive := sleepers(t)
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan tool.Result, 1)
		fifo := filepath.Join(dir, "f")
		if r := call(t.Context(), s, dir, `{"command":"mkfifo f"}`); r.IsError {
			t.Fatal(text(r))
		}
		go func() {
			done <- call(ctx, s, dir, `{"command":`+strconv.Quote(start+"echo up > f; wait")+`}`)
		}()
		if _, err := os.ReadFile(fifo); err != nil { // opens when the command has started its children
			t.Fatal(err)
		}
		cancel()
		if r := <-done; r.Code != tool.CodeAborted {
			t.Errorf("%s %q", r.Code, text(r))
		}
		if n := alive(); n != 0 {
			t.Errorf("%d processes left", n)
		}
	})
	t.Run("a background child that holds the pipe does not hang the call", func(t *testing.T) {
		start, alive := sleepers(t)
		r := call(t.Context(), s, t.TempDir(), `{"command":`+strconv.Quote(start+"echo done")+`}`)
		if r.IsError || !strings.HasPrefix(text(r), "done\n[background processes ended with the shell: ") {
			t.Errorf("%s %q", r.Code, text(r))
		}
		if n := alive(); n != 0 {
			t.Errorf("%d processes left", n)
		}
	})
	t.Run("cancelled before it starts", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := (&shell.Local{}).Run(ctx, shell.Spec{Command: "touch f", Dir: t.TempDir(), Timeout: time.Minute}); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}

func TestDescribe(t *testing.T) {
	defs, err := shell.Tools(&fake{}, shell.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		`{"command":"go test ./..."}`:                    "$ go test ./...",
		`{"command":"a\nb"}`:                             "$ a…",
		`{"command":"` + strings.Repeat("ä", 100) + `"}`: "$ " + strings.Repeat("ä", 80) + "…",
		`{`: "",
	} {
		if got := defs[0].Describe([]byte(args)); got != want {
			t.Errorf("%s: %q", args, got)
		}
	}
	if n := len(defs[0].Description); n == 0 || n > 2000 {
		t.Errorf("description of %d bytes", n)
	}
}
