package codex_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/internal/products"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/codex"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// stage is the real Codex against a fake model.
type stage struct {
	*subagenttest.System
	p            *codex.Provider
	model        *fakemodel.Server
	home         string // its configuration, and a value in the environment of its processes
	dir, outside string // the folder to work in, and another one
	program      string
	config       []byte
}

func realCodex(t *testing.T, o subagenttest.Options, change func(*codex.Config)) *stage {
	t.Helper()
	a := products.FindAgents(t)
	st := &stage{program: a.Need(t, a.Codex, "Codex"), home: t.TempDir(), dir: t.TempDir(), outside: t.TempDir()}
	var err error
	if st.model, err = fakemodel.Open(fakemodel.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.model.Close)
	t.Cleanup(func() { heard(t, st.model) })
	env, err := products.CodexEnv(st.home, st.model)
	if err != nil {
		t.Fatal(err)
	}
	cfg := codex.Config{ModelProvider: products.CodexProvider, Config: external.Config{
		Command: st.program, Env: env, Dir: st.dir,
	}}
	if st.config, err = os.ReadFile(filepath.Join(st.home, "config.toml")); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&cfg)
	}
	st.p = provider(t, cfg)
	st.System = system(t, st.p, o)
	t.Cleanup(func() {
		products.Empty(t, "left behind the run", func() []string { return products.Marked(t, st.home) })
	})
	return st
}

// sandboxed reports whether the model was told of something that the sandbox refused.
func (st *stage) sandboxed() bool {
	all := st.model.Requests()
	return slices.ContainsFunc(all[len(all)-1].Messages, func(m fakemodel.Message) bool {
		return m.Role == "tool" && strings.Contains(m.Text, "Read-only file system")
	})
}

// heard says in a test that failed what the model was told last: what became of its calls.
func heard(t *testing.T, model *fakemodel.Server) {
	t.Helper()
	if all := model.Requests(); t.Failed() && len(all) > 0 {
		for _, m := range all[len(all)-1].Messages {
			t.Logf("the model heard as %s: %.2000q", m.Role, m.Text)
		}
	}
}

func (st *stage) run(t *testing.T, ctx context.Context, prompt string) subagent.Run {
	t.Helper()
	return st.Start(t, ctx, st.p.Name(), subagenttest.Request(st.Parent(t), prompt))
}

// answers checks a result, and that it came from the fake model.
func (st *stage) answers(t *testing.T, res subagent.Result, reason subagent.StopReason, text, diagnostic string) {
	t.Helper()
	if got := message.JoinText(res.Output); res.StopReason != reason || got != text || res.Diagnostic != diagnostic {
		t.Errorf("%s, %.80q, %q; want %s, %.80q, %q", res.StopReason, got, res.Diagnostic, reason, text, diagnostic)
	}
	if st.model.Total() == 0 {
		t.Error("it never asked the fake model")
	}
}

func command(cmd string) string { return fmt.Sprintf(`[[fake:tool exec_command {"cmd":%q}]]`, cmd) }

// escalated is a command that is to run outside of the sandbox.
func escalated(cmd string) string {
	return fmt.Sprintf(`[[fake:tool exec_command {"cmd":%q,"sandbox_permissions":"require_escalated","justification":"it must"}]]`, cmd)
}

// edit adds the file "made".
func edit() string {
	return command("apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: made\n+hi\n*** End Patch\nEOF")
}

// The real Codex, cell by cell.
func TestProduct(t *testing.T) {
	t.Run("codex", func(t *testing.T) {
		t.Run("answers", testAnswers)
		t.Run("permissions", testPermissions)
		t.Run("cancels", testCancels)
		t.Run("ends", testEnds)
		t.Run("requests", testRequests)
		t.Run("starts", testStarts)
		t.Run("protocol", testProtocol)
	})
}

