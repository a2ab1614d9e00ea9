package codex_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/fakeagent"
	"github.com/offshoot-dev/offshoot/internal/products"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/codex"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// fake returns a provider whose Codex is this test binary. Nothing of it may be left when
// the test ends.
func fake(t *testing.T, faults string, change func(*codex.Config)) *codex.Provider {
	t.Helper()
	mark := t.TempDir()
	cfg := codex.Config{Config: external.Config{
		Env:      map[string]string{fakeagent.As: "codex", fakeagent.Variable: faults, "MARK": mark},
		EOFGrace: 200 * time.Millisecond, Grace: 200 * time.Millisecond,
	}}
	if change != nil {
		change(&cfg)
	}
	p := provider(t, cfg)
	t.Cleanup(func() {
		if n := codex.Active(p); n != 0 {
			t.Errorf("%d children hold a process", n)
		}
		products.Empty(t, "left behind", func() []string { return products.Marked(t, mark) })
	})
	return p
}

// system registers a provider in a system of its own.
func system(t *testing.T, p *codex.Provider, o subagenttest.Options) *subagenttest.System {
	t.Helper()
	s := subagenttest.NewSystem(t, o)
	s.Register(t, p)
	return s
}

// OOPX-16, OOPX-23…28: what a run comes to.
func TestRuns(t *testing.T) {
	const method = "Codex asked for something that it cannot be given"
	for name, c := range map[string]struct {
		faults, prompt string
		reason         subagent.StopReason
		text           string // "" is none
		diagnostic     string
	}{
		"reply":              {prompt: "[[agent:say hello]]", reason: "completed", text: "hello"},
		"many pieces":        {prompt: "[[agent:say " + strings.Repeat("0123456789", 1000) + "]][[agent:pieces 10000]]", reason: "completed", text: strings.Repeat("0123456789", 1000)},
		"a line of 5 MB":     {prompt: "[[agent:big 5242880]]", reason: "completed", text: strings.Repeat("x", 5<<20)},
		"reordered":          {prompt: "[[agent:say hello]][[agent:noise late]]", reason: "completed", text: "hello"},
		"unknown message":    {faults: "session=long", prompt: "[[agent:say hello]][[agent:noise notice]]", reason: "completed", text: "hello"},
		"marked answer":      {prompt: "[[agent:say hello]][[agent:noise marked]]", reason: "completed", text: "hello"},
		"answer at the end":  {prompt: "[[agent:say hello]][[agent:noise summary]]", reason: "completed", text: "hello"},
		"ends of others":     {prompt: "[[agent:say hello]][[agent:noise alien]]", reason: "completed", text: "hello"},
		"two ends":           {prompt: "[[agent:say hello]][[agent:end again]]", reason: "completed", text: "hello"},
		"garbage":            {prompt: "[[agent:say hello]][[agent:noise garbage]]", reason: "error", diagnostic: "the product sent a line that its protocol has no place for (no JSON object)"},
		"blank":              {prompt: "[[agent:say   ]]", reason: "error", diagnostic: "the agent ended without an answer"},
		"nothing":            {prompt: "x", reason: "error", diagnostic: "the agent ended without an answer"},
		"refusal":            {prompt: "[[agent:end refusal]]", reason: "error", diagnostic: "the agent ended without an answer"},
		"token limit":        {prompt: "[[agent:say part]][[agent:end max-tokens]]", reason: "error", text: "part", diagnostic: "Codex's turn failed: other"},
		"failure":            {prompt: "[[agent:say part]][[agent:end error]]", reason: "error", text: "part", diagnostic: "Codex's turn failed: internalServerError"},
		"failure of HTTP":    {prompt: `[[agent:end {"httpConnectionFailed":{"httpStatusCode":401}}]]`, reason: "error", diagnostic: "Codex's turn failed: httpConnectionFailed (HTTP status 401)"},
		"no status":          {prompt: `[[agent:end {"responseStreamDisconnected":{"httpStatusCode":null}}]]`, reason: "error", diagnostic: "Codex's turn failed: responseStreamDisconnected"},
		"a strange status":   {prompt: `[[agent:end {"responseStreamDisconnected":{"httpStatusCode":"the secret"}}]]`, reason: "error", diagnostic: "Codex's turn failed: responseStreamDisconnected"},
		"unknown failure":    {prompt: `[[agent:end "the secret of tomorrow"]]`, reason: "error", diagnostic: "Codex's turn failed: unknown"},
		"unknown detail":     {prompt: `[[agent:end {"the secret":{"httpStatusCode":401}}]]`, reason: "error", diagnostic: "Codex's turn failed: unknown"},
		"two details":        {prompt: `[[agent:end {"httpConnectionFailed":{},"other":{}}]]`, reason: "error", diagnostic: "Codex's turn failed: unknown"},
		"no detail":          {prompt: `[[agent:end null]]`, reason: "error", diagnostic: "Codex's turn failed: unknown"},
		"interrupted":        {prompt: "[[agent:say part]][[agent:end interrupted]]", reason: "error", text: "part", diagnostic: "Codex's turn was interrupted, which nobody here asked for"},
		"unknown end":        {prompt: "[[agent:say part]][[agent:end unknown]]", reason: "error", text: "part", diagnostic: "Codex's turn ended in a way that is not known"},
		"malformed end":      {prompt: "[[agent:say part]][[agent:end nameless]]", reason: "error", text: "part", diagnostic: "what Codex sent with turn/completed is malformed"},
		"dies at the prompt": {faults: "prompt=exit:3", prompt: "x", reason: "error", diagnostic: "the product's process ended in the middle of its work: exit status 3"},
		"dies mid-answer":    {prompt: "[[agent:say part]][[agent:exit 4]]", reason: "error", text: "part", diagnostic: "the product's process ended in the middle of its work: exit status 4"},
		"refuses the prompt": {faults: "prompt=error", prompt: "x", reason: "error", diagnostic: "the product answered with the error -32603"},
		"unknown request":    {prompt: "[[agent:say hello]][[agent:noise ask account/chatgptAuthTokens/refresh]]", reason: "error", diagnostic: method},
		"request and end":    {prompt: "[[agent:say hello]][[agent:end asking]]", reason: "error", diagnostic: method},
		"end and request":    {prompt: "[[agent:say hello]][[agent:end asking-late]]", reason: "completed", text: "hello"},
		"request, no answer": {faults: "prompt=asks", prompt: "x", reason: "error", diagnostic: method},
		"asks early":         {faults: "session=asks", prompt: "[[agent:say hello]]", reason: "completed", text: "hello"},
		"renamed":            {prompt: "[[agent:say hello]][[agent:noise renamed]]", reason: "error", diagnostic: "Codex calls the turn by two names"},
		"forgetful":          {prompt: "[[agent:end forgetful]]", reason: "error", diagnostic: "Codex's turn failed: internalServerError"},
		"of another thread":  {prompt: "[[agent:say hello]][[agent:noise ask alien]]", reason: "error", diagnostic: "Codex asked on behalf of a thread or a turn that is not this one"},
		"a question":         {prompt: "[[agent:say ok]][[agent:noise ask item/tool/requestUserInput]]", reason: "completed", text: `{"answers":{}} ok`},
		"an elicitation":     {prompt: "[[agent:say ok]][[agent:noise ask mcpServer/elicitation/request]]", reason: "completed", text: `{"_meta":null,"action":"decline","content":null} ok`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := fake(t, c.faults, nil)
			s := system(t, p, subagenttest.Options{})
			res := subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), subagenttest.Request(s.Parent(t), c.prompt)))
			got := message.JoinText(res.Output)
			if c.diagnostic == method || name == "of another thread" || name == "garbage" || name == "renamed" {
				got = "" // how much of it was read is not fixed
			}
			if res.StopReason != c.reason || got != c.text || res.Diagnostic != c.diagnostic {
				t.Errorf("%s, %q, %d bytes %.80q; want %s, %q, %.80q", res.StopReason, res.Diagnostic, len(got), got, c.reason, c.diagnostic, c.text)
			}
		})
	}
}

