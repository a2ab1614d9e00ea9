//go:build unix

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// processBound is how long one process may take; only a hang needs it.
const processBound = 30 * time.Second

// bounded is a context for what a hang must not hold up.
func bounded(t *testing.T) context.Context { return within(t, processBound) }

func within(t *testing.T, bound time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	t.Cleanup(cancel)
	return ctx
}

// world is a home, a folder to work in, and an environment of its own.
type world struct {
	t    *testing.T
	home string
	cwd  string
	env  map[string]string
	exe  string // the program; "" is the test binary
	// patience is how long one process may take; 0 is processBound.
	patience time.Duration
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, home: filepath.Join(t.TempDir(), "home"), cwd: t.TempDir()}
	w.env = map[string]string{
		e2eEnv: "1", "GORACE": "atexit_sleep_ms=0", "PATH": os.Getenv("PATH"), "HOME": t.TempDir(),
		"OFFSHOOT_HOME": w.home, "TZ": "UTC",
	}
	return w
}

// The key of every fake endpoint: nothing may ever print it.
const secretKey = "sk-e2e-never-print-this-0123456789"

// newModelWorld is a world whose configured model is a fake endpoint, which is
// asked once and not again.
func newModelWorld(t *testing.T, d fakemodel.Dialect) (*world, *fakemodel.Server) {
	t.Helper()
	s, err := fakemodel.Open(fakemodel.Options{Dialect: d, Key: secretKey, Models: []string{"fake-model"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	w := newWorld(t)
	w.use(s, string(d))
	w.route(d, "maxRetries: 0")
	return w, s
}

// route configures the model and its route.
func (w *world) route(d fakemodel.Dialect, keys ...string) {
	w.t.Helper()
	text := fmt.Sprintf("version: 1\nmodel: %s:fake-model\nroutes:\n  %[1]s:\n    model: fake-model\n", d)
	for _, key := range keys {
		text += "    " + key + "\n"
	}
	w.write(filepath.Join(w.home, "config.yaml"), text)
}

// use points a vendor's own variables at a fake endpoint.
func (w *world) use(s *fakemodel.Server, vendor string) {
	prefix := strings.ToUpper(vendor)
	w.env[prefix+"_BASE_URL"], w.env[prefix+"_API_KEY"] = s.URL(), secretKey
}

func (w *world) write(path, text string) {
	w.t.Helper()
	if !filepath.IsAbs(path) {
		path = filepath.Join(w.cwd, path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// fifo makes a named pipe in the cwd; up waits until a command wrote to it.
func (w *world) fifo() (up func()) {
	w.t.Helper()
	path := filepath.Join(w.cwd, "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		w.t.Fatal(err)
	}
	return func() {
		w.t.Helper()
		// Opening it waits for the writer.
		if said, err := os.ReadFile(path); err != nil || len(said) == 0 {
			w.t.Fatalf("the fifo says %q, %v", said, err)
		}
	}
}

// with returns the world with a changed environment; "" removes a variable.
func (w *world) with(pairs ...string) *world {
	other := *w
	other.env = maps.Clone(w.env)
	for i := 0; i < len(pairs); i += 2 {
		other.env[pairs[i]] = pairs[i+1]
		if pairs[i+1] == "" {
			delete(other.env, pairs[i])
		}
	}
	return &other
}

// ended is how a process ended.
type ended struct {
	args           []string
	code           int // 128 + the signal for one that a signal ended
	stdout, stderr string
}

func (e ended) String() string {
	return fmt.Sprintf("offshoot %q: exit %d\nstdout: %s\nstderr: %s", e.args, e.code, brief(e.stdout), brief(e.stderr))
}

// brief cuts long lines.
func brief(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(clip(strings.TrimSuffix(line, "\n"), 300) + "\n")
	}
	return b.String()
}

// run runs the command to its end.
func (w *world) run(args ...string) ended {
	w.t.Helper()
	return w.start(args...).wait()
}

// ok is run for what must succeed.
func (w *world) ok(args ...string) ended {
	w.t.Helper()
	e := w.run(args...)
	if e.code != 0 {
		w.t.Fatalf("%v", e)
	}
	return e
}

// tail reads a stream of a running process line by line.
type tail struct {
	p   *process
	r   *bufio.Reader
	all bytes.Buffer
}

// line reads one line; "" is the end.
func (l *tail) line() string {
	l.p.w.t.Helper()
	line, err := l.r.ReadString('\n')
	l.all.WriteString(line)
	if err != nil && !errors.Is(err, io.EOF) {
		l.p.w.t.Fatal(err)
	}
	return line
}

// until reads lines up to one that contains text.
func (l *tail) until(text string) string {
	l.p.w.t.Helper()
	for {
		switch line := l.line(); {
		case line == "":
			l.p.w.t.Fatalf("the output ended without %q: %v", text, l.p.wait())
		case strings.Contains(line, text):
			return line
		}
	}
}

// rest reads to the end.
func (l *tail) rest() string {
	l.p.w.t.Helper()
	if _, err := io.Copy(&l.all, l.r); err != nil && !errors.Is(err, fs.ErrClosed) {
		l.p.w.t.Fatal(err)
	}
	return l.all.String()
}

// process is a running command.
type process struct {
	w              *world
	args           []string
	cmd            *exec.Cmd
	stdout, stderr *tail // of a stream that the test reads
	out, err       bytes.Buffer
}

func (w *world) prepare(args ...string) *process {
	w.t.Helper()
	exe := w.exe
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			w.t.Fatal(err)
		}
	}
	p := &process{w: w, args: args, cmd: exec.CommandContext(within(w.t, cmp.Or(w.patience, processBound)), exe, args...)}
	p.cmd.Dir = w.cwd
	for name, value := range w.env {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	return p
}

func (p *process) begin() *process {
	p.w.t.Helper()
	if err := p.cmd.Start(); err != nil {
		p.w.t.Fatal(err)
	}
	return p
}

func (w *world) start(args ...string) *process {
	w.t.Helper()
	return w.prepare(args...).begin()
}

// pipeStdout lets the test read stdout; it comes before begin.
func (p *process) pipeStdout() *tail {
	p.cmd.Stdout = nil
	p.stdout = p.tail(p.cmd.StdoutPipe())
	return p.stdout
}

// pipeStderr lets the test read stderr; it comes before begin.
func (p *process) pipeStderr() *tail {
	p.cmd.Stderr = nil
	p.stderr = p.tail(p.cmd.StderrPipe())
	return p.stderr
}

func (p *process) tail(r io.Reader, err error) *tail {
	p.w.t.Helper()
	if err != nil {
		p.w.t.Fatal(err)
	}
	return &tail{p: p, r: bufio.NewReader(r)}
}

func (p *process) signal(s syscall.Signal) {
	p.w.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.w.t.Fatal(err)
	}
}

// wait returns how the process ended.
func (p *process) wait() ended {
	p.w.t.Helper()
	e := ended{args: p.args}
	if p.stdout != nil {
		e.stdout = p.stdout.rest()
	}
	if p.stderr != nil {
		e.stderr = p.stderr.rest()
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.w.t.Fatal(err)
	}
	e.stdout, e.stderr, e.code = e.stdout+p.out.String(), e.stderr+p.err.String(), p.cmd.ProcessState.ExitCode()
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.code = 128 + int(ws.Signal())
	}
	if strings.Contains(e.stderr, "DATA RACE") {
		p.w.t.Errorf("%v", e)
	}
	return e
}

// modes checks that nobody else can read what lies in the home.
func (w *world) modes() {
	w.t.Helper()
	err := filepath.WalkDir(w.home, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if got := info.Mode().Perm(); got != want {
			w.t.Errorf("%s has mode %o", path, got)
		}
		return nil
	})
	if err != nil {
		w.t.Error(err)
	}
}

// noSecret checks that the key is in nothing that a process printed.
func noSecret(t *testing.T, e ended) {
	t.Helper()
	if strings.Contains(e.stdout+e.stderr, secretKey) {
		t.Errorf("the key was printed: %v", e)
	}
}

// lines splits a text into its lines.
func lines(text string) []string {
	return slices.Collect(func(yield func(string) bool) {
		for line := range strings.Lines(text) {
			if !yield(strings.TrimSuffix(line, "\n")) {
				return
			}
		}
	})
}