func testAnswers(t *testing.T) {
	for _, c := range []struct {
		cell, prompt     string
		reason           subagent.StopReason
		text, diagnostic string
	}{
		{"reply", "[[fake:reply hello]]", "completed", "hello", ""},
		{"reasoning", "[[fake:think hidden]] [[fake:reply hello]]", "completed", "hello", ""},
		{"tool", "[[fake:reply I look.]]" + command("echo found") + "[[fake:reply It is {{match:f.und}}.]]", "completed", "It is found.", ""},
		{"a line of a megabyte", command("seq 1 300000") + "[[fake:reply done]]", "completed", "done", ""},
		{"no network", command("(echo > /dev/tcp/MODEL) 2> /dev/null && echo reached || echo cut off") + "[[fake:reply {{match:reached|cut off}}]]", "completed", "cut off", ""},
		{"empty", "[[fake:empty]]", "error", "", "the agent ended without an answer"},
		{"refusal", "[[fake:refusal no]]", "error", "", "the agent ended without an answer"},
		{"filter", "[[fake:refusal]]", "error", "", "Codex's turn failed: other"},
		{"token limit", "[[fake:length part]]", "error", "part", "Codex's turn failed: other"},
		{"HTTP 400", "[[fake:status 400]]", "error", "", "Codex's turn failed: other"},
		{"HTTP 401", "[[fake:status 401]]", "error", "", "Codex's turn failed: httpConnectionFailed (HTTP status 401)"},
		{"HTTP 429", "[[fake:status 429]]", "error", "", "Codex's turn failed: responseTooManyFailedAttempts (HTTP status 429)"},
		{"HTTP 500", "[[fake:status 500]]", "error", "", "Codex's turn failed: internalServerError"},
		{"cut", "[[fake:reply part]] [[fake:cut]]", "error", "part", "Codex's turn failed: other"},
	} {
		t.Run(c.cell, func(t *testing.T) {
			st := realCodex(t, subagenttest.Options{}, nil)
			began := time.Now()
			run := st.run(t, t.Context(), strings.ReplaceAll(c.prompt, "MODEL", strings.ReplaceAll(strings.TrimPrefix(st.model.Origin(), "http://"), ":", "/")))
			ready := time.Since(began)
			res, err := run.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("ready after %s, result after %s", ready, time.Since(began))
			if err := run.Close(t.Context()); err != nil {
				t.Error(err)
			}
			st.answers(t, res, c.reason, c.text, c.diagnostic)
		})
	}
}