// OOPX-08, OOPX-11, OOPX-25, OOPX-27, OOPX-29: a start that fails says where, in fixed words.
func TestStartFails(t *testing.T) {
	other := func(what, asked string) string {
		return fmt.Sprintf("handshake: Codex does not work with the %s that it was asked for, which is %q; its own or a managed configuration may forbid it", what, asked)
	}
	for name, c := range map[string]struct {
		faults string
		change func(*codex.Config)
		want   string
	}{
		"dies at once":         {faults: "start=exit:7", want: "handshake: the program ended: exit status 7"},
		"dies when greeted":    {faults: "handshake=exit:8", want: "handshake: the program ended: exit status 8"},
		"dies at the thread":   {faults: "session=exit:9", want: "handshake: the program ended: exit status 9"},
		"silent":               {faults: "start=silent", want: "handshake: it was not ready within 300ms"},
		"silent when greeted":  {faults: "handshake=silent", want: "handshake: it was not ready within 300ms"},
		"silent at the thread": {faults: "session=silent", want: "handshake: it was not ready within 300ms"},
		"garbage":              {faults: "handshake=garbage", want: "handshake: the product sent a line that its protocol has no place for (no JSON object)"},
		"refuses":              {faults: "handshake=error", want: "handshake: the product answered with the error -32603"},
		"refuses the thread":   {faults: "session=error", want: "handshake: the product answered with the error -32603"},
		"is something else":    {faults: "handshake=version", want: "handshake: the answer to initialize does not name Codex's version"},
		"names no thread":      {faults: "session=version", want: "handshake: the answer to thread/start names no thread"},
		"other sandbox":        {faults: "session=sandbox", want: other("sandbox", "read-only")},
		"open network":         {faults: "session=network", want: other("sandbox", "read-only")},
		"other policy":         {faults: "session=policy", want: other("approval policy", "on-request")},
		"other reviewer":       {faults: "session=reviewer", want: other("reviewer of approvals", "user")},
		"other model":          {faults: "session=model", change: func(c *codex.Config) { c.Model = "mine" }, want: other("model", "mine")},
		"other provider":       {faults: "session=provider", change: func(c *codex.Config) { c.ModelProvider = "mine" }, want: other("model provider", "mine")},
		"other folder":         {faults: "session=folder", want: "handshake: Codex works in another folder than it was asked to"},
		"keeps the thread":     {faults: "session=kept", want: "handshake: Codex keeps the thread, which it was asked not to"},
		"is not installed":     {change: func(c *codex.Config) { c.Command = "no-such-program" }, want: `find the program: "no-such-program" is not installed, or not in PATH. Install it with "npm install -g @openai/codex", or give its path.`},
		"is deaf to its end":   {faults: "handshake=silent ignore=eof ignore=term", want: "handshake: it was not ready within 300ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := fake(t, c.faults, func(cfg *codex.Config) {
				if cfg.StartTimeout = time.Minute; strings.Contains(c.faults, "silent") {
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
			if got, want := errors.Is(err, external.ErrNotFound), name == "is not installed"; got != want {
				t.Errorf("ErrNotFound: %v, want %v", got, want)
			}
			if n := codex.Active(p); n != 0 {
				t.Errorf("%d children hold a process", n)
			}
		})
	}
}

