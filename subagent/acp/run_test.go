package acp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/products"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/acp"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// OOPX-13, OOPX-14, OOPX-24, OOPX-25, OOPX-27: what a run comes to.
func TestRuns(t *testing.T) {
	digits := strings.Repeat("0123456789", 1000)
	ends := "the agent's turn ended with the stop reason "
	died := "the product's process ended in the middle of its work: exit status "
	for name, c := range map[string]struct {
		faults, prompt string
		reason         subagent.StopReason
		text           string // "" is none
		diagnostic     string
	}{
		"reply":                    {prompt: "[[agent:say hello]]", reason: "completed", text: "hello"},
		"10,000 pieces":            {prompt: "[[agent:say " + digits + "]][[agent:pieces 10000]]", reason: "completed", text: digits},
		"a line of 5 MB":           {prompt: "[[agent:big 5242880]]", reason: "completed", text: strings.Repeat("x", 5<<20)},
		"the last message":         {prompt: "[[agent:say hello]][[agent:pieces 2]][[agent:noise messages]]", reason: "completed", text: "hello"},
		"behind the end":           {prompt: "[[agent:say hello]][[agent:noise stray]]", reason: "completed", text: "hello"},
		"garbage":                  {faults: "handshake=garbage session=garbage", prompt: "[[agent:say hello]][[agent:noise garbage]]", reason: "completed", text: "hello"},
		"a notification unknown":   {faults: "session=long", prompt: "[[agent:say hello]][[agent:noise notice]]", reason: "completed", text: "hello"},
		"a request unknown":        {prompt: "[[agent:say hello]][[agent:noise request]]", reason: "completed", text: "no such method; hello"},
		"a picture":                {prompt: "[[agent:say hello]][[agent:noise picture]]", reason: "completed", text: "hello"},
		"a mode of its own choice": {prompt: "[[agent:say hello]][[agent:noise mode]]", reason: "completed", text: "hello"},
		"a broken piece":           {prompt: "[[agent:say hello]][[agent:noise broken]][[agent:hang]]", reason: "error", diagnostic: "the agent sent a piece of its answer that its protocol has no place for"},
		"blank":                    {prompt: "[[agent:say   ]]", reason: "error", diagnostic: "the agent ended without an answer"},
		"nothing":                  {prompt: "x", reason: "error", diagnostic: "the agent ended without an answer"},
		"max_tokens":               {prompt: "[[agent:say part]][[agent:end max-tokens]]", reason: "max-tokens", text: "part", diagnostic: ends + "max_tokens"},
		"refusal":                  {prompt: "[[agent:say part]][[agent:end refusal]]", reason: "refusal", text: "part", diagnostic: ends + "refusal"},
		"cancelled":                {prompt: "[[agent:say part]][[agent:end aborted]]", reason: "aborted", text: "part"},
		"max_turn_requests":        {prompt: "[[agent:say part]][[agent:end max_turn_requests]]", reason: "error", text: "part", diagnostic: ends + "max_turn_requests"},
		"a reason unknown":         {prompt: "[[agent:say part]][[agent:end the secret]]", reason: "error", text: "part", diagnostic: ends + "unknown"},
		"no reason":                {prompt: "[[agent:say part]][[agent:end nothing]]", reason: "error", text: "part", diagnostic: "the answer to the prompt does not say how the turn ended"},
		"failure":                  {prompt: "[[agent:say part]][[agent:end error]]", reason: "error", text: "part", diagnostic: "the product answered with the error -32603"},
		"refuses the prompt":       {faults: "prompt=error", prompt: "x", reason: "error", diagnostic: "the product answered with the error -32603"},
		"dies at the prompt":       {faults: "prompt=exit:3", prompt: "x", reason: "error", diagnostic: died + "3"},
		"dies in its answer":       {prompt: "[[agent:say part]][[agent:exit 4]]", reason: "error", text: "part", diagnostic: died + "4"},
		"deaf to its end":          {faults: "ignore=eof ignore=term", prompt: "[[agent:say hello]]", reason: "completed", text: "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, c.faults, nil)
			s := f.system(t, subagenttest.Options{})
			res := subagenttest.Await(t, s.Start(t, t.Context(), f.Name(), subagenttest.Request(s.Parent(t), c.prompt)))
			if got := message.JoinText(res.Output); res.StopReason != c.reason || got != c.text || res.Diagnostic != c.diagnostic {
				t.Errorf("%s, %q, %d bytes %.40q; want %s, %q, %d bytes %.40q", res.StopReason, res.Diagnostic, len(got), got, c.reason, c.diagnostic, len(c.text), c.text)
			}
			f.gone(t)
		})
	}
}

