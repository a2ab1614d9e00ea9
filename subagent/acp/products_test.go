package acp_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/internal/products"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/acp"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// product is one real agent.
type product struct {
	name string
	// config is how it is started, with a home of its own; exe is the program that it is.
	config func(t *testing.T, home string, model *fakemodel.Server) (cfg external.Config, exe string)
	// modelled: it asks the fake model. The others play a script that is built into them.
	modelled bool
	// busy: its start takes all processors for seconds, and several at once take longer than one after the other.
	busy bool
}

func (p product) parallel(t *testing.T) {
	t.Helper()
	if !p.busy {
		t.Parallel()
	}
}

func started(r products.Runtime) external.Config {
	return external.Config{Command: r.Command, Args: r.Args, Env: r.Env}
}

var (
	opencode = product{"opencode", func(t *testing.T, home string, model *fakemodel.Server) (external.Config, string) {
		t.Helper()
		a := products.FindAgents(t)
		a.Need(t, a.Opencode, "opencode")
		r, err := a.OpencodeACP(home, model)
		if err != nil {
			t.Fatal(err)
		}
		return started(r), r.Command
	}, true, true}
	dshACP = product{"harness", func(t *testing.T, home string, model *fakemodel.Server) (external.Config, string) {
		t.Helper()
		r, err := products.FindHarness(t).ACP(home, model)
		if err != nil {
			t.Fatal(err)
		}
		return started(r), r.Command
	}, true, false}
	sampleJS = product{"sample-js", func(t *testing.T, home string, _ *fakemodel.Server) (external.Config, string) {
		t.Helper()
		a := products.FindAgents(t)
		return external.Config{Command: a.Node, Args: []string{a.ACPSample}, Env: map[string]string{"HOME": home}}, a.Node
	}, false, false}
)

// sampleGo builds the sample agent of the Go SDK, which go.mod pins.
func sampleGo(t *testing.T) product {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	if out, err := exec.Command("go", "build", "-o", path, "github.com/coder/acp-go-sdk/example/agent").CombinedOutput(); err != nil {
		t.Fatalf("build the sample agent: %v\n%s", err, out)
	}
	return product{"sample-go", func(_ *testing.T, home string, _ *fakemodel.Server) (external.Config, string) {
		return external.Config{Command: path, Env: map[string]string{"HOME": home}}, path
	}, false, false}
}

// stage is a real agent at work.
type stage struct {
	*subagenttest.System
	p      *acp.Provider
	parent *agent.Agent
	model  *fakemodel.Server // nil where it has none
	mark   string            // a value in the environment of its processes
	exe    string
	dir    string // the folder to work in
}