// OOPX-16: what cannot become a turn starts nothing.
func TestRefused(t *testing.T) {
	untrusted := errors.New("not trusted")
	for name, c := range map[string]struct {
		prompt string
		change func(*codex.Config)
		want   error
		words  string
	}{
		"blank":    {prompt: " \n", want: subagent.ErrInvalidRequest, words: "the prompt is blank"},
		"too long": {prompt: strings.Repeat("é", codex.MaxPrompt+1), want: subagent.ErrInvalidRequest, words: "the prompt has 1048577 characters, and Codex takes at most 1048576"},
		"untrusted folder": {
			prompt: "x", change: func(c *codex.Config) { c.Trust = func(string) error { return untrusted } },
			want: subagent.ErrUntrustedFolder, words: "not trusted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			record := filepath.Join(t.TempDir(), "lines")
			p := fake(t, "record="+record, c.change)
			s := system(t, p, subagenttest.Options{})
			_, err := s.Service.Start(t.Context(), p.Name(), subagenttest.Request(s.Parent(t), c.prompt))
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v, want %v: %s", err, c.want, c.words)
			}
			if _, err := os.Stat(record); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it was started: %v", err)
			}
		})
	}
}

// OOPX-06, OOPX-07, OOPX-10, OOPX-28: a cancel settles at once with what was said, whatever
// Codex does; Close returns when its processes are gone.
func TestCancel(t *testing.T) {
	for name, c := range map[string]struct{ faults, prompt, text string }{
		"silent":          {prompt: "[[agent:hang]]"},
		"mid-stream":      {prompt: "[[agent:say part]][[agent:hang]]", text: "part"},
		"at the prompt":   {faults: "prompt=silent", prompt: "x"},
		"deaf to its end": {faults: "ignore=eof ignore=term", prompt: "[[agent:say part]][[agent:hang]]", text: "part"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			record := filepath.Join(t.TempDir(), "lines")
			p := fake(t, c.faults+" record="+record, nil)
			s := system(t, p, subagenttest.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			run := s.Start(t, ctx, p.Name(), subagenttest.Request(s.Parent(t), c.prompt))
			products.Until(t, "it said its part", func() bool { return codex.Said(run) == c.text })
			cancel()
			res := subagenttest.Await(t, run)
			if got := message.JoinText(res.Output); res.StopReason != subagent.StopAborted || got != c.text || res.Diagnostic != "" {
				t.Errorf("%+v, want aborted with %q", res, c.text)
			}
			lines, err := os.ReadFile(record)
			if err != nil {
				t.Fatal(err)
			}
			want := `"method":"turn/interrupt","params":{"threadId":"thread-1","turnId":"turn-1"}`
			if open := c.text != ""; open && !strings.Contains(string(lines), want) || name == "at the prompt" && strings.Contains(string(lines), "turn/interrupt") {
				t.Errorf("Codex was told %s", lines)
			}
		})
	}
}