// Lines that are no messages are told to the log, once; what stands in them reaches nobody else.
func TestGarbageIsLogged(t *testing.T) {
	var log bytes.Buffer // written to by the one goroutine that reads, which has ended when it is read
	f := newFake(t, "", func(c *acp.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	s := f.system(t, subagenttest.Options{})
	run := s.Start(t, t.Context(), f.Name(), subagenttest.Request(s.Parent(t), "[[agent:say hello]][[agent:pieces 5]][[agent:noise garbage]]"))
	if res := subagenttest.Await(t, run); message.JoinText(res.Output) != "hello" {
		t.Errorf("%+v", res)
	}
	if n := strings.Count(log.String(), "no JSON ["); n != 1 {
		t.Errorf("it is told %d times:\n%s", n, log.String())
	}
}

// An agent that does not stop to talk is stopped.
func TestTooMuch(t *testing.T) {
	f := newFake(t, "", nil)
	acp.SetRoom(f.Provider, 8)
	s := f.system(t, subagenttest.Options{})
	run := s.Start(t, t.Context(), f.Name(), subagenttest.Request(s.Parent(t), "[[agent:say 012345678]][[agent:pieces 3]][[agent:hang]]"))
	if res := subagenttest.Await(t, run); res.StopReason != subagent.StopError || message.JoinText(res.Output) != "012345" || res.Diagnostic != "the agent said more than can be kept" {
		t.Errorf("%+v", res)
	}
	f.gone(t)
}

// OOPX-08, OOPX-11, OOPX-27: a start that fails says where, in fixed words, when nothing of
// the agent is left.
func TestStartFails(t *testing.T) {
	for name, c := range map[string]struct {
		faults string
		args   []string
		change func(*acp.Config)
		want   string
	}{
		"dies at once":        {faults: "start=exit:7", want: "handshake: the program ended: exit status 7"},
		"dies at initialize":  {faults: "handshake=exit:8", want: "handshake: the program ended: exit status 8"},
		"dies at session/new": {faults: "session=exit:9", want: "handshake: the program ended: exit status 9"},
		"silent":              {faults: "start=silent", want: "handshake: it was not ready within 300ms"},
		"no initialize":       {faults: "handshake=silent", want: "handshake: it was not ready within 300ms"},
		"no session":          {faults: "session=silent", want: "handshake: it was not ready within 300ms"},
		"deaf to its end":     {faults: "session=silent ignore=eof ignore=term", want: "handshake: it was not ready within 300ms"},
		"refuses":             {faults: "handshake=error", want: "handshake: the product answered with the error -32603"},
		"refuses a session":   {faults: "session=error", want: "handshake: the product answered with the error -32603"},
		"another version":     {faults: "handshake=version", want: "handshake: the agent speaks version 2 of the protocol, not 1"},
		"nobody logged in":    {args: []string{"login"}, want: "handshake: the agent wants somebody to log in with it first (error -32000)"},
		"no such mode":        {change: func(c *acp.Config) { c.Mode = "dance" }, want: `handshake: the agent does not offer the mode "dance"`},
		"no modes":            {args: []string{"modes=none"}, change: func(c *acp.Config) { c.Mode = "look" }, want: `handshake: the agent does not offer the mode "look"`},
		"no such option":      {args: []string{"modes=options"}, change: func(c *acp.Config) { c.Mode = "dance" }, want: `handshake: the agent does not offer the mode "dance"`},
		"keeps its mode":      {args: []string{"modes=stuck"}, change: func(c *acp.Config) { c.Mode = "look" }, want: `handshake: the agent did not go into the mode "look"`},
		"is not installed":    {change: func(c *acp.Config) { c.Command = "no-such-program" }, want: `find the program: "no-such-program" is not installed, or not in PATH. Give the command that starts an agent which speaks the Agent Client Protocol.`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, c.faults, func(cfg *acp.Config) {
				cfg.Args = c.args
				if strings.Contains(c.faults, "silent") {
					cfg.StartTimeout = 300 * time.Millisecond
				}
				if c.change != nil {
					c.change(cfg)
				}
			})
			s := f.system(t, subagenttest.Options{})
			_, err := s.Service.Start(t.Context(), f.Name(), subagenttest.Request(s.Parent(t), "x"))
			if !errors.Is(err, subagent.ErrStartFailed) || !strings.HasSuffix(err.Error(), f.Name()+": "+c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			if got, want := errors.Is(err, external.ErrNotFound), name == "is not installed"; got != want {
				t.Errorf("ErrNotFound: %v, want %v", got, want)
			}
			f.gone(t)
		})
	}
}

// CAN-01, CAN-02, OOPX-08, OOPX-09: a start that is cancelled leaves nothing, and one that
// was cancelled before starts nothing.
func TestCancelledStart(t *testing.T) {
	for _, stage := range []string{"start", "handshake", "session"} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, stage+"=silent", nil)
			s := f.system(t, subagenttest.Options{})
			ctx, cancel := context.WithCancelCause(t.Context())
			stop := errors.New("stop")
			go func() {
				products.Until(t, "the agent", func() bool { return acp.Active(f.Provider) == 1 })
				cancel(stop)
			}()
			if _, err := s.Service.Start(ctx, f.Name(), subagenttest.Request(s.Parent(t), "x")); !errors.Is(err, stop) {
				t.Errorf("%v, want the cause", err)
			}
			f.gone(t)
		})
	}
	f := newFake(t, "", nil)
	s := f.system(t, subagenttest.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Service.Start(ctx, f.Name(), subagenttest.Request(s.Parent(t), "x")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the cause", err)
	}
	if _, err := os.Stat(f.lines); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an agent was started: %v", err)
	}
}