// What each permission is for the real Codex: the file is there or not, and the decisions
// stand in the parent's log (OOPX-16, OOPX-22).
func testPermissions(t *testing.T) {
	inside, outside := "touch made", "touch OUTSIDE/made"
	for _, c := range []struct {
		cell       string
		permission external.Permission
		policy     tool.Policy
		answer     tool.ApprovalOutcome // of a person
		prompt     string
		made, left bool // the file inside, the file outside
		decided    string
	}{
		{"denied, command", external.Deny, "", "", command(inside), false, false, ""}, // the sandbox
		{"denied, escalated", external.Deny, "", "", escalated(inside), false, false, "codex:command rejected"},
		{"denied, edit", external.Deny, "", "", edit(), false, false, "codex:edit rejected"},
		{"ceiling reads, command", external.Allow, tool.PolicyReadOnly, "", command(inside), false, false, ""},
		{"ceiling reads, escalated", external.Allow, tool.PolicyReadOnly, "", escalated(outside), false, false, "codex:command rejected"},
		{"ceiling reads, edit", external.Allow, tool.PolicyReadOnly, "", edit(), false, false, "codex:edit rejected"},
		{"asked and allowed, command", external.Ask, "", tool.ApprovalAllowedOnce, command(inside), true, false, "codex:command allowed-once"},
		{"asked and allowed, twice", external.Ask, "", tool.ApprovalAllowedOnce, command(inside) + "[[fake:next]]" + command(inside), true, false, "codex:command allowed-once, codex:command allowed-once"},
		{"asked and allowed, edit", external.Ask, "", tool.ApprovalAllowedOnce, edit(), true, false, "codex:edit allowed-once"},
		{"asked and rejected, command", external.Ask, "", tool.ApprovalRejected, command(inside), false, false, "codex:command rejected"},
		{"asked and rejected, escalated", external.Ask, "", tool.ApprovalRejected, escalated(outside), false, false, "codex:command rejected"},
		{"asked and rejected, edit", external.Ask, "", tool.ApprovalRejected, edit(), false, false, "codex:edit rejected"},
		{"ceiling asks, command", external.Allow, tool.PolicyAsk, tool.ApprovalRejected, command(inside), false, false, "codex:command rejected"},
		{"allowed, command", external.Allow, "", "", command(inside), true, false, ""},
		{"allowed, edit", external.Allow, "", "", edit(), true, false, ""},
		{"allowed, outside", external.Allow, "", "", command(outside), false, false, ""}, // the sandbox
		{"allowed, escalated", external.Allow, "", "", escalated(outside), false, true, "codex:command allowed-once"},
		{"allowed, escalated twice", external.Allow, "", "", escalated(outside) + "[[fake:next]]" + escalated(outside), false, true, "codex:command allowed-once, codex:command allowed-once"},
	} {
		t.Run(c.cell, func(t *testing.T) {
			var st *stage
			var parent *agent.Agent
			for range 5 {
				var o subagenttest.Options
				if c.answer != "" {
					o.Approver = approver{c.answer, make(chan *tool.ApprovalRequest, 9)}
				}
				st = realCodex(t, o, func(cfg *codex.Config) {
					cfg.Permission = c.permission
					if c.policy != "" {
						cfg.Policy = policy(c.policy)
					}
				})
				parent = st.Parent(t)
				prompt := strings.ReplaceAll(c.prompt, "OUTSIDE", st.outside) + "[[fake:next]][[fake:reply done]]"
				res := subagenttest.Await(t, st.Start(t, t.Context(), st.p.Name(), subagenttest.Request(parent, prompt)))
				st.answers(t, res, subagent.StopCompleted, "done", "")
				// Codex runs what a person allowed in its sandbox first, and may miss that this has refused.
				if c.permission != external.Ask || !c.made || !st.sandboxed() {
					break
				}
				t.Log("Codex took what its sandbox refused for a failure of the command")
			}
			for path, want := range map[string]bool{filepath.Join(st.dir, "made"): c.made, filepath.Join(st.outside, "made"): c.left} {
				if _, err := os.Stat(path); (err == nil) != want {
					t.Errorf("%s: %v, want it there: %v", path, err, want)
				}
			}
			if got := decisions(parent); got != c.decided {
				t.Errorf("decided %q, want %q", got, c.decided)
			}
			if config, err := os.ReadFile(filepath.Join(st.home, "config.toml")); err != nil || !bytes.Equal(config, st.config) {
				t.Errorf("its configuration has become %s, %v", config, err)
			}
		})
	}
}

// OOPX-07, OOPX-28: a cancel reaches the model's vendor, and keeps what was said.
func testCancels(t *testing.T) {
	for _, c := range []struct{ cell, prompt, text string }{
		{"silent", "[[fake:stall]]", ""},
		{"mid-stream", "[[fake:reply part]] [[fake:stall]]", "part"},
	} {
		t.Run(c.cell, func(t *testing.T) {
			st := realCodex(t, subagenttest.Options{}, nil)
			ctx, cancel := context.WithCancel(t.Context())
			run := st.run(t, ctx, c.prompt)
			products.Until(t, "the model was asked", func() bool { return st.model.InFlight() == 1 && codex.Said(run) == c.text })
			began := time.Now()
			cancel()
			res, err := run.Wait(t.Context())
			if took := time.Since(began); err != nil || took > time.Second {
				t.Errorf("%v, after %s", err, took)
			}
			st.answers(t, res, subagent.StopAborted, c.text, "")
			products.Until(t, "the model is left", func() bool { return st.model.InFlight() == 0 })
			if err := run.Close(t.Context()); err != nil {
				t.Error(err)
			}
			t.Logf("closed after %s", time.Since(began))
		})
	}
}

