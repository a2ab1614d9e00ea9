package claudecode_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/fakeagent"
	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/claudecode"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// fake returns a provider whose product is this test binary.
func fake(t testing.TB, faults string, change func(*claudecode.Config)) *claudecode.Provider {
	t.Helper()
	cfg := claudecode.Config{Config: external.Config{
		Env:      map[string]string{fakeagent.As: "claude-code", fakeagent.Variable: faults, "XDG_RUNTIME_DIR": ""},
		EOFGrace: 200 * time.Millisecond, Grace: 200 * time.Millisecond,
	}}
	if change != nil {
		change(&cfg)
	}
	return provider(t, cfg)
}

// system registers a provider in a system of its own.
func system(t testing.TB, p *claudecode.Provider, o subagenttest.Options) *subagenttest.System {
	t.Helper()
	s := subagenttest.NewSystem(t, o)
	s.Register(t, p)
	return s
}

// gone checks that the provider's processes have ended with the run.
func gone(t testing.TB, p *claudecode.Provider) {
	t.Helper()
	if n := claudecode.Active(p); n != 0 {
		t.Errorf("%d children hold a process", n)
	}
}

// check compares a result.
func check(t testing.TB, res subagent.Result, reason subagent.StopReason, text, diagnostic string) {
	t.Helper()
	if got := message.JoinText(res.Output); res.StopReason != reason || got != text || res.Diagnostic != diagnostic {
		t.Errorf("%s, %q, %d bytes %.60q; want %s, %q, %.60q", res.StopReason, res.Diagnostic, len(got), got, reason, diagnostic, text)
	}
}

// OOPX-16, OOPX-23…25, OOPX-27: what a run comes to. Nothing of what the product wrote is in a
// diagnostic.
func TestRuns(t *testing.T) {
	const ended = "the product's process ended in the middle of its work: exit status "
	for name, c := range map[string]struct {
		faults, prompt   string
		reason           subagent.StopReason
		text, diagnostic string
	}{
		"reply":              {prompt: "[[agent:say hello]]", reason: "completed", text: "hello"},
		"many pieces":        {prompt: "[[agent:say " + strings.Repeat("0123456789", 1000) + "]][[agent:pieces 10000]]", reason: "completed", text: strings.Repeat("0123456789", 1000)},
		"a line of 5 MB":     {prompt: "[[agent:big 5242880]]", reason: "completed", text: strings.Repeat("x", 5<<20)},
		"late messages":      {prompt: "[[agent:say hello]][[agent:noise late]]", reason: "completed", text: "hello"},
		"garbage":            {faults: "handshake=garbage", prompt: "[[agent:say hello]][[agent:noise garbage]]", reason: "completed", text: "hello"},
		"unknown message":    {faults: "session=long", prompt: "[[agent:say hello]][[agent:noise notice]]", reason: "completed", text: "hello"},
		"no command":         {prompt: "/cost [[agent:say hello]]", reason: "completed", text: "hello"},
		"blank":              {prompt: "[[agent:say   ]]", reason: "error", diagnostic: "the agent ended without an answer"},
		"nothing":            {prompt: "x", reason: "error", diagnostic: "the agent ended without an answer"},
		"token limit":        {prompt: "[[agent:say part]][[agent:end max-tokens]]", reason: "max-tokens", text: "part"},
		"refusal":            {prompt: "[[agent:say part]][[agent:end refusal]]", reason: "refusal", text: "part"},
		"failure":            {prompt: "[[agent:say part]][[agent:end error]]", reason: "error", text: "part", diagnostic: "the product could not get an answer of its model: server_error (HTTP status 500)"},
		"unknown failure":    {prompt: "[[agent:say part]][[agent:end new-fault]]", reason: "error", text: "part", diagnostic: "the product could not get an answer of its model: unknown"},
		"turns":              {prompt: "[[agent:say part]][[agent:end error_max_turns]]", reason: "error", text: "part", diagnostic: "the product's turn failed: error_max_turns"},
		"stopped by itself":  {prompt: "[[agent:say part]][[agent:end aborted]]", reason: "error", text: "part", diagnostic: "the product's turn failed: error_during_execution"},
		"unknown end":        {prompt: "[[agent:say part]][[agent:end unknown]]", reason: "error", text: "part", diagnostic: "the product's turn failed: unknown"},
		"dies at the prompt": {faults: "session=exit:3", prompt: "x", reason: "error", diagnostic: ended + "3"},
		"dies in its turn":   {faults: "prompt=exit:3", prompt: "x", reason: "error", diagnostic: ended + "3"},
		"dies mid-answer":    {prompt: "[[agent:say part]][[agent:exit 4]]", reason: "error", text: "part", diagnostic: ended + "4"},
		"refuses the prompt": {faults: "prompt=error", prompt: "x", reason: "error", diagnostic: "the product's turn failed: error_during_execution"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := fake(t, c.faults, nil)
			s := system(t, p, subagenttest.Options{})
			res := subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), subagenttest.Request(s.Parent(t), c.prompt)))
			check(t, res, c.reason, c.text, c.diagnostic)
			gone(t, p)
		})
	}
}