// CAN-03, OOPX-06, OOPX-07, OOPX-10, OOPX-28: a cancel settles at once with what was said,
// the agent is told of it, and Close returns when its processes are gone.
func TestCancel(t *testing.T) {
	for name, c := range map[string]struct{ faults, prompt, text string }{
		"silent":          {prompt: "[[agent:hang]]"},
		"mid-stream":      {prompt: "[[agent:say part]][[agent:hang]]", text: "part"},
		"deaf to its end": {faults: "ignore=eof ignore=term", prompt: "[[agent:say part]][[agent:hang]]", text: "part"},
		"hears nothing":   {faults: "prompt=silent", prompt: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, c.faults, nil)
			s := f.system(t, subagenttest.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			run := s.Start(t, ctx, f.Name(), subagenttest.Request(s.Parent(t), c.prompt))
			products.Until(t, "what it says", func() bool { return acp.Said(run) == c.text })
			cancel()
			res := subagenttest.Await(t, run)
			if got := message.JoinText(res.Output); res.StopReason != subagent.StopAborted || got != c.text || res.Diagnostic != "" {
				t.Errorf("%+v, want aborted with %q", res, c.text)
			}
			f.gone(t)
			if prompted, cancelled := place(f.sent(t), "session/prompt"), place(f.sent(t), "session/cancel"); prompted != cancelled-1 && prompted+cancelled != -2 {
				t.Errorf("it was sent the prompt as line %d and the cancel as line %d, want one behind the other, or neither", prompted, cancelled)
			}
		})
	}
}