// OOPX-10, OOPX-30: nothing of a tree is left, whoever ends.
func testEnds(t *testing.T) {
	t.Run("lingering descendants", func(t *testing.T) {
		script, lingering := products.Linger(t)
		st := realCodex(t, subagenttest.Options{}, func(c *codex.Config) { c.Permission = external.Allow })
		run := st.run(t, t.Context(), escalated("sh "+script+" > /dev/null 2>&1 &")+"[[fake:reply left them]]")
		res, err := run.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		st.answers(t, res, subagent.StopCompleted, "left them", "")
		// Codex itself ends what has stayed in the command's session.
		products.Until(t, "its processes linger", func() bool { return len(lingering()) >= 2 })
		if err := run.Close(t.Context()); err != nil {
			t.Error(err)
		}
		products.Empty(t, "lingering", lingering)
	})
	t.Run("cancelled while a command runs", func(t *testing.T) {
		script, lingering := products.Linger(t)
		st := realCodex(t, subagenttest.Options{}, func(c *codex.Config) { c.Permission = external.Allow })
		ctx, cancel := context.WithCancel(t.Context())
		run := st.run(t, ctx, escalated("sh "+script)+"[[fake:reply done]]")
		products.Until(t, "its processes linger", func() bool { return len(lingering()) == 4 })
		cancel()
		if res := subagenttest.Await(t, run); res.StopReason != subagent.StopAborted {
			t.Errorf("%+v", res)
		}
		products.Empty(t, "lingering", lingering)
	})
	t.Run("child killed", func(t *testing.T) {
		st := realCodex(t, subagenttest.Options{}, nil)
		run := st.run(t, t.Context(), "[[fake:reply part]] [[fake:stall]]")
		products.Until(t, "it said a part", func() bool { return codex.Said(run) == "part" })
		products.Kill(t, st.home, st.program)
		res := subagenttest.Await(t, run)
		st.answers(t, res, subagent.StopError, "part", "the product's process ended in the middle of its work: signal SIGKILL")
	})
	t.Run("parent killed", func(t *testing.T) {
		products.FindAgents(t)
		script, lingering := products.Linger(t)
		products.KillHost(t, "TestHost", script, lingering)
	})
}

// What reaches the model: the persona and the form of the answer.
func testRequests(t *testing.T) {
	const schema = `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`
	ask := func(t *testing.T, st *stage, prompt string) subagent.Result {
		t.Helper()
		req := subagenttest.Request(st.Parent(t), prompt)
		req.OutputSchema = []byte(schema)
		req.Persona = &subagent.Persona{Text: "You are a pirate."}
		req.Model.Model = "another-model"
		return subagenttest.Await(t, st.Start(t, t.Context(), st.p.Name(), req))
	}
	t.Run("structured output and persona", func(t *testing.T) {
		st := realCodex(t, subagenttest.Options{}, nil)
		res := ask(t, st, `[[fake:reply {"n":1}]]`)
		st.answers(t, res, subagent.StopCompleted, `{"n":1}`, "")
		if string(res.Structured) != `{"n":1}` {
			t.Errorf("structured %s", res.Structured)
		}
		r := st.model.Requests()[0]
		persona := false
		for _, m := range r.Messages {
			persona = persona || m.Role == "developer" && strings.Contains(m.Text, "You are a pirate.")
		}
		if !persona || r.Model != "another-model" {
			t.Errorf("the model %s was asked %+v", r.Model, r.Messages)
		}
		if !bytes.Contains(r.Body, []byte(`"type":"json_schema"`)) || !bytes.Contains(r.Body, []byte(`"strict":true`)) {
			t.Errorf("the model was asked %s", r.Body)
		}
	})
	t.Run("answer without the form", func(t *testing.T) {
		st := realCodex(t, subagenttest.Options{}, nil)
		st.answers(t, ask(t, st, `[[fake:reply {"n":"1"}]]`), subagent.StopError, `{"n":"1"}`, "the answer does not have the form that was asked for")
	})
	t.Run("schema that the vendor refuses", func(t *testing.T) {
		st := realCodex(t, subagenttest.Options{}, nil)
		st.model.SetScript(fakemodel.Always(fakemodel.BadRequest))
		st.answers(t, ask(t, st, "x"), subagent.StopError, "", "Codex's turn failed: other")
	})
	t.Run("longest prompt", func(t *testing.T) {
		st := realCodex(t, subagenttest.Options{}, nil)
		st.model.SetScript(fakemodel.Always(fakemodel.Text("read it")))
		res := subagenttest.Await(t, st.run(t, t.Context(), strings.Repeat("é", codex.MaxPrompt)))
		st.answers(t, res, subagent.StopCompleted, "read it", "")
	})
}