// OOPX-08, OOPX-09: a cancel during the handshake leaves nothing.
func TestCancelledStart(t *testing.T) {
	record := filepath.Join(t.TempDir(), "lines")
	p := fake(t, "session=silent record="+record, nil)
	s := system(t, p, subagenttest.Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	go func() {
		defer cancel(stop)
		products.Until(t, "it is asked for a thread", func() bool {
			data, err := os.ReadFile(record)
			return err == nil && strings.Contains(string(data), "thread/start")
		})
	}()
	if _, err := s.Service.Start(ctx, p.Name(), subagenttest.Request(s.Parent(t), "x")); !errors.Is(err, stop) {
		t.Errorf("%v, want the cause", err)
	}
	if n := codex.Active(p); n != 0 {
		t.Errorf("%d children hold a process", n)
	}
}

// decisions are those in an agent's log, with the questions that they answer.
func decisions(a *agent.Agent) string {
	asked := map[string]string{}
	var all []string
	for e := range a.Session().Events(0) {
		switch p := e.Payload().(type) {
		case *session.ApprovalAsked:
			asked[p.ID] = p.ToolName
		case *session.ApprovalDecided:
			all = append(all, asked[p.ID]+" "+p.Outcome)
		}
	}
	return strings.Join(all, ", ")
}

// approver answers every question with its outcome; "" never answers.
type approver struct {
	outcome tool.ApprovalOutcome
	asked   chan *tool.ApprovalRequest // takes them
}

func (a approver) Approve(ctx context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
	a.asked <- req
	if a.outcome == "" {
		<-ctx.Done()
		return "", context.Cause(ctx)
	}
	return a.outcome, nil
}

func policy(p tool.Policy) func(*agent.Agent) tool.Policy {
	return func(*agent.Agent) tool.Policy { return p }
}

// OOPX-16, OOPX-22: what each permission is for Codex, and that every decision stands in the
// parent's log. The fake asks for every command.
func TestPermission(t *testing.T) {
	const readOnly, untrusted, write = `"approvalPolicy":"on-request","approvalsReviewer":"user","sandbox":"read-only"`,
		`"approvalPolicy":"untrusted","approvalsReviewer":"user","sandbox":"read-only"`,
		`"approvalPolicy":"on-request","approvalsReviewer":"user","sandbox":"workspace-write"`
	for name, c := range map[string]struct {
		permission external.Permission
		policy     tool.Policy
		answer     tool.ApprovalOutcome // of a person; "" is that there is none
		mode       string
		text       string
		decided    string
	}{
		"default":            {mode: readOnly, text: "rejected done", decided: "codex:command rejected"},
		"denied":             {permission: external.Deny, mode: readOnly, text: "rejected done", decided: "codex:command rejected"},
		"allowed":            {permission: external.Allow, mode: write, text: "allowed done", decided: "codex:command allowed-once"},
		"asked, allowed":     {permission: external.Ask, answer: tool.ApprovalAllowedOnce, mode: untrusted, text: "allowed done", decided: "codex:command allowed-once"},
		"asked, rejected":    {permission: external.Ask, answer: tool.ApprovalRejected, mode: untrusted, text: "rejected done", decided: "codex:command rejected"},
		"asked, dismissed":   {permission: external.Ask, answer: tool.ApprovalCancelled, mode: untrusted, text: "rejected done", decided: "codex:command cancelled"},
		"asked, nobody":      {permission: external.Ask, mode: untrusted, text: "rejected done", decided: "codex:command unavailable"},
		"ceiling asks":       {permission: external.Allow, policy: tool.PolicyAsk, answer: tool.ApprovalRejected, mode: untrusted, text: "rejected done", decided: "codex:command rejected"},
		"ceiling denies":     {permission: external.Allow, policy: tool.PolicyDeny, mode: readOnly, text: "rejected done", decided: "codex:command rejected"},
		"ceiling reads":      {permission: external.Allow, policy: tool.PolicyReadOnly, mode: readOnly, text: "rejected done", decided: "codex:command rejected"},
		"ceiling never asks": {permission: external.Ask, policy: tool.PolicyNever, mode: readOnly, text: "rejected done", decided: "codex:command rejected"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			record := filepath.Join(t.TempDir(), "lines")
			p := fake(t, "record="+record, func(cfg *codex.Config) {
				cfg.Permission, cfg.Dir = c.permission, dir
				if c.policy != "" {
					cfg.Policy = policy(c.policy)
				}
			})
			o := subagenttest.Options{}
			person := approver{c.answer, make(chan *tool.ApprovalRequest, 1)}
			if c.answer != "" {
				o.Approver = person
			}
			s := system(t, p, o)
			parent := s.Parent(t)
			res := subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), subagenttest.Request(parent, "[[agent:run echo > made]][[agent:say done]]")))
			if got := message.JoinText(res.Output); res.StopReason != subagent.StopCompleted || got != c.text {
				t.Errorf("%+v, want %q", res, c.text)
			}
			if got := decisions(parent); got != c.decided {
				t.Errorf("decided %q, want %q", got, c.decided)
			}
			if _, err := os.Stat(filepath.Join(dir, "made")); (err == nil) != strings.HasPrefix(c.text, "allowed") {
				t.Errorf("the file: %v", err)
			}
			lines, err := os.ReadFile(record)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(lines), c.mode) {
				t.Errorf("Codex was told %s, want %s", lines, c.mode)
			}
			select {
			case req := <-person.asked:
				if req.Summary != "echo > made" || req.CallID != "call-0" || len(req.Path) != 2 || req.Cwd != dir {
					t.Errorf("a person was asked %+v", req)
				}
			default:
			}
		})
	}
}