// place returns the index of the line with a method, or -1.
func place(lines, method string) int {
	return slices.IndexFunc(strings.Split(lines, "\n"), func(l string) bool { return strings.Contains(l, `"method":"`+method+`"`) })
}

// OOPX-10: what an agent started and forgot ends with it, also when this program is killed.
func TestLinger(t *testing.T) {
	script, lingering := products.Linger(t)
	run := linger(t, script)
	products.Until(t, "its processes linger", func() bool { return len(lingering()) == 4 })
	if res, err := run.Wait(t.Context()); err != nil || message.JoinText(res.Output) != "allowed done" {
		t.Errorf("%+v, %v", res, err)
	}
	if err := run.Close(t.Context()); err != nil {
		t.Error(err)
	}
	products.Empty(t, "lingering", lingering)
	script, lingering = products.Linger(t)
	products.KillHost(t, "TestLingerHost", script, lingering)
}

func linger(t *testing.T, script string) subagent.Run {
	t.Helper()
	f := newFake(t, "", func(c *acp.Config) { c.Permission = external.Allow })
	s := f.system(t, subagenttest.Options{})
	return s.Start(t, t.Context(), f.Name(), subagenttest.Request(s.Parent(t), "[[agent:run sh "+script+" &]][[agent:say done]]"))
}

// TestLingerHost is the program that is killed.
func TestLingerHost(t *testing.T) {
	script := os.Getenv(products.HostVariable)
	if script == "" {
		t.Skip("it is a part of TestLinger")
	}
	linger(t, script)
	<-t.Context().Done()
}