func testStarts(t *testing.T) {
	t.Run("configuration that cannot be read", func(t *testing.T) {
		st := realCodex(t, subagenttest.Options{}, nil)
		if err := os.WriteFile(filepath.Join(st.home, "config.toml"), []byte("this is no TOML ["), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := st.Service.Start(t.Context(), st.p.Name(), subagenttest.Request(st.Parent(t), "x"))
		if !errors.Is(err, subagent.ErrStartFailed) {
			t.Errorf("%v", err)
		}
		t.Logf("%v", err)
	})
	t.Run("probe", func(t *testing.T) {
		st := realCodex(t, subagenttest.Options{}, nil)
		r, err := st.p.Probe(t.Context(), st.dir)
		if err != nil || r.About != "Codex 0.171.0" || r.Ready <= 0 {
			t.Errorf("%+v, %v", r, err)
		}
		t.Logf("ready in %s", r.Ready)
	})
}

// The words of the protocol that this version of Codex knows. One that is new here wants a
// decision.
func testProtocol(t *testing.T) {
	st := realCodex(t, subagenttest.Options{}, nil)
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), st.program, "app-server", "generate-json-schema", "--out", dir)
	cmd.Env = []string{"HOME=" + st.home, "CODEX_HOME=" + st.home}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	read := func(name string, into any) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatal(err)
		}
	}
	var completed struct {
		Definitions struct {
			CodexErrorInfo struct {
				AnyOf []struct {
					Enum       []string
					Properties map[string]any
				}
			}
		}
	}
	read(filepath.Join("v2", "TurnCompletedNotification.json"), &completed)
	var words []string
	for _, alternative := range completed.Definitions.CodexErrorInfo.AnyOf {
		words = append(words, alternative.Enum...)
		words = slices.AppendSeq(words, maps.Keys(alternative.Properties))
	}
	slices.Sort(words)
	if diff := cmp.Diff(slices.Sorted(slices.Values(codex.Categories())), words); diff != "" {
		t.Errorf("words for failures (-ours +theirs):\n%s", diff)
	}
	var requests struct {
		OneOf []struct {
			Properties struct{ Method struct{ Enum []string } }
		}
	}
	read("ServerRequest.json", &requests)
	known, refused := 0, []string{}
	for _, r := range requests.OneOf {
		for _, method := range r.Properties.Method.Enum {
			if codex.Known(method) {
				known++
				continue
			}
			refused = append(refused, method)
		}
	}
	slices.Sort(refused)
	want := []string{
		"account/chatgptAuthTokens/refresh", "applyPatchApproval", "attestation/generate", "execCommandApproval", "item/tool/call",
	}
	if diff := cmp.Diff(want, refused); diff != "" || known != 5 {
		t.Errorf("%d requests are known; those that are not (-want +got):\n%s", known, diff)
	}
}

// TestHost is the program that is killed while a Codex works for it.
func TestHost(t *testing.T) {
	script := os.Getenv(products.HostVariable)
	if script == "" {
		t.Skip("it is a part of TestProduct")
	}
	st := realCodex(t, subagenttest.Options{}, func(c *codex.Config) { c.Permission = external.Allow })
	run := st.run(t, t.Context(), escalated("sh "+script)+"[[fake:stall]]")
	if _, err := run.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Error("its command has ended")
}