// Every other request for leave, and what a person is shown of it. Nothing is granted for
// longer than the turn.
func TestRequests(t *testing.T) {
	for method, c := range map[string]struct {
		allowed, declined, decided string // the latter without the outcome
		summary, args              string // what a person is shown
	}{
		"item/fileChange/requestApproval": {
			allowed: `{"decision":"accept"} ok`, declined: `{"decision":"decline"} ok`, decided: "codex:edit",
			summary: "edit DIR/f", args: `"diff":"hi\n"`,
		},
		"item/permissions/requestApproval": {
			allowed:  `{"permissions":{"network":{"enabled":true}},"scope":"turn"} ok`,
			declined: `{"permissions":{},"scope":"turn"} ok`, decided: "codex:permissions",
			summary: "more permissions for this turn", args: `"network":{"enabled":true}`,
		},
		"descendant": { // an agent of Codex's own asks
			allowed: `{"decision":"accept"} ok`, declined: `{"decision":"decline"} ok`, decided: "codex:command",
			summary: "something beside a command", args: `{}`, // of which nothing is known here
		},
	} {
		for _, allow := range []bool{true, false} {
			t.Run(fmt.Sprint(method, " ", allow), func(t *testing.T) {
				t.Parallel()
				want, outcome := c.declined, tool.ApprovalRejected
				if allow {
					want, outcome = c.allowed, tool.ApprovalAllowedOnce
				}
				dir := t.TempDir()
				p := fake(t, "", func(cfg *codex.Config) { cfg.Permission, cfg.Dir = external.Ask, dir })
				person := approver{outcome, make(chan *tool.ApprovalRequest, 1)}
				s := system(t, p, subagenttest.Options{Approver: person})
				parent := s.Parent(t)
				res := subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), subagenttest.Request(parent, "[[agent:say ok]][[agent:noise ask "+method+"]]")))
				if got := message.JoinText(res.Output); got != want {
					t.Errorf("%+v, want %q", res, want)
				}
				if got := decisions(parent); got != c.decided+" "+string(outcome) {
					t.Errorf("decided %q", got)
				}
				var req *tool.ApprovalRequest
				select {
				case req = <-person.asked:
				default:
					t.Fatal("nobody was asked")
				}
				if lasting := strings.Contains(req.Options[0].Label, "until its turn ends"); lasting != (c.decided == "codex:permissions") {
					t.Errorf("a person is offered %q", req.Options[0].Label)
				}
				if req.Summary != strings.ReplaceAll(c.summary, "DIR", dir) || !strings.Contains(string(req.Args), c.args) || !json.Valid(req.Args) {
					t.Errorf("a person was shown %q, %s", req.Summary, req.Args)
				}
			})
		}
	}
}

