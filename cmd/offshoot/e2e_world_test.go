//go:build unix

package main

import (
	"bufio"
	"bytes"
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
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// processBound is how long one process may take; only a hang needs it.
const processBound = 30 * time.Second

// world is a home, a folder to work in, and an environment of its own.
type world struct {
	t    *testing.T
	home string
	cwd  string
	env  map[string]string
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

// newModelWorld is a world whose configured model is a fake endpoint. routes
// holds more keys of the route, indented.
func newModelWorld(t *testing.T, d fakemodel.Dialect, routes string) (*world, *fakemodel.Server) {
	t.Helper()
	s, err := fakemodel.Open(fakemodel.Options{Dialect: d, Key: secretKey, Models: []string{"fake-model"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	w := newWorld(t)
	w.use(s, string(d))
	w.write(filepath.Join(w.home, "config.yaml"), fmt.Sprintf("version: 1\nmodel: %s:fake-model\nroutes:\n  %[1]s:\n    maxRetries: 0\n%s", d, routes))
	return w, s
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
	cancel         context.CancelFunc
	stdout, stderr *tail // of a stream that the test reads
	out, err       bytes.Buffer
}

func (w *world) prepare(args ...string) *process {
	w.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), processBound)
	p := &process{w: w, args: args, cancel: cancel, cmd: exec.CommandContext(ctx, exe, args...)}
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
	defer p.cancel()
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

// storedLog is one session as it lies in the store.
type storedLog struct {
	session.Record
	events []session.Event
	lines  []string
}

// child says that the session was delegated.
func (l *storedLog) child() bool { return l.Header.ParentSession != "" }

// types are the types of the events, in order.
func (l *storedLog) types() []string {
	var types []string
	for i := range l.events {
		types = append(types, string(l.events[i].Type))
	}
	return types
}

// payloads decodes the events of one type.
func payloads[P session.Payload](t *testing.T, l *storedLog) []P {
	t.Helper()
	reg, err := session.NewRegistry(t.Context(), session.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var all []P
	for _, e := range l.events {
		p, err := reg.PayloadOf(e)
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := p.(P); ok {
			all = append(all, p)
		}
	}
	return all
}

// said returns how often a text entered the conversation as a message of a person
// or a parent.
func said(t *testing.T, l *storedLog, text string) int {
	t.Helper()
	n := 0
	for _, m := range payloads[*session.UserMessage](t, l) {
		if message.JoinText(m.Message.Content) == text {
			n++
		}
	}
	return n
}

// ends returns the kinds of the turn ends.
func ends(t *testing.T, l *storedLog) []string {
	t.Helper()
	var kinds []string
	for _, e := range payloads[*session.TurnEnd](t, l) {
		kinds = append(kinds, string(e.Kind))
	}
	return kinds
}

// logs reads every stored session, oldest first; none where there is no store.
func (w *world) logs() []*storedLog {
	w.t.Helper()
	ctx := w.t.Context()
	s, err := sqlite.OpenReadOnly(ctx, filepath.Join(w.home, "offshoot.db"), sqlite.Options{})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() {
		if err := s.Close(context.WithoutCancel(ctx)); err != nil {
			w.t.Error(err)
		}
	}()
	list, err := s.List(ctx, session.Filter{}, session.Page{})
	if err != nil {
		w.t.Fatal(err)
	}
	var logs []*storedLog
	for _, rec := range list.Records {
		rec, events, err := s.Inspect(ctx, rec.Header.ID)
		if err != nil {
			w.t.Fatal(err)
		}
		l := &storedLog{Record: rec}
		for e, err := range events {
			if err != nil {
				w.t.Fatal(err)
			}
			l.events = append(l.events, e)
			l.lines = append(l.lines, string(e.AppendEnvelope(nil)))
		}
		logs = append(logs, l)
	}
	return logs
}

// root returns the only root session and its children.
func (w *world) tree() (root *storedLog, children []*storedLog) {
	w.t.Helper()
	for _, l := range w.logs() {
		switch {
		case l.child():
			children = append(children, l)
		case root != nil:
			w.t.Fatalf("a second root: %s and %s", root.Header.ID, l.Header.ID)
		default:
			root = l
		}
	}
	if root == nil {
		w.t.Fatal("no root session is stored")
	}
	return root, children
}

// verify has the command check everything that is stored.
func (w *world) verify() {
	w.t.Helper()
	if e := w.run("sessions", "verify"); e.code != 0 {
		w.t.Errorf("%v", e)
	}
}

// followUp proves that the log is legal for the next request: a strict endpoint
// takes it.
func (w *world) followUp(id session.ID) {
	w.t.Helper()
	e := w.run("resume", string(id), "[[fake:reply still here]]", "--quiet")
	if e.code != 0 || e.stdout != "still here\n" {
		w.t.Errorf("follow-up: %v", e)
	}
	w.verify()
}

// grew checks that every log of before is the beginning of the same log now, byte
// for byte: nothing that was stored is ever lost or changed.
func (w *world) grew(before []*storedLog) []*storedLog {
	w.t.Helper()
	after := w.logs()
	for _, old := range before {
		i := slices.IndexFunc(after, func(l *storedLog) bool { return l.Header.ID == old.Header.ID })
		switch {
		case i < 0:
			w.t.Errorf("session %s is gone", old.Header.ID)
		case len(after[i].lines) < len(old.lines) || !slices.Equal(after[i].lines[:len(old.lines)], old.lines):
			w.t.Errorf("session %s changed:\n%s\nwas\n%s", old.Header.ID, strings.Join(after[i].lines, "\n"), strings.Join(old.lines, "\n"))
		}
	}
	return after
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
