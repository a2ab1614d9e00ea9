package claudecode_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/internal/products"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/claudecode"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// stage is the real Claude Code against a fake model.
type stage struct {
	*subagenttest.System
	p         *claudecode.Provider
	model     *fakemodel.Server
	home, dir string // home is also a value in the environment of its processes
	program   string
}

func realClaude(t *testing.T, o subagenttest.Options, change func(*claudecode.Config)) *stage {
	t.Helper()
	a := products.FindAgents(t)
	st := &stage{program: a.Need(t, a.Claude, "Claude Code"), home: t.TempDir(), dir: t.TempDir()}
	var err error
	// Claude Code has roles in its requests that the public wire does not have.
	if st.model, err = fakemodel.Open(fakemodel.Options{Lenient: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.model.Close)
	run, sockets := products.ClaudeSockets(t)
	env, err := products.ClaudeEnv(st.home, run, st.model, st.dir)
	if err != nil {
		t.Fatal(err)
	}
	cfg := claudecode.Config{Config: external.Config{Command: st.program, Env: env, Dir: st.dir}}
	if change != nil {
		change(&cfg)
	}
	st.p = provider(t, cfg)
	st.System = system(t, st.p, o)
	t.Cleanup(func() {
		products.Empty(t, "left behind the run", func() []string { return products.Marked(t, st.home) })
		products.Empty(t, "sockets", sockets)
	})
	return st
}

func (st *stage) run(t *testing.T, ctx context.Context, prompt string) subagent.Run {
	t.Helper()
	return st.Start(t, ctx, st.p.Name(), subagenttest.Request(st.Parent(t), prompt))
}

// answers checks a result, and that it came from the fake model.
func (st *stage) answers(t *testing.T, res subagent.Result, reason subagent.StopReason, text, diagnostic string) {
	t.Helper()
	check(t, res, reason, text, diagnostic)
	if st.model.Total() == 0 {
		t.Error("it never asked the fake model")
	}
}

func bash(cmd string) string { return fmt.Sprintf(`[[fake:tool Bash {"command":%q}]]`, cmd) }
func write() string          { return `[[fake:tool Write {"file_path":"made","content":"x"}]]` }

// The real Claude Code, cell by cell.
func TestProduct(t *testing.T) {
	t.Run("claude", func(t *testing.T) {
		t.Run("answers", testAnswers)
		t.Run("permissions", testPermissions)
		t.Run("traps", testTraps)
		t.Run("cancels", testCancels)
		t.Run("ends", testEnds)
		t.Run("requests", testRequests)
		t.Run("starts", testStarts)
	})
}

// OOPX-16, OOPX-24, OOPX-25: what the model's vendor does, and what it comes to.
func testAnswers(t *testing.T) {
	const failed = "the product could not get an answer of its model: "
	for _, c := range []struct {
		cell, prompt     string
		reason           subagent.StopReason
		text, diagnostic string
	}{
		{"reply", "[[fake:reply hello]]", "completed", "hello", ""},
		{"reasoning", "[[fake:think hidden]] [[fake:reply hello]]", "completed", "hello", ""},
		{"after a tool", "[[fake:reply I look.]]" + `[[fake:tool Glob {"pattern":"*"}]]` + "[[fake:reply It is there.]]", "completed", "It is there.", ""},
		{"no command", "/cost [[fake:reply hello]]", "completed", "hello", ""},
		{"empty", "[[fake:empty]] [[fake:next]] [[fake:empty]]", "error", "", "the agent ended without an answer"},
		{"refusal", "[[fake:refusal]]", "refusal", "", ""},
		{"refusal twice", "[[fake:refusal no]] [[fake:refusal never]]", "refusal", "never", ""},
		{"token limit", strings.Repeat("[[fake:length part]]", 5), "max-tokens", "part", ""},
		{"HTTP 400", "[[fake:status 400]]", "error", "", failed + "unknown (HTTP status 400)"},
		{"HTTP 401", "[[fake:status 401]]", "error", "", failed + "authentication_failed (HTTP status 401)"},
		{"HTTP 500", "[[fake:status 500]]", "error", "", failed + "server_error (HTTP status 500)"},
	} {
		t.Run(c.cell, func(t *testing.T) {
			st := realClaude(t, subagenttest.Options{}, nil)
			began := time.Now()
			run := st.run(t, t.Context(), c.prompt)
			ready := time.Since(began)
			res, err := run.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			done := time.Since(began)
			if err := run.Close(t.Context()); err != nil {
				t.Error(err)
			}
			t.Logf("ready after %s, result after %s, closed after %s", ready, done, time.Since(began))
			st.answers(t, res, c.reason, c.text, c.diagnostic)
		})
	}
}

// OOPX-16, OOPX-22: what each permission is for the real product: the file is there or not, and
// the decisions stand in the parent's log.
func testPermissions(t *testing.T) {
	made := bash("touch made")
	for _, c := range []struct {
		cell       string
		permission external.Permission
		policy     tool.Policy
		answer     tool.ApprovalOutcome // of a person
		prompt     string
		made       bool
		recorded   string
	}{
		{"denied, command", external.Deny, "", "", made, false, "asked rejected"},
		{"denied, edit", external.Deny, "", "", write(), false, "asked rejected"},
		{"denied, twice", external.Deny, "", "", made + "[[fake:next]]" + write(), false, "asked rejected asked rejected"},
		{"ceiling reads, command", external.Allow, tool.PolicyReadOnly, "", made, false, ""},
		{"ceiling reads, edit", external.Allow, tool.PolicyReadOnly, "", write(), false, ""},
		{"asked and allowed, command", external.Ask, "", tool.ApprovalAllowedOnce, made, true, "asked allowed-once"},
		{"asked and allowed, twice", external.Ask, "", tool.ApprovalAllowedOnce, made + "[[fake:next]]" + made, true, "asked allowed-once asked allowed-once"},
		{"asked and rejected, command", external.Ask, "", tool.ApprovalRejected, made, false, "asked rejected"},
		{"asked and rejected, edit", external.Ask, "", tool.ApprovalRejected, write(), false, "asked rejected"},
		{"ceiling asks, command", external.Allow, tool.PolicyAsk, tool.ApprovalRejected, made, false, "asked rejected"},
		{"allowed, command", external.Allow, "", "", made, true, "asked allowed-once"},
		{"allowed, edit", external.Allow, "", "", write(), true, "asked allowed-once"},
		{"allowed, edit twice", external.Allow, "", "", write() + "[[fake:next]]" + strings.ReplaceAll(write(), "made", "also"), true, "asked allowed-once asked allowed-once"},
	} {
		t.Run(c.cell, func(t *testing.T) {
			var o subagenttest.Options
			if c.answer != "" {
				o.Approver = approving(c.answer)
			}
			st := realClaude(t, o, func(cfg *claudecode.Config) {
				if cfg.Permission = c.permission; c.policy != "" {
					cfg.Policy = func(*agent.Agent) tool.Policy { return c.policy }
				}
			})
			parent := st.Parent(t)
			res := subagenttest.Await(t, st.Start(t, t.Context(), st.p.Name(), subagenttest.Request(parent, c.prompt+"[[fake:next]][[fake:reply done]]")))
			st.answers(t, res, subagent.StopCompleted, "done", "")
			if _, err := os.Stat(filepath.Join(st.dir, "made")); (err == nil) != c.made {
				t.Errorf("%v, want it made: %v", err, c.made)
			}
			if got := record(parent); got != c.recorded {
				t.Errorf("on record %q, want %q", got, c.recorded)
			}
		})
	}
}

type approving tool.ApprovalOutcome

func (a approving) Approve(context.Context, *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
	return tool.ApprovalOutcome(a), nil
}

// What a folder tells the product to do: everything in one that is trusted, nothing where only
// reading is permitted, and the product is not even started where the folder is not trusted
// (design § 4, Trust).
func testTraps(t *testing.T) {
	for _, c := range []struct {
		cell   string
		policy tool.Policy
		trust  error
		prompt string
		sprung []string
		made   bool
	}{
		{cell: "a trusted folder", sprung: []string{"hook", "own hook", "server"}, made: true},
		{cell: "reading", policy: tool.PolicyReadOnly},
		{cell: "denied by the ceiling", policy: tool.PolicyDeny},
		{cell: "a command while reading", policy: tool.PolicyReadOnly, prompt: "/trap "},
		{cell: "a folder that is not trusted", trust: errors.New("not trusted")},
	} {
		t.Run(c.cell, func(t *testing.T) {
			st := realClaude(t, subagenttest.Options{}, func(cfg *claudecode.Config) {
				if c.policy != "" {
					cfg.Policy = func(*agent.Agent) tool.Policy { return c.policy }
				}
				if c.trust != nil {
					cfg.Trust = func(string) error { return c.trust }
				}
			})
			sprung := products.ClaudeTraps(t, st.dir, st.home)
			prompt := c.prompt + bash("touch made") + "[[fake:next]]" + write() + "[[fake:next]][[fake:reply done]]"
			run, err := st.Service.Start(t.Context(), st.p.Name(), subagenttest.Request(st.Parent(t), prompt))
			switch {
			case c.trust != nil:
				if !errors.Is(err, subagent.ErrUntrustedFolder) {
					t.Errorf("%v", err)
				}
			case err != nil:
				t.Fatal(err)
			default:
				st.answers(t, subagenttest.Await(t, run), subagent.StopCompleted, "done", "")
			}
			if got := sprung(); !slices.Equal(got, c.sprung) {
				t.Errorf("%q has run, want %q", got, c.sprung)
			}
			if _, err := os.Stat(filepath.Join(st.dir, "made")); (err == nil) != c.made {
				t.Errorf("%v, want it made: %v", err, c.made)
			}
		})
	}
}

// OOPX-07, OOPX-28: a cancel reaches the model's vendor, and keeps what was said.
func testCancels(t *testing.T) {
	for _, c := range []struct {
		cell, prompt, text string
		byClose            bool
	}{
		{cell: "silent", prompt: "[[fake:stall]]"},
		{cell: "mid-stream", prompt: "[[fake:reply part]] [[fake:stall]]", text: "part"},
		{cell: "closed while silent", prompt: "[[fake:stall]]", byClose: true},
	} {
		t.Run(c.cell, func(t *testing.T) {
			st := realClaude(t, subagenttest.Options{}, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			run := st.run(t, ctx, c.prompt)
			products.Until(t, "the model was asked", func() bool { return st.model.InFlight() == 1 && claudecode.Said(run) == c.text })
			began := time.Now()
			if c.byClose {
				if err := run.Close(t.Context()); err != nil {
					t.Error(err)
				}
			} else {
				cancel()
				res, err := run.Wait(t.Context())
				if took := time.Since(began); err != nil || took > time.Second {
					t.Errorf("%+v, %v, after %s", res, err, took)
				}
				products.Until(t, "the model is left", func() bool { return st.model.InFlight() == 0 })
			}
			st.answers(t, subagenttest.Await(t, run), subagent.StopAborted, c.text, "")
			t.Logf("closed after %s", time.Since(began))
		})
	}
}

// OOPX-10, OOPX-30: nothing of a tree is left, whoever ends.
func testEnds(t *testing.T) {
	allow := func(c *claudecode.Config) { c.Permission = external.Allow }
	t.Run("lingering descendants", func(t *testing.T) {
		script, lingering := products.Linger(t)
		st := realClaude(t, subagenttest.Options{}, allow)
		run := st.run(t, t.Context(), bash("sh "+script+" > /dev/null 2>&1 & echo started")+"[[fake:reply left them]]")
		res, err := run.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		st.answers(t, res, subagent.StopCompleted, "left them", "")
		products.Until(t, "its processes linger", func() bool { return len(lingering()) >= 2 })
		if err := run.Close(t.Context()); err != nil {
			t.Error(err)
		}
		products.Empty(t, "lingering", lingering)
	})
	t.Run("cancelled while a command runs", func(t *testing.T) {
		script, lingering := products.Linger(t)
		st := realClaude(t, subagenttest.Options{}, allow)
		ctx, cancel := context.WithCancel(t.Context())
		run := st.run(t, ctx, bash("sh "+script)+"[[fake:reply done]]")
		products.Until(t, "its processes linger", func() bool { return len(lingering()) == 4 })
		cancel()
		if res := subagenttest.Await(t, run); res.StopReason != subagent.StopAborted {
			t.Errorf("%+v", res)
		}
		products.Empty(t, "lingering", lingering)
	})
	t.Run("child killed", func(t *testing.T) {
		st := realClaude(t, subagenttest.Options{}, nil)
		run := st.run(t, t.Context(), "[[fake:reply part]] [[fake:stall]]")
		products.Until(t, "it said a part", func() bool { return claudecode.Said(run) == "part" })
		products.Kill(t, st.home, st.program)
		st.answers(t, subagenttest.Await(t, run), subagent.StopError, "part", "the product's process ended in the middle of its work: signal SIGKILL")
	})
	t.Run("parent killed", func(t *testing.T) {
		products.FindAgents(t)
		script, lingering := products.Linger(t)
		products.KillHost(t, "TestHost", script, lingering)
	})
}

// SO-01, COMP-08, OOPX-20: what reaches the model.
func testRequests(t *testing.T) {
	const schema = `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`
	t.Run("structured output, persona and model", func(t *testing.T) {
		for _, policy := range []tool.Policy{tool.PolicyAllow, tool.PolicyReadOnly} {
			st := realClaude(t, subagenttest.Options{}, func(c *claudecode.Config) {
				c.Model, c.Policy = "mine", func(*agent.Agent) tool.Policy { return policy }
			})
			req := subagenttest.Request(st.Parent(t), `[[fake:tool StructuredOutput {"n":"one"}]] [[fake:next]] [[fake:tool StructuredOutput {"n":1}]] [[fake:reply done]]`)
			req.OutputSchema = []byte(schema)
			req.Persona = &subagent.Persona{Text: "--tools is what a pirate says."}
			req.Model.Model = "claude-theirs"
			res := subagenttest.Await(t, st.Start(t, t.Context(), st.p.Name(), req))
			if res.StopReason != subagent.StopCompleted || string(res.Structured) != `{"n":1}` {
				t.Errorf("%+v", res)
			}
			r := st.model.Requests()[0]
			if r.Model != "claude-theirs" || r.Messages[0].Role != "system" || !strings.Contains(r.Messages[0].Text, "--tools is what a pirate says.") || len(r.Messages[0].Text) < 1000 {
				t.Errorf("the model %s was asked %d %.200q", r.Model, len(r.Messages[0].Text), r.Messages[0].Text)
			}
		}
	})
	t.Run("no answer in the form", func(t *testing.T) {
		st := realClaude(t, subagenttest.Options{}, nil)
		req := subagenttest.Request(st.Parent(t), strings.Repeat("[[fake:reply one]] [[fake:next]]", 9))
		req.OutputSchema = []byte(schema)
		res := subagenttest.Await(t, st.Start(t, t.Context(), st.p.Name(), req))
		if res.StopReason != subagent.StopError || res.Structured != nil {
			t.Errorf("%+v", res)
		}
		t.Logf("%s, %q", message.JoinText(res.Output), res.Diagnostic)
	})
	t.Run("turns", func(t *testing.T) {
		st := realClaude(t, subagenttest.Options{}, func(c *claudecode.Config) { c.MaxTurns = 1 })
		res := subagenttest.Await(t, st.run(t, t.Context(), `[[fake:reply I look.]][[fake:tool Glob {"pattern":"*"}]][[fake:reply done]]`))
		st.answers(t, res, subagent.StopError, "I look.", "the product's turn failed: error_max_turns")
	})
}

func testStarts(t *testing.T) {
	t.Run("no key", func(t *testing.T) {
		st := realClaude(t, subagenttest.Options{}, func(c *claudecode.Config) { delete(c.Env, "ANTHROPIC_API_KEY") })
		check(t, subagenttest.Await(t, st.run(t, t.Context(), "x")), subagent.StopError, "", "the product could not get an answer of its model: authentication_failed")
	})
	t.Run("another mode", func(t *testing.T) {
		st := realClaude(t, subagenttest.Options{}, func(c *claudecode.Config) {
			c.Args = []string{"-p", "--output-format=stream-json", "--verbose", "--input-format=stream-json", "--permission-mode=acceptEdits"}
		})
		_, err := st.Service.Start(t.Context(), st.p.Name(), subagenttest.Request(st.Parent(t), "x"))
		if !errors.Is(err, subagent.ErrStartFailed) || !strings.HasSuffix(err.Error(), "the product is not in the permission mode that was asked for (dontAsk)") {
			t.Errorf("%v", err)
		}
	})
	t.Run("arguments that it does not know", func(t *testing.T) {
		st := realClaude(t, subagenttest.Options{}, func(c *claudecode.Config) { c.Args = []string{"-p", "--no-such-option"} })
		_, err := st.Service.Start(t.Context(), st.p.Name(), subagenttest.Request(st.Parent(t), "x"))
		if !errors.Is(err, subagent.ErrStartFailed) || !strings.HasSuffix(err.Error(), "handshake: the program ended: exit status 1") {
			t.Errorf("%v", err)
		}
	})
	t.Run("probe", func(t *testing.T) {
		st := realClaude(t, subagenttest.Options{}, nil)
		r, err := st.p.Probe(t.Context(), st.dir)
		if err != nil || !strings.HasPrefix(r.About, "Claude Code 2.") || r.Ready <= 0 {
			t.Errorf("%+v, %v", r, err)
		}
		t.Logf("%s, ready in %s", r.About, r.Ready)
	})
}

// TestHost is the program that is killed while a Claude Code works for it.
func TestHost(t *testing.T) {
	script := os.Getenv(products.HostVariable)
	if script == "" {
		t.Skip("it is a part of TestProduct")
	}
	st := realClaude(t, subagenttest.Options{}, func(c *claudecode.Config) { c.Permission = external.Allow })
	run := st.run(t, t.Context(), bash("sh "+script)+"[[fake:stall]]")
	if _, err := run.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Error("its command has ended")
}