// Whatever is declined without a question stands in the log too.
func TestDeclinedInAnyCase(t *testing.T) {
	for method, decided := range map[string]string{
		"item/tool/requestUserInput":    "codex:question rejected",
		"mcpServer/elicitation/request": "codex:elicitation rejected",
	} {
		p := fake(t, "", func(cfg *codex.Config) { cfg.Permission = external.Allow })
		s := system(t, p, subagenttest.Options{})
		parent := s.Parent(t)
		subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), subagenttest.Request(parent, "[[agent:say ok]][[agent:noise ask "+method+"]]")))
		if got := decisions(parent); got != decided {
			t.Errorf("decided %q, want %q", got, decided)
		}
	}
}

// A cancel takes a question back, and the run ends although nobody has answered.
func TestCancelledWhileAsking(t *testing.T) {
	p := fake(t, "", func(cfg *codex.Config) { cfg.Permission = external.Ask })
	person := approver{"", make(chan *tool.ApprovalRequest, 1)}
	s := system(t, p, subagenttest.Options{Approver: person})
	parent := s.Parent(t)
	ctx, cancel := context.WithCancel(t.Context())
	run := s.Start(t, ctx, p.Name(), subagenttest.Request(parent, "[[agent:run true]][[agent:say done]]"))
	<-person.asked
	cancel()
	if res := subagenttest.Await(t, run); res.StopReason != subagent.StopAborted {
		t.Errorf("%+v", res)
	}
	if got := decisions(parent); got != "codex:command cancelled" {
		t.Errorf("decided %q", got)
	}
}