// OOPX-08, OOPX-11, OOPX-22, OOPX-27: a start that fails says where, in fixed words.
func TestStartFails(t *testing.T) {
	bypassed := []string{"--permission-mode", "bypassPermissions"}
	for name, c := range map[string]struct {
		faults string
		change func(*claudecode.Config)
		want   string
	}{
		"dies at once":       {faults: "start=exit:7", want: "handshake: the program ended: exit status 7"},
		"dies when asked":    {faults: "handshake=exit:8", want: "handshake: the program ended: exit status 8"},
		"silent":             {faults: "start=silent", want: "handshake: it was not ready within 300ms"},
		"silent when asked":  {faults: "handshake=silent", want: "handshake: it was not ready within 300ms"},
		"refuses":            {faults: "handshake=error", want: "handshake: the product refused the handshake"},
		"too old":            {faults: "handshake=version", want: "handshake: this version of the product is too old; version 2 is needed"},
		"another mode":       {change: func(c *claudecode.Config) { c.Args = bypassed }, want: "handshake: the product is not in the permission mode that was asked for (dontAsk)"},
		"another mode, asks": {change: func(c *claudecode.Config) { c.Args, c.Permission = bypassed, external.Ask }, want: "handshake: the product is not in the permission mode that was asked for (default)"},
		"is not installed":   {change: func(c *claudecode.Config) { c.Command = "no-such-program" }, want: `find the program: "no-such-program" is not installed, or not in PATH. Claude Code is installed with npm install -g @anthropic-ai/claude-code.`},
		"is deaf to its end": {faults: "handshake=silent ignore=eof ignore=term", want: "handshake: it was not ready within 300ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := fake(t, c.faults, func(cfg *claudecode.Config) {
				if strings.Contains(c.faults, "silent") {
					cfg.StartTimeout = 300 * time.Millisecond
				}
				if c.change != nil {
					c.change(cfg)
				}
			})
			s := system(t, p, subagenttest.Options{})
			_, err := s.Service.Start(t.Context(), p.Name(), subagenttest.Request(s.Parent(t), "x"))
			if !errors.Is(err, subagent.ErrStartFailed) || !strings.HasSuffix(err.Error(), p.Name()+": "+c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			gone(t, p)
		})
	}
}

// OOPX-06, OOPX-07, OOPX-10: a cancel settles at once with what was said, whatever the product
// does; Close returns when its processes are gone.
func TestCancel(t *testing.T) {
	for name, c := range map[string]struct{ faults, prompt, text string }{
		"silent":          {prompt: "[[agent:hang]]", text: "I begin."},
		"mid-stream":      {prompt: "[[agent:say part]][[agent:pieces 2]][[agent:hang]]", text: "part"},
		"deaf to its end": {faults: "ignore=eof ignore=term", prompt: "[[agent:say part]][[agent:hang]]", text: "part"},
	} {
		for _, byClose := range []bool{false, true} {
			t.Run(name+" by Close "+strconv.FormatBool(byClose), func(t *testing.T) {
				t.Parallel()
				lines := filepath.Join(t.TempDir(), "lines")
				p := fake(t, c.faults+" record="+lines, nil)
				s := system(t, p, subagenttest.Options{})
				ctx, cancel := context.WithCancel(t.Context())
				run := s.Start(t, ctx, p.Name(), subagenttest.Request(s.Parent(t), c.prompt))
				for claudecode.Said(run) != c.text {
					<-time.After(time.Millisecond)
				}
				if !byClose {
					cancel()
				} else if err := run.Close(t.Context()); err != nil {
					t.Error(err)
				}
				check(t, subagenttest.Await(t, run), subagent.StopAborted, c.text, "")
				cancel()
				if got, err := os.ReadFile(lines); err != nil || strings.Count(string(got), `"subtype":"interrupt"`) != 1 {
					t.Errorf("it was told %s, %v", got, err)
				}
				gone(t, p)
			})
		}
	}
}