func (p product) stage(t *testing.T, approver tool.Approver, change func(*acp.Config)) *stage {
	t.Helper()
	st := &stage{mark: t.TempDir(), dir: t.TempDir()}
	if p.modelled {
		dialect := fakemodel.OpenAI
		if p.name == dshACP.name {
			dialect = fakemodel.DeepSeek
		}
		var err error
		if st.model, err = fakemodel.Open(fakemodel.Options{Dialect: dialect}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(st.model.Close)
	}
	var cfg acp.Config
	cfg.Config, st.exe = p.config(t, st.mark, st.model)
	cfg.Name, cfg.Dir = p.name, st.dir
	if change != nil {
		change(&cfg)
	}
	st.p = provider(t, cfg)
	st.System = subagenttest.NewSystem(t, subagenttest.Options{Approver: approver})
	st.Register(t, st.p)
	st.parent = st.Parent(t)
	t.Cleanup(func() {
		products.Empty(t, "left behind the run", func() []string { return products.Marked(t, st.mark) })
	})
	return st
}

func (st *stage) run(t *testing.T, ctx context.Context, prompt string) subagent.Run {
	t.Helper()
	began := time.Now()
	run := st.Start(t, ctx, st.p.Name(), subagenttest.Request(st.parent, prompt))
	t.Logf("ready in %s", time.Since(began).Round(time.Millisecond))
	return run
}

// cell is one turn of an agent and what comes of it.
type cell struct {
	name, prompt string
	change       func(*acp.Config)
	permission   external.Permission
	approver     tool.Approver
	reason       subagent.StopReason
	text         string
	diagnostic   string
	log          string // how the decisions on record end
	made         bool   // whether the file is there afterwards
}

// made stands in a prompt for the path of a file outside of the folder to work in. Inside, it is called "made".
const made = "{made}"

func (p product) cells(t *testing.T, cells ...cell) {
	for _, c := range cells {
		t.Run(p.name+"/"+c.name, func(t *testing.T) {
			p.parallel(t)
			st := p.stage(t, c.approver, func(cfg *acp.Config) {
				if cfg.Permission = c.permission; c.change != nil {
					c.change(cfg)
				}
			})
			if err := os.WriteFile(filepath.Join(st.dir, "there"), []byte("a word"), 0o600); err != nil {
				t.Fatal(err)
			}
			outside, inside := filepath.Join(t.TempDir(), "made"), filepath.Join(st.dir, "made")
			began := time.Now()
			res := subagenttest.Await(t, st.run(t, t.Context(), strings.ReplaceAll(c.prompt, made, outside)))
			t.Logf("ended in %s", time.Since(began).Round(time.Millisecond))
			if got := message.JoinText(res.Output); res.StopReason != c.reason || got != c.text || res.Diagnostic != c.diagnostic {
				t.Errorf("%s, %q, %q; want %s, %q, %q", res.StopReason, got, res.Diagnostic, c.reason, c.text, c.diagnostic)
			}
			if got := decisions(st.parent); !strings.HasSuffix(got, c.log) || c.log == "" && got != "" {
				t.Errorf("the log holds %q, want %q", got, c.log)
			}
			_, err := os.Stat(outside)
			_, err2 := os.Stat(inside)
			if (err == nil || err2 == nil) != c.made {
				t.Errorf("the file: %v, %v", err, err2)
			}
			if p.modelled && st.model.Total() == 0 {
				t.Error("it never asked the fake model")
			}
		})
	}
}

// cancels checks that a cancel settles at once with what was said, and that the agent ends its turn for it.
func (p product) cancels(t *testing.T, name, prompt string, ready func(st *stage, said string) bool) {
	t.Run(p.name+"/"+name, func(t *testing.T) {
		p.parallel(t)
		st := p.stage(t, nil, func(c *acp.Config) { c.Permission = external.Allow })
		ctx, cancel := context.WithCancel(t.Context())
		run := st.run(t, ctx, prompt)
		products.Until(t, "it is at work", func() bool { return ready(st, acp.Said(run)) })
		said := acp.Said(run)
		began := time.Now()
		cancel()
		res, err := run.Wait(t.Context())
		if took := time.Since(began); err != nil || res.StopReason != subagent.StopAborted || message.JoinText(res.Output) != said || took > time.Second {
			t.Errorf("%+v, %v, after %s; want %q", res, err, took, said)
		}
		if err := run.Close(t.Context()); err != nil {
			t.Error(err)
		}
		t.Logf("gone in %s", time.Since(began).Round(time.Millisecond))
	})
}

// killed checks what becomes of a run whose agent is killed, once it said something.
func (p product) killed(t *testing.T, prompt string, ready func(st *stage, said string) bool) {
	t.Run(p.name+"/child killed", func(t *testing.T) {
		p.parallel(t)
		st := p.stage(t, nil, nil)
		run := st.run(t, t.Context(), prompt)
		products.Until(t, "it is at work", func() bool { return ready(st, acp.Said(run)) })
		said := acp.Said(run)
		products.Kill(t, st.mark, st.exe)
		res := subagenttest.Await(t, run)
		if res.StopReason != subagent.StopError || message.JoinText(res.Output) != said || !strings.HasPrefix(res.Diagnostic, "the product's process ended in the middle of its work: signal") {
			t.Errorf("%+v, want %q", res, said)
		}
	})
}

// lingers checks that descendants end with the run, and that everything ends with this program.
func (p product) lingers(t *testing.T, prompt string) {
	t.Run(p.name+"/lingering descendants", func(t *testing.T) {
		p.parallel(t)
		script, lingering := products.Linger(t)
		st := p.stage(t, nil, func(c *acp.Config) { c.Permission = external.Allow })
		ctx, cancel := context.WithCancel(t.Context())
		run := st.run(t, ctx, fmt.Sprintf(prompt, script))
		products.Until(t, "its processes linger", func() bool { return len(lingering()) == 4 })
		cancel()
		if res := subagenttest.Await(t, run); res.StopReason != subagent.StopAborted {
			t.Errorf("%+v", res)
		}
		products.Empty(t, "lingering", lingering)
	})
	t.Run(p.name+"/parent killed", func(t *testing.T) {
		p.parallel(t)
		p.stage(t, nil, nil) // skips where there is none
		script, lingering := products.Linger(t)
		products.KillHost(t, "TestProductHost", p.name+" "+script, lingering)
	})
}

const (
	dshLinger      = `[[fake:tool bash {"command":"sh %s","description":"w","sandbox_permissions":"danger-full-access","justification":"j"}]] [[fake:reply done]]`
	opencodeLinger = `[[fake:tool bash {"command":"sh %s","description":"w"}]] [[fake:reply done]]`
)

// TestProductHost is the program that is killed while an agent works for it.
func TestProductHost(t *testing.T) {
	name, script, _ := strings.Cut(os.Getenv(products.HostVariable), " ")
	p, prompt := opencode, opencodeLinger
	switch name {
	case opencode.name:
	case dshACP.name:
		p, prompt = dshACP, dshLinger
	default:
		t.Skip("it is a part of TestProducts")
	}
	st := p.stage(t, nil, func(c *acp.Config) { c.Permission = external.Allow })
	run := st.run(t, t.Context(), fmt.Sprintf(prompt, script))
	if _, err := run.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Error("its command has ended")
}

// OOPX-06, OOPX-07, OOPX-10, OOPX-13, OOPX-14: the ACP agent of another harness.
func TestHarness(t *testing.T) {
	const failed = "the product answered with the error -32603"
	leave := `[[fake:tool bash {"command":"touch ` + made + `","description":"w","sandbox_permissions":"danger-full-access","justification":"j"}]] [[fake:reply done]]`
	dshACP.cells(t,
		cell{name: "reply", prompt: "[[fake:think hidden]] [[fake:reply hello]]", reason: "completed", text: "hello"},
		cell{name: "token limit", prompt: "[[fake:length part]]", reason: "completed", text: "part"}, // it says end_turn
		cell{name: "refusal", prompt: "[[fake:refusal]]", reason: "error", diagnostic: failed},
		cell{name: "empty", prompt: "[[fake:empty]]", reason: "error", diagnostic: failed},
		cell{name: "HTTP 400", prompt: "[[fake:status 400]]", reason: "error", diagnostic: failed},
		cell{name: "HTTP 500", prompt: "[[fake:status 500]]", reason: "error", diagnostic: failed},
		cell{name: "permission allowed", prompt: leave, permission: external.Allow, reason: "completed", text: "done", log: "allowed-once", made: true},
		cell{name: "permission denied", prompt: leave, permission: external.Deny, reason: "completed", text: "done", log: "rejected"},
		cell{name: "permission asked", prompt: leave, permission: external.Ask, approver: answers(tool.ApprovalAllowedOnce), reason: "completed", text: "done", log: "allowed-once", made: true},
		cell{name: "permission dismissed", prompt: leave, permission: external.Ask, approver: answers(tool.ApprovalCancelled), reason: "completed", text: "done", log: "cancelled"},
	)
	asked := func(st *stage, _ string) bool { return st.model.InFlight() > 0 }
	dshACP.cancels(t, "cancel while silent", "[[fake:stall]]", asked)
	dshACP.killed(t, "[[fake:stall]]", asked)
	dshACP.lingers(t, dshLinger)
	t.Run("harness/probe", func(t *testing.T) {
		st := dshACP.stage(t, nil, nil)
		r, err := st.p.Probe(t.Context(), st.dir)
		if err != nil || !strings.HasPrefix(r.About, "deepseek-harness-acp") {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// OOPX-06, OOPX-07, OOPX-10, OOPX-13, OOPX-14: opencode.
func TestOpencode(t *testing.T) {
	leave := `[[fake:tool bash {"command":"touch made","description":"w"}]] [[fake:reply done]]`
	opencode.cells(t,
		cell{name: "reply", prompt: "[[fake:think hidden]] [[fake:reply hello]]", reason: "completed", text: "hello"},
		cell{name: "token limit", prompt: "[[fake:length part]]", reason: "completed", text: "part"}, // it says end_turn
		cell{name: "refusal", prompt: "[[fake:refusal]]", reason: "refusal", diagnostic: "the agent's turn ended with the stop reason refusal"},
		cell{name: "empty", prompt: "[[fake:empty]]", reason: "error", diagnostic: "the agent ended without an answer"},
		cell{name: "permission allowed", prompt: leave, permission: external.Allow, reason: "completed", text: "done", log: "allowed-once", made: true},
		cell{name: "permission denied", prompt: leave, permission: external.Deny, reason: "error", diagnostic: "the agent ended without an answer", log: "rejected"},
	)
	opencode.cells(t,
		// In its mode plan it edits nothing, and still runs commands, unless it is told to ask for them.
		cell{
			name: "mode", prompt: `[[fake:tool write {"filePath":"made","content":"x"}]] [[fake:reply done]]`,
			change: func(c *acp.Config) { c.Mode = "plan"; delete(c.Env, "OPENCODE_PERMISSION") },
			reason: "completed", text: "done",
		},
		cell{
			name: "read-only", prompt: `[[fake:tool read {"filePath":"there"}]] [[fake:reply there is {{match:a word}}]] [[fake:tool bash {"command":"touch made","description":"w"}]]`,
			change: func(c *acp.Config) {
				c.ReadOnlyMode = "plan"
				c.Policy = func(*agent.Agent) tool.Policy { return tool.PolicyReadOnly }
			},
			permission: external.Allow, reason: "completed", text: "there is a word", log: "rejected",
		},
	)
	asked := func(st *stage, _ string) bool { return st.model.InFlight() > 0 }
	opencode.cancels(t, "cancel mid-stream", "[[fake:reply part]] [[fake:stall]]", func(_ *stage, said string) bool { return said == "part" })
	opencode.cancels(t, "HTTP 400", "[[fake:status 400]]", func(st *stage, _ string) bool { return st.model.Total() > 1 })
	opencode.cancels(t, "HTTP 500", "[[fake:status 500]]", func(st *stage, _ string) bool { return st.model.Total() > 1 })
	opencode.killed(t, "[[fake:stall]]", asked)
	opencode.lingers(t, opencodeLinger)
}

// A plugin of the project runs as soon as opencode starts in its folder: in one that is not trusted, nothing is started.
func TestUntrustedPlugin(t *testing.T) {
	for _, trusted := range []bool{false, true} {
		t.Run(fmt.Sprintf("opencode/plugin, trusted %v", trusted), func(t *testing.T) {
			st := opencode.stage(t, nil, func(c *acp.Config) {
				c.Trust = func(string) error {
					if trusted {
						return nil
					}
					return errors.New("a stranger's folder")
				}
			})
			marker := filepath.Join(t.TempDir(), "ran")
			plugin := filepath.Join(st.dir, ".opencode", "plugin", "marker.js")
			if err := os.MkdirAll(filepath.Dir(plugin), 0o700); err != nil {
				t.Fatal(err)
			}
			code := fmt.Sprintf("import { writeFileSync } from 'node:fs'\nexport const Marker = async () => { writeFileSync(%q, 'x'); return {} }\n", marker)
			if err := os.WriteFile(plugin, []byte(code), 0o600); err != nil {
				t.Fatal(err)
			}
			run, err := st.Service.Start(t.Context(), st.p.Name(), subagenttest.Request(st.parent, "[[fake:reply hello]]"))
			if trusted {
				if err != nil {
					t.Fatal(err)
				}
				subagenttest.Await(t, run)
			} else if !errors.Is(err, subagent.ErrUntrustedFolder) {
				t.Errorf("%v, want a refusal", err)
			}
			if _, err := os.Stat(marker); (err == nil) != trusted {
				t.Errorf("the plugin's file: %v", err)
			}
			if trusted != (st.model.Total() > 0) {
				t.Errorf("the model was asked %d times", st.model.Total())
			}
		})
	}
}

// OOPX-14: the sample agents of two implementations of the protocol.
func TestSamples(t *testing.T) {
	const (
		begins  = "I'll help you with that. Let me start by reading some files to understand the current situation. Now I understand the project structure. I need to make some changes to improve it."
		changed = " Perfect! I've successfully updated the configuration. The changes have been applied."
		skipped = " I understand you prefer not to make that change. I'll skip the configuration update."
	)
	for _, s := range []struct {
		product
		greeting string
	}{{sampleJS, ""}, {sampleGo(t), "ACP Go Example Agent — demo only (no AI model)."}} {
		s.cells(t,
			cell{name: "permission allowed", prompt: "x", permission: external.Allow, reason: "completed", text: s.greeting + begins + changed, log: "edit call_2, allowed-once"},
			cell{name: "permission denied", prompt: "x", permission: external.Deny, reason: "completed", text: s.greeting + begins + skipped, log: "edit call_2, rejected"},
			cell{name: "permission dismissed", prompt: "x", permission: external.Ask, approver: answers(tool.ApprovalCancelled), reason: "completed", text: s.greeting + begins, log: "edit call_2, cancelled"},
		)
		some := func(_ *stage, said string) bool { return strings.HasSuffix(said, "situation.") }
		s.cancels(t, "cancel mid-stream", "x", some)
		s.killed(t, "x", some)
	}
}