// A question that Codex no longer wants answered is taken back while its turn goes on.
func TestWithdrawn(t *testing.T) {
	p := fake(t, "", func(cfg *codex.Config) { cfg.Permission = external.Ask })
	s := system(t, p, subagenttest.Options{Approver: approver{"", make(chan *tool.ApprovalRequest, 1)}})
	parent := s.Parent(t)
	run := s.Start(t, t.Context(), p.Name(), subagenttest.Request(parent, "[[agent:noise withdraw]][[agent:say part]][[agent:hang]]"))
	products.Until(t, "the question is taken back", func() bool { return decisions(parent) == "codex:command cancelled" })
	if err := run.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// What Codex is told: the folder, the model, the persona, the schema, the prompt; and of the
// parent nothing else (OOPX-01, OOPX-20).
func TestTold(t *testing.T) {
	dir := t.TempDir()
	record := filepath.Join(t.TempDir(), "lines")
	p := fake(t, "record="+record, func(c *codex.Config) {
		c.Dir, c.Model, c.ModelProvider, c.Overrides = dir, "mine", "p", map[string]any{"model_reasoning_effort": "low"}
	})
	s := system(t, p, subagenttest.Options{})
	req := subagenttest.Request(s.Parent(t), `[[agent:say words]][[agent:structured {"n":1}]]`)
	req.Model.Model = "other"
	req.Persona = &subagent.Persona{Text: "Be {{provider}} in {{cwd}}."}
	req.OutputSchema = []byte(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`)
	res := subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), req))
	if res.StopReason != subagent.StopCompleted || string(res.Structured) != `{"n":1}` {
		t.Fatalf("%+v", res)
	}
	data, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	want := []string{
		`{"id":0,"method":"initialize","params":{"capabilities":{"experimentalApi":false,"requestAttestation":false},"clientInfo":{"name":"offshoot","title":"Offshoot","version":"1"}}}`,
		`{"method":"initialized"}`,
		`{"id":1,"method":"thread/start","params":{"cwd":"DIR","ephemeral":true,"approvalPolicy":"on-request","approvalsReviewer":"user","sandbox":"read-only","developerInstructions":"Be codex in DIR.","model":"other","modelProvider":"p","config":{"model_reasoning_effort":"low"}}}`,
		`{"id":2,"method":"turn/start","params":{"threadId":"thread-1","input":[{"type":"text","text":"[[agent:say words]][[agent:structured {\"n\":1}]]","text_elements":[]}],"outputSchema":` + string(req.OutputSchema) + `}}`,
	}
	if len(lines) != len(want) {
		t.Fatalf("%d lines:\n%s", len(lines), data)
	}
	for i := range want {
		if w := strings.ReplaceAll(want[i], "DIR", dir); lines[i] != w {
			t.Errorf("line %d is\n%s, want\n%s", i, lines[i], w)
		}
	}
}

// OOPX-12: secrets of this program do not reach Codex and what it starts, unless they are
// given to it.
func TestEnvironment(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "ambient")
	dir := t.TempDir()
	p := fake(t, "", func(c *codex.Config) {
		c.Dir, c.Permission, c.Env["GIVEN_KEY"] = dir, external.Allow, "given"
	})
	s := system(t, p, subagenttest.Options{})
	subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), subagenttest.Request(s.Parent(t), "[[agent:run env > made]][[agent:say done]]")))
	env, err := os.ReadFile(filepath.Join(dir, "made"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(env), "ambient") || !strings.Contains(string(env), "GIVEN_KEY=given\n") || !strings.Contains(string(env), "PATH=") {
		t.Errorf("the environment is %s", env)
	}
}

// SO-18: an answer that has not the form that was asked for is none.
func TestStructured(t *testing.T) {
	for name, c := range map[string]struct{ prompt, diagnostic string }{
		"prose":     {"[[agent:say words]]", "the answer does not have the form that was asked for"},
		"wrong":     {`[[agent:structured {"n":"1"}]]`, "the answer does not have the form that was asked for"},
		"no answer": {"x", "there is no answer in the form that was asked for"},
	} {
		t.Run(name, func(t *testing.T) {
			p := fake(t, "", nil)
			s := system(t, p, subagenttest.Options{})
			req := subagenttest.Request(s.Parent(t), c.prompt)
			req.OutputSchema = []byte(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`)
			res := subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), req))
			if res.StopReason != subagent.StopError || res.Structured != nil || res.Diagnostic != c.diagnostic {
				t.Errorf("%+v, want %q", res, c.diagnostic)
			}
		})
	}
}