// A cancel during the handshake leaves nothing (OOPX-08).
func TestCancelledStart(t *testing.T) {
	p := fake(t, "handshake=silent", nil)
	s := system(t, p, subagenttest.Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	time.AfterFunc(100*time.Millisecond, func() { cancel(stop) })
	if _, err := s.Service.Start(ctx, p.Name(), subagenttest.Request(s.Parent(t), "x")); !errors.Is(err, stop) {
		t.Errorf("%v, want the cause", err)
	}
	gone(t, p)
}

// SO-01, COMP-08, RUN-12: an answer in the form of a schema.
func TestStructured(t *testing.T) {
	p := fake(t, "", nil)
	s := system(t, p, subagenttest.Options{})
	for prompt, want := range map[string]string{
		`[[agent:say so]][[agent:structured {"n":9007199254740991}]]`: `{"n":9007199254740991}`,
		`[[agent:say so]][[agent:structured {"n":"1"}]]`:              "",
		`[[agent:say {"n":1}]]`:                                       "",
	} {
		req := subagenttest.Request(s.Parent(t), prompt)
		req.OutputSchema = []byte(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`)
		res := subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), req))
		if string(res.Structured) != want || (res.StopReason == subagent.StopCompleted) != (want != "") {
			t.Errorf("%s: %+v, want %s", prompt, res, want)
		}
	}
	gone(t, p)
}

// approver decides on every question, or lets it stand until it is withdrawn.
type approver struct {
	outcome tool.ApprovalOutcome
	asked   chan struct{} // closed at the first question, which then stands
	left    chan struct{} // closed when that is withdrawn; may be nil
	late    time.Duration // how long the withdrawal of a question takes
}

func (a approver) Approve(ctx context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
	if len(req.Path) != 2 || req.Deadline.IsZero() || req.Tool != "claude-code:Bash" || req.CallID != "toolu_1" || !strings.HasPrefix(req.Summary, `Bash {"command":`) {
		return "", errors.New("not the question that was expected")
	}
	if a.asked != nil {
		close(a.asked)
		<-ctx.Done()
		if a.left != nil {
			close(a.left)
		}
		<-time.After(a.late)
		return tool.ApprovalCancelled, context.Cause(ctx)
	}
	return a.outcome, nil
}

// record is what the parent's log holds of permissions.
func record(parent *agent.Agent) string {
	var all []string
	for e := range parent.Session().Events(0) {
		switch p := e.Payload().(type) {
		case *session.ApprovalAsked:
			all = append(all, "asked")
		case *session.ApprovalDecided:
			all = append(all, p.Outcome)
		}
	}
	return strings.Join(all, " ")
}

// OOPX-16, OOPX-22: what a permission gets, seen by what was done; every decision stands in
// the parent's log.
func TestPermission(t *testing.T) {
	for name, c := range map[string]struct {
		permission external.Permission
		policy     tool.Policy
		approver   tool.Approver
		said       string // by the product of its own request
		recorded   string
		done       bool
	}{
		"denied":           {permission: external.Deny, said: "rejected", recorded: "asked rejected"},
		"by default":       {said: "rejected", recorded: "asked rejected"},
		"allowed":          {permission: external.Allow, said: "allowed", recorded: "asked allowed-once", done: true},
		"asked, allowed":   {permission: external.Ask, approver: approver{outcome: tool.ApprovalAllowedOnce}, said: "allowed", recorded: "asked allowed-once", done: true},
		"asked, rejected":  {permission: external.Ask, approver: approver{outcome: tool.ApprovalRejected}, said: "rejected", recorded: "asked rejected"},
		"asked, dismissed": {permission: external.Ask, approver: approver{outcome: tool.ApprovalCancelled}, said: "rejected", recorded: "asked cancelled"},
		"nobody there":     {permission: external.Ask, said: "rejected", recorded: "asked unavailable"},
		"ceiling asks":     {permission: external.Allow, policy: tool.PolicyAsk, approver: approver{outcome: tool.ApprovalRejected}, said: "rejected", recorded: "asked rejected"},
		"ceiling denies":   {permission: external.Allow, policy: tool.PolicyDeny, said: "no such tool"},
		"ceiling reads":    {permission: external.Allow, policy: tool.PolicyReadOnly, said: "no such tool"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := fake(t, "", func(cfg *claudecode.Config) {
				cfg.Permission, cfg.Dir = c.permission, dir
				if c.policy != "" {
					cfg.Policy = func(*agent.Agent) tool.Policy { return c.policy }
				}
			})
			s := system(t, p, subagenttest.Options{Approver: c.approver})
			parent := s.Parent(t)
			res := subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), subagenttest.Request(parent, "[[agent:run touch marker]][[agent:say end]]")))
			check(t, res, subagent.StopCompleted, c.said+" end", "")
			if got := record(parent); got != c.recorded {
				t.Errorf("on record %q, want %q", got, c.recorded)
			}
			if _, err := os.Stat(filepath.Join(dir, "marker")); (err == nil) != c.done {
				t.Errorf("the marker: %v, want done %v", err, c.done)
			}
			gone(t, p)
		})
	}
}

// A question to a person ends with the run, which is not closed before.
func TestCancelWhileAsked(t *testing.T) {
	p := fake(t, "", func(c *claudecode.Config) { c.Permission = external.Ask })
	a := approver{asked: make(chan struct{}), late: 50 * time.Millisecond}
	s := system(t, p, subagenttest.Options{Approver: a})
	parent := s.Parent(t)
	ctx, cancel := context.WithCancel(t.Context())
	run := s.Start(t, ctx, p.Name(), subagenttest.Request(parent, "[[agent:run touch marker]][[agent:say end]]"))
	<-a.asked
	cancel()
	check(t, subagenttest.Await(t, run), subagent.StopAborted, "I begin.", "")
	if got := record(parent); got != "asked cancelled" {
		t.Errorf("on record %q", got)
	}
	gone(t, p)
}

// OOPX-12, OOPX-20, OOPX-31: what the product is started with.
func TestCommand(t *testing.T) {
	var got proc.Config
	start := func(t *testing.T, change func(*claudecode.Config), ask func(*subagent.Request)) error {
		t.Helper()
		cfg := claudecode.Config{Config: external.Config{Env: map[string]string{"ANTHROPIC_API_KEY": "k"}}}
		change(&cfg)
		p := provider(t, cfg)
		claudecode.Launch(p, func(c proc.Config) (remote.Link, error) {
			got = c
			return nil, errors.New("not today")
		})
		s := system(t, p, subagenttest.Options{})
		req := subagenttest.Request(s.Parent(t), "x")
		if ask != nil {
			ask(&req)
		}
		_, err := s.Service.Start(t.Context(), p.Name(), req)
		return err
	}
	has := func(t *testing.T, want bool, args ...string) {
		t.Helper()
		for _, arg := range args {
			if slices.Contains(got.Args, arg) != want {
				t.Errorf("%q: has %s: %v, want %v", got.Args, arg, !want, want)
			}
		}
	}
	always := []string{"-p", "--output-format=stream-json", "--input-format=stream-json", "--verbose", "--include-partial-messages", "--permission-prompt-tool=stdio", "--no-session-persistence"}
	reading := []string{"--tools=Read,Grep,Glob", "--strict-mcp-config", `--settings={"disableAllHooks":true}`, "--setting-sources=user", "--disable-slash-commands"}
	reads := func(c *claudecode.Config) {
		c.Permission = external.Allow
		c.Policy = func(*agent.Agent) tool.Policy { return tool.PolicyReadOnly }
	}
	t.Run("denied", func(t *testing.T) {
		_ = start(t, func(*claudecode.Config) {}, nil) // the start was refused
		has(t, true, append(always, "--permission-mode=dontAsk")...)
		has(t, false, reading...)
		if got.Env["ANTHROPIC_API_KEY"] != "k" || got.Env["CLAUDE_CODE_SAFE_MODE"] != "" || got.EOFGrace != 500*time.Millisecond || got.Grace != 3*time.Second {
			t.Errorf("%+v", got)
		}
	})
	t.Run("allowed, with all that can be said", func(t *testing.T) {
		schema := `{"type":"object","properties":{}}`
		_ = start(t, func(c *claudecode.Config) { c.Permission, c.Model, c.MaxTurns = external.Allow, "mine", 3 }, func(r *subagent.Request) { // the start was refused
			r.Model.Model, r.Persona, r.OutputSchema = "-theirs", &subagent.Persona{Text: "-p in {{cwd}}"}, []byte(schema)
		})
		has(t, true, append(always, "--permission-mode=default", "--model=-theirs", "--max-turns=3", "--json-schema="+schema, "--append-system-prompt=-p in "+got.Dir)...)
	})
	t.Run("reads", func(t *testing.T) {
		_ = start(t, reads, nil) // the start was refused
		has(t, true, append(reading, "--permission-mode=dontAsk")...)
		if got.Env["CLAUDE_CODE_SAFE_MODE"] != "1" {
			t.Errorf("%+v", got.Env)
		}
	})
	own := func(c *claudecode.Config) { c.Args = []string{"own"} }
	t.Run("own arguments", func(t *testing.T) {
		_ = start(t, own, nil) // the start was refused
		if !slices.Equal(got.Args, []string{"own"}) {
			t.Errorf("%q", got.Args)
		}
	})
	for name, c := range map[string]struct {
		change func(*claudecode.Config)
		ask    func(*subagent.Request)
		code   error
	}{
		"own arguments, reads":     {func(c *claudecode.Config) { own(c); reads(c) }, nil, subagent.ErrForbidden},
		"own arguments, a persona": {own, func(r *subagent.Request) { r.Persona = &subagent.Persona{Text: "x"} }, subagent.ErrInvalidRequest},
		"own arguments, a schema":  {own, func(r *subagent.Request) { r.OutputSchema = []byte(`{"type":"object"}`) }, subagent.ErrInvalidRequest},
		"own arguments, a model":   {own, func(r *subagent.Request) { r.Model.Model = "x" }, subagent.ErrInvalidRequest},
	} {
		t.Run(name, func(t *testing.T) {
			got = proc.Config{}
			if err := start(t, c.change, c.ask); !errors.Is(err, c.code) || got.Path != "" {
				t.Errorf("%v, started %q", err, got.Path)
			}
		})
	}
}

// In a folder that is not trusted nothing is started, not even to be looked at.
func TestUntrusted(t *testing.T) {
	dir := t.TempDir()
	p := fake(t, "record="+filepath.Join(dir, "lines"), func(c *claudecode.Config) {
		c.Dir, c.Trust = dir, func(string) error { return errors.New("not trusted") }
	})
	s := system(t, p, subagenttest.Options{})
	_, err := s.Service.Start(t.Context(), p.Name(), subagenttest.Request(s.Parent(t), "x"))
	_, probe := p.Probe(t.Context(), dir)
	if !errors.Is(err, subagent.ErrUntrustedFolder) || !errors.Is(probe, subagent.ErrUntrustedFolder) {
		t.Errorf("%v, %v", err, probe)
	}
	if _, err := os.Stat(filepath.Join(dir, "lines")); err == nil {
		t.Error("it was started")
	}
}

// Probe looks at the product and leaves nothing.
func TestProbe(t *testing.T) {
	p := fake(t, "", nil)
	r, err := p.Probe(t.Context(), t.TempDir())
	if err != nil || r.About != "Claude Code 2.9.9" || r.Ready <= 0 || r.Path == "" {
		t.Errorf("%+v, %v", r, err)
	}
	gone(t, p)
}

// A product that is killed leaves its socket, which is removed; one of somebody else is not.
func TestSocket(t *testing.T) {
	run, err := os.MkdirTemp("", "cc") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) }) // it is a temporary folder
	dir := filepath.Join(run, "cc-socks")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	pid := os.Getpid()
	mine := strconv.Itoa(pid) + ".sock"
	other, err := net.Listen("unix", filepath.Join(dir, mine))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close() //nolint:errcheck // the test is over
	sockets := func() (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	p := fake(t, "ignore=eof ignore=term", func(c *claudecode.Config) { c.Env["XDG_RUNTIME_DIR"] = run })
	s := system(t, p, subagenttest.Options{})
	child := s.Start(t, t.Context(), p.Name(), subagenttest.Request(s.Parent(t), "[[agent:say part]][[agent:hang]]"))
	if got := sockets(); len(got) != 2 {
		t.Fatalf("%q: the product has no socket", got)
	}
	if err := child.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := claudecode.Sweep(p, pid); err != nil {
		t.Error(err)
	}
	if got := sockets(); !slices.Equal(got, []string{mine}) {
		t.Errorf("%q are left, want that of somebody else", got)
	}
}

// peer has children played by lines: those for the answer to the handshake, and those for the
// prompt. on is what the parent's log holds of permissions when the result is there. Where the
// conversation was broken off, the product must have ended by then.
func peer(t *testing.T, access external.Permission, policy tool.Policy, who tool.Approver, handshake, turn []string) (res subagent.Result, on string, err error) {
	t.Helper()
	p := provider(t, claudecode.Config{Config: external.Config{Permission: access, Policy: func(*agent.Agent) tool.Policy { return policy }}})
	var link *fakeagent.Link
	claudecode.Launch(p, func(cfg proc.Config) (remote.Link, error) {
		link = fakeagent.Launch(cfg, lines(t, handshake, turn, who), nil, fakeagent.Faults{})
		return link, nil
	})
	s := system(t, p, subagenttest.Options{Approver: who})
	defer gone(t, p)
	parent := s.Parent(t)
	run, err := s.Service.Start(t.Context(), p.Name(), subagenttest.Request(parent, "x"))
	if err != nil {
		return subagent.Result{}, "", err
	}
	res, err = run.Wait(t.Context())
	if a, ok := who.(approver); ok {
		<-a.left // before the run is closed
	}
	if strings.HasPrefix(res.Diagnostic, "the product ") {
		select {
		case <-link.Done():
		default:
			t.Error("the product goes on after it was broken off")
		}
	}
	return res, record(parent), errors.Join(err, run.Close(t.Context()))
}

// What a product does between its lines: it waits until it is answered, and until somebody is
// asked, and until that is withdrawn.
const (
	answered  = "answered"
	asked     = "asked"
	withdrawn = "withdrawn"
)

// lines is a product that answers the handshake and the prompt with lines.
func lines(t *testing.T, handshake, turn []string, who tool.Approver) fakeagent.Protocol {
	return func(a *fakeagent.Agent) int {
		next := func() (kind string, ok bool) {
			line, ok := a.Next()
			var m struct{ Type string }
			if err := json.Unmarshal(line, &m); ok && err != nil {
				t.Error(err)
			}
			return m.Type, ok
		}
		for {
			kind, ok := next()
			if !ok {
				return 0
			}
			say := map[string][]string{"control_request": handshake, "user": turn}[kind]
			for _, l := range say {
				switch l {
				case answered:
					if kind, _ := next(); kind != "control_response" {
						t.Errorf("it was sent a %s, want an answer", kind)
					}
				case asked:
					<-who.(approver).asked
				case withdrawn:
					<-who.(approver).left
				default:
					a.Line(l)
				}
			}
		}
	}
}

const (
	readyLine   = `{"type":"control_response","response":{"subtype":"success","request_id":"initialize","response":{"claude_code_version":"2.1.0"}}}`
	initLine    = `{"type":"system","subtype":"init","session_id":"s","permissionMode":"dontAsk","tools":["Read"],"mcp_servers":[]}`
	asksLine    = `{"type":"control_request","request_id":"q","request":{"subtype":"can_use_tool","tool_name":"Bash","tool_use_id":"toolu_1","input":{"command":"x"}}}`
	successLine = `{"type":"result","subtype":"success","is_error":false,"result":"hello","session_id":"s"}`
)

// OOPX-16, OOPX-25, OOPX-26, OOPX-28: what the product may not do to its protocol, and what it
// may. A request that is not known stays authoritative over the end behind it.
func TestProtocol(t *testing.T) {
	const (
		badMode    = "the product is not in the permission mode that was asked for (dontAsk)"
		unknown    = "the product made a request that this program does not know"
		tooMuch    = "the product has more than the tools that read, which were asked for"
		elsewhere  = `{"type":"control_response","response":{"subtype":"error","request_id":"interrupt","error":"x"}}`
		hookAsked  = `{"type":"control_request","request_id":"h","request":{"subtype":"hook_callback"}}`
		badResult  = `{"type":"result","subtype":"success","result":"hello","session_id":"s"}`
		fromWithin = `{"type":"assistant","parent_tool_use_id":"t","message":{"id":"m","content":[{"type":"text","text":"inner"}]}}`
	)
	malformed := func(what string) string { return "the product sent a malformed message (" + what + ")" }
	ready := []string{readyLine}
	for name, c := range map[string]struct {
		reads            bool
		handshake, turn  []string
		text, diagnostic string
	}{
		"plain":                        {handshake: ready, turn: []string{initLine, successLine}, text: "hello"},
		"answered twice":               {handshake: []string{readyLine, readyLine}, turn: []string{elsewhere, initLine, successLine}, text: "hello"},
		"more of a subagent":           {handshake: ready, turn: []string{initLine, fromWithin, successLine}, text: "hello"},
		"in plan mode later":           {handshake: ready, turn: []string{initLine, `{"type":"system","subtype":"status","permissionMode":"plan"}`, successLine}, text: "hello"},
		"in plan mode":                 {handshake: ready, turn: []string{strings.Replace(initLine, "dontAsk", "plan", 1), successLine}, diagnostic: badMode},
		"in another mode":              {handshake: ready, turn: []string{strings.Replace(initLine, "dontAsk", "acceptEdits", 1), successLine}, diagnostic: badMode},
		"in another mode later":        {handshake: ready, turn: []string{initLine, `{"type":"system","subtype":"status","permissionMode":"bypassPermissions"}`, successLine}, diagnostic: badMode},
		"in no mode":                   {handshake: ready, turn: []string{successLine}, diagnostic: "the product did not say in which permission mode it runs"},
		"reads":                        {reads: true, handshake: ready, turn: []string{strings.Replace(initLine, `"Read"`, `"Read","StructuredOutput"`, 1), successLine}, text: "hello"},
		"reads, with more tools":       {reads: true, handshake: ready, turn: []string{strings.Replace(initLine, `"Read"`, `"Read","Bash"`, 1), successLine}, diagnostic: tooMuch},
		"reads, with servers":          {reads: true, handshake: ready, turn: []string{strings.Replace(initLine, `"mcp_servers":[]`, `"mcp_servers":[{}]`, 1), successLine}, diagnostic: tooMuch},
		"reads, with who knows what":   {reads: true, handshake: ready, turn: []string{strings.Replace(initLine, `"tools":["Read"],`, ``, 1), successLine}, diagnostic: "the product did not say which tools it has"},
		"reads, and says nothing":      {reads: true, handshake: ready, turn: []string{`{"type":"system","subtype":"status","permissionMode":"dontAsk"}`, successLine}, diagnostic: "the product did not say which tools it has"},
		"an unknown request":           {handshake: ready, turn: []string{initLine, hookAsked, successLine}, diagnostic: unknown},
		"a question without a tool":    {handshake: ready, turn: []string{initLine, `{"type":"control_request","request_id":"q","request":{"subtype":"can_use_tool","input":{}}}`, successLine}, diagnostic: malformed("can_use_tool")},
		"a question about nothing":     {handshake: ready, turn: []string{initLine, `{"type":"control_request","request_id":"q","request":{"subtype":"can_use_tool","tool_name":"x","input":7}}`}, diagnostic: malformed("can_use_tool")},
		"a result that is none":        {handshake: ready, turn: []string{initLine, badResult}, diagnostic: malformed("result")},
		"a result of the wrong form":   {handshake: ready, turn: []string{initLine, strings.Replace(successLine, `"hello"`, `7`, 1)}, diagnostic: malformed("result")},
		"a result without text":        {handshake: ready, turn: []string{initLine, strings.Replace(successLine, `"result":"hello",`, ``, 1)}, diagnostic: malformed("result")},
		"a result of another session":  {handshake: ready, turn: []string{initLine, strings.Replace(successLine, `"s"`, `"t"`, 1)}, diagnostic: "the product ended the turn of another session"},
		"a refusal that is no failure": {handshake: ready, turn: []string{initLine, strings.Replace(successLine, `"is_error"`, `"stop_reason":"refusal","is_error"`, 1)}, diagnostic: "-"},
	} {
		t.Run(name, func(t *testing.T) {
			policy := tool.PolicyAllow
			if c.reads {
				policy = tool.PolicyReadOnly
			}
			res, _, err := peer(t, external.Deny, policy, nil, c.handshake, c.turn)
			switch {
			case err != nil:
				t.Error(err)
			case c.diagnostic == "-":
				check(t, res, subagent.StopRefusal, "", "")
			case c.diagnostic != "":
				check(t, res, subagent.StopError, "", c.diagnostic)
			default:
				check(t, res, subagent.StopCompleted, c.text, "")
			}
		})
	}
}

// OOPX-16: what a product asks of a probe is denied, and nothing else comes of it.
func TestProbeIsAsked(t *testing.T) {
	p := provider(t, claudecode.Config{Config: external.Config{Permission: external.Allow}})
	claudecode.Launch(p, func(cfg proc.Config) (remote.Link, error) {
		return fakeagent.Launch(cfg, lines(t, []string{asksLine, answered, readyLine}, nil, nil), nil, fakeagent.Faults{}), nil
	})
	if r, err := p.Probe(t.Context(), t.TempDir()); err != nil || r.About != "Claude Code 2.1.0" {
		t.Errorf("%+v, %v", r, err)
	}
}

// A product whose lines are no messages is told of once, and not in its words.
func TestGarbled(t *testing.T) {
	var logged bytes.Buffer
	p := provider(t, claudecode.Config{Config: external.Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))}})
	claudecode.Launch(p, func(cfg proc.Config) (remote.Link, error) {
		turn := append(slices.Repeat([]string{"the secret"}, 20), initLine, successLine)
		return fakeagent.Launch(cfg, lines(t, []string{"the secret", readyLine}, turn, nil), nil, fakeagent.Faults{}), nil
	})
	s := system(t, p, subagenttest.Options{})
	check(t, subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), subagenttest.Request(s.Parent(t), "x"))), subagent.StopCompleted, "hello", "")
	if got := logged.String(); strings.Count(got, "is no message") != 1 || strings.Contains(got, "secret") {
		t.Errorf("the log holds\n%s", got)
	}
}

// OOPX-25: the end of a turn that has not begun is none.
func TestEarlyResult(t *testing.T) {
	_, _, err := peer(t, external.Deny, tool.PolicyAllow, nil, []string{successLine, readyLine}, nil)
	if !errors.Is(err, subagent.ErrStartFailed) || !strings.HasSuffix(err.Error(), "handshake: the product ended a turn that had not begun") {
		t.Errorf("%v", err)
	}
}

// OOPX-16: what the product has refused is on record once, also where only its result tells.
func TestRefusedByItself(t *testing.T) {
	const (
		told   = `{"type":"system","subtype":"permission_denied","tool_name":"Bash","tool_use_id":"u"}`
		result = `{"type":"result","subtype":"success","is_error":false,"result":"hello","session_id":"s","permission_denials":[{"tool_name":"Bash","tool_use_id":"u","tool_input":{"command":"x"}}]}`
	)
	for name, turn := range map[string][]string{
		"told": {initLine, told, successLine}, "told twice": {initLine, told, told, result}, "by the result": {initLine, result},
		"asked, and told": {initLine, strings.ReplaceAll(asksLine, "toolu_1", "u"), answered, result},
		"a form to fill":  {initLine, `{"type":"control_request","request_id":"e","request":{"subtype":"elicitation"}}`, answered, successLine},
	} {
		t.Run(name, func(t *testing.T) {
			res, on, err := peer(t, external.Deny, tool.PolicyAllow, nil, []string{readyLine}, turn)
			if err != nil {
				t.Error(err)
			}
			check(t, res, subagent.StopCompleted, "hello", "")
			if want := "asked rejected"; on != want {
				t.Errorf("on record %s, want %s", on, want)
			}
		})
	}
}

// A product that ends its turn, or withdraws its question, has nobody asked any more.
func TestWithdrawn(t *testing.T) {
	const goes = `{"type":"control_cancel_request","request_id":"q"}`
	initLine := strings.Replace(initLine, "dontAsk", "manual", 1)
	for name, turn := range map[string][]string{
		"by the end": {initLine, asksLine, asked, successLine}, "by itself": {initLine, asksLine, asked, goes, goes, withdrawn, successLine},
	} {
		t.Run(name, func(t *testing.T) {
			who := approver{asked: make(chan struct{}), left: make(chan struct{})}
			res, _, err := peer(t, external.Ask, tool.PolicyAllow, who, []string{readyLine}, turn)
			if err != nil {
				t.Error(err)
			}
			check(t, res, subagent.StopCompleted, "hello", "")
		})
	}
}

// standing is a person who does not answer.
type standing struct{}

func (standing) Approve(ctx context.Context, _ *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
	<-ctx.Done()
	return tool.ApprovalCancelled, context.Cause(ctx)
}

// A product cannot ask without end.
func TestTooManyQuestions(t *testing.T) {
	turn := []string{strings.Replace(initLine, "dontAsk", "default", 1)}
	for i := range 65 {
		turn = append(turn, strings.Replace(asksLine, `"q"`, strconv.Quote(strconv.Itoa(i)), 1))
	}
	res, _, err := peer(t, external.Ask, tool.PolicyAllow, standing{}, []string{readyLine}, turn)
	if err != nil {
		t.Error(err)
	}
	check(t, res, subagent.StopError, "", "the product has more than 64 questions at once")
}

// A product that takes no answers can have none pile up, and one that does not stop to talk
// is stopped.
func TestTooMuch(t *testing.T) {
	const (
		form  = `{"type":"control_request","request_id":"%d","request":{"subtype":"elicitation"}}`
		leave = `{"type":"control_request","request_id":"%d","request":{"subtype":"can_use_tool","tool_name":"Bash","tool_use_id":"%[1]d","input":{}}}`
		piece = `{"type":"stream_event","parent_tool_use_id":null,"event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"piece %d"}}}`
		whole = `{"type":"assistant","parent_tool_use_id":null,"message":{"id":"m","content":[{"type":"text","text":"block %d"}]}}`
	)
	for line, want := range map[string]string{
		form: "the product has more than 64 questions at once", leave: "the product has more than 64 questions at once",
		piece: "the agent said more than can be kept", whole: "the agent said more than can be kept",
	} {
		synctest.Test(t, func(t *testing.T) {
			p := provider(t, claudecode.Config{})
			claudecode.SetRoom(p, 500)
			goroutine(p, nil, func(a *fakeagent.Agent) int {
				a.Next() // the handshake
				a.Line(readyLine)
				a.Next() // the prompt
				a.Line(initLine)
				for i := range 100 {
					a.Line(fmt.Sprintf(line, i))
				}
				<-a.Gone() // it reads nothing
				return 0
			})
			s := system(t, p, subagenttest.Options{})
			run := s.Start(t, t.Context(), p.Name(), subagenttest.Request(s.Parent(t), "x"))
			ctx, stop := context.WithTimeout(t.Context(), time.Hour)
			defer stop()
			if res, err := run.Wait(ctx); err != nil || res.StopReason != subagent.StopError || res.Diagnostic != want {
				t.Errorf("%s\n%+v, %v; want %s", line, res, err, want)
			}
			if err := run.Close(t.Context()); err != nil {
				t.Error(err)
			}
			gone(t, p)
		})
	}
}

// A persona may name the model that is configured (COMP-36).
func TestPersonaNamesTheModel(t *testing.T) {
	p := fake(t, "", func(c *claudecode.Config) { c.Model = "the-model" })
	s := system(t, p, subagenttest.Options{})
	req := subagenttest.Request(s.Parent(t), "[[agent:say hi]]")
	req.Persona = &subagent.Persona{Text: "You are {{model}}."}
	if res := subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), req)); res.StopReason != subagent.StopCompleted {
		t.Errorf("%+v", res)
	}
}