// What an agent is sent, to the letter: its folder and the prompt, and of this client that
// it takes notices and has neither files nor terminals.
func TestSent(t *testing.T) {
	f := newFake(t, "", func(c *acp.Config) { c.Mode = "work" })
	s := f.system(t, subagenttest.Options{})
	prompt := "<&> [[agent:say hi]]\n\u2028"
	if res := subagenttest.Await(t, s.Start(t, t.Context(), f.Name(), subagenttest.Request(s.Parent(t), prompt))); res.StopReason != subagent.StopCompleted {
		t.Fatalf("%+v", res)
	}
	text, err := json.Marshal(prompt)
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(text)))
	want := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"clientCapabilities":{"session":{"notices":{}}},"clientInfo":{"name":"offshoot","version":"dev"},"protocolVersion":1}}
{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"` + f.dir + `","mcpServers":[]}}
{"jsonrpc":"2.0","id":2,"method":"session/set_mode","params":{"modeId":"work","sessionId":"sess 1"}}
{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"prompt":[{"text":` + string(text) + `,"type":"text"}],"sessionId":"sess 1"}}
`
	if got := f.sent(t); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// A mode is chosen by its id, in either form in which agents offer modes.
func TestMode(t *testing.T) {
	for name, c := range map[string]struct {
		modes, mode string
		sent, text  string
	}{
		"the agent's own": {text: "allowed done"},
		"by name":         {mode: "look", sent: `"method":"session/set_mode","params":{"modeId":"look","sessionId":"sess 1"}`, text: "may not done"},
		"by option":       {modes: "modes=options", mode: "look", sent: `"method":"session/set_config_option","params":{"configId":"how","sessionId":"sess 1","value":"look"}`, text: "may not done"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, "", func(cfg *acp.Config) {
				cfg.Mode, cfg.Permission, cfg.Args = c.mode, external.Allow, []string{c.modes}
			})
			s := f.system(t, subagenttest.Options{})
			res := subagenttest.Await(t, s.Start(t, t.Context(), f.Name(), subagenttest.Request(s.Parent(t), "[[agent:run true]][[agent:say done]]")))
			if got := message.JoinText(res.Output); got != c.text {
				t.Errorf("%q, want %q", got, c.text)
			}
			if sent := f.sent(t); !strings.Contains(sent, c.sent) || c.sent == "" && strings.Contains(sent, "session/set_") {
				t.Errorf("it was sent\n%s\nwant %s", sent, c.sent)
			}
			f.gone(t)
		})
	}
}

// OOPX-01, OOPX-02, OOPX-03, OOPX-32 (P05): of the parent its folder is read, and only where
// none is configured.
func TestFolder(t *testing.T) {
	ran := func(t *testing.T, f *fake, cwd string) error {
		t.Helper()
		s := f.system(t, subagenttest.Options{})
		o := subagenttest.ParentOptions()
		o.Cwd = cwd
		run, err := s.Service.Start(t.Context(), f.Name(), subagenttest.Request(s.NewAgent(t, agent.Create{Options: o}), "[[agent:run pwd -P > here]][[agent:say ok]]"))
		if err == nil {
			subagenttest.Await(t, run)
		}
		f.gone(t)
		return err
	}
	allow := func(dir string) func(*acp.Config) {
		return func(c *acp.Config) { c.Permission, c.Dir = external.Allow, dir }
	}
	wrote := func(t *testing.T, dir string) {
		t.Helper()
		if _, err := os.Stat(filepath.Join(dir, "here")); err != nil {
			t.Errorf("the agent did not work there: %v", err)
		}
	}
	t.Run("the parent's", func(t *testing.T) {
		f, dir := newFake(t, "", allow("")), t.TempDir()
		if err := ran(t, f, dir); err != nil {
			t.Fatal(err)
		}
		wrote(t, dir)
	})
	t.Run("configured", func(t *testing.T) {
		dir := t.TempDir()
		f := newFake(t, "", allow(dir))
		if err := ran(t, f, ""); err != nil {
			t.Fatal(err)
		}
		wrote(t, dir)
	})
	for want, cwd := range map[string]string{"the parent works in no folder": "", "is not absolute": "here", "no such file or directory": "/no/such"} {
		t.Run(want, func(t *testing.T) {
			f := newFake(t, "", allow(""))
			if err := ran(t, f, cwd); !errors.Is(err, subagent.ErrStartFailed) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
			if _, err := os.Stat(f.lines); !errors.Is(err, os.ErrNotExist) {
				t.Error("an agent was started")
			}
		})
	}
}

// A folder that is not trusted starts nothing (design § 4, Trust).
func TestUntrusted(t *testing.T) {
	var asked string
	f := newFake(t, "", func(c *acp.Config) {
		c.Trust = func(dir string) error { asked = dir; return errors.New("a stranger's folder") }
	})
	s := f.system(t, subagenttest.Options{})
	_, err := s.Service.Start(t.Context(), f.Name(), subagenttest.Request(s.Parent(t), "x"))
	if !errors.Is(err, subagent.ErrUntrustedFolder) || !strings.Contains(err.Error(), "a stranger's folder") || asked != f.dir {
		t.Errorf("%v for %s, want a refusal for %s", err, asked, f.dir)
	}
	if _, err := f.Probe(t.Context(), f.dir); !errors.Is(err, subagent.ErrUntrustedFolder) {
		t.Errorf("Probe: %v, want a refusal", err)
	}
	if _, err := os.Stat(f.lines); !errors.Is(err, os.ErrNotExist) {
		t.Error("an agent was started")
	}
}

// A probe tells who the agent is and what is wrong with it, and leaves nothing.
func TestProbe(t *testing.T) {
	f := newFake(t, "", nil)
	r, err := f.Probe(t.Context(), f.dir)
	if err != nil || r.About != "fake agent 0.1" || r.Path == "" || r.Ready <= 0 {
		t.Errorf("%+v, %v", r, err)
	}
	f.gone(t)
	f = newFake(t, "session=error", nil)
	if r, err := f.Probe(t.Context(), f.dir); !errors.Is(err, subagent.ErrStartFailed) || r.Path == "" {
		t.Errorf("%+v, %v", r, err)
	}
	f.gone(t)
}