// OOPX-04, OOPX-22: what makes no sense is refused, also without the configuration.
func TestNew(t *testing.T) {
	for want, cfg := range map[string]codex.Config{
		"Grace is negative": {Config: external.Config{Grace: -1}},
		"permission":        {Config: external.Config{Permission: "all"}},
		"no such file":      {Config: external.Config{Dir: "/no/such"}},
		"Overrides":         {Overrides: map[string]any{"x": func() {}}},
	} {
		if _, err := codex.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	p, err := codex.New(codex.Config{})
	if err != nil || p.Name() != "codex" || p.InheritsParentContext() || p.Capabilities() != (subagent.Capabilities{OutputSchema: true, Persona: true}) {
		t.Errorf("%+v, %v", p, err)
	}
}

// Abort kills what would not go by itself; the run ends as after any other death.
func TestAbort(t *testing.T) {
	p := fake(t, "ignore=eof ignore=term", func(c *codex.Config) { c.EOFGrace, c.Grace = time.Hour, time.Hour })
	s := system(t, p, subagenttest.Options{})
	run := s.Start(t, t.Context(), p.Name(), subagenttest.Request(s.Parent(t), "[[agent:say part]][[agent:hang]]"))
	products.Until(t, "it said its part", func() bool { return codex.Said(run) == "part" })
	if err := p.Abort(); err != nil {
		t.Error(err)
	}
	res := subagenttest.Await(t, run)
	if res.StopReason != subagent.StopError || message.JoinText(res.Output) != "part" || res.Diagnostic != "the product's process ended in the middle of its work: signal SIGKILL" {
		t.Errorf("%+v", res)
	}
}

func TestProbe(t *testing.T) {
	p := fake(t, "", nil)
	if r, err := p.Probe(t.Context(), t.TempDir()); err != nil || r.About != "Codex 9.8.7" || r.Ready <= 0 {
		t.Errorf("%+v, %v", r, err)
	}
	p = fake(t, "session=asks", nil)
	if _, err := p.Probe(t.Context(), t.TempDir()); err != nil {
		t.Error(err)
	}
	p = fake(t, "session=sandbox", nil)
	if _, err := p.Probe(t.Context(), t.TempDir()); !errors.Is(err, subagent.ErrStartFailed) {
		t.Errorf("%v", err)
	}
}

// A persona may name the model that is configured (COMP-36).
func TestPersonaNamesTheModel(t *testing.T) {
	p := fake(t, "", func(c *codex.Config) { c.Model = "the-model" })
	s := system(t, p, subagenttest.Options{})
	req := subagenttest.Request(s.Parent(t), "[[agent:say hi]]")
	req.Persona = &subagent.Persona{Text: "You are {{model}}."}
	if res := subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), req)); res.StopReason != subagent.StopCompleted {
		t.Errorf("%+v", res)
	}
}
