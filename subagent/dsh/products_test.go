package dsh_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/internal/products"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/dsh"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// stage is the real runtime against a fake model.
type stage struct {
	*subagenttest.System
	p     *dsh.Provider
	model *fakemodel.Server
	mark  string // a value in the environment of its processes
	dir   string // the folder to work in
}

func realRuntime(t *testing.T, change func(*dsh.Config)) *stage {
	t.Helper()
	h := products.FindHarness(t)
	model, err := fakemodel.Open(fakemodel.Options{Dialect: fakemodel.DeepSeek})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(model.Close)
	home := t.TempDir()
	r, err := h.Runtime(home, model)
	if err != nil {
		t.Fatal(err)
	}
	st := &stage{model: model, mark: home, dir: t.TempDir()}
	cfg := dsh.Config{Config: external.Config{Command: r.Command, Args: r.Args, Env: r.Env, Dir: st.dir}}
	if change != nil {
		change(&cfg)
	}
	st.p = provider(t, cfg)
	st.System = system(t, st.p, subagenttest.Options{})
	t.Cleanup(func() {
		products.Empty(t, "left behind the run", func() []string { return products.Marked(t, st.mark) })
	})
	return st
}

func (st *stage) run(t *testing.T, ctx context.Context, prompt string) subagent.Run {
	t.Helper()
	return st.Start(t, ctx, st.p.Name(), subagenttest.Request(st.Parent(t), prompt))
}

// The real runtime, cell by cell. Its provider retries five times, as it is configured to do at once.
func TestProduct(t *testing.T) {
	script, lingering := products.Linger(t)
	for _, c := range []struct {
		cell, prompt string
		reason       subagent.StopReason
		text         string
		diagnostic   string
	}{
		{"reply", "[[fake:reply hello]]", "completed", "hello", ""},
		{"reasoning", "[[fake:think hidden]] [[fake:reply hello]]", "completed", "hello", ""},
		{"tool", `[[fake:tool bash {"command":"echo made > made","description":"w"}]] [[fake:reply done]]`, "completed", "done", ""},
		{"lingering descendants", fmt.Sprintf(`[[fake:tool bash {"command":"sh %s > /dev/null 2>&1 &","description":"w"}]] [[fake:reply left them]]`, script), "completed", "left them", ""},
		{"own subagent", `[[fake:tool subagent {"description":"d","prompt":"[[fake:reply not mine]]"}]] [[fake:reply mine]]`, "completed", "mine", ""},
		{"token limit", "[[fake:length part]]", "max-tokens", "part", ""},
		{"refusal", "[[fake:refusal no]]", "error", "", "the runtime's turn failed: CONTENT_FILTER"},
		{"empty", "[[fake:empty]]", "error", "", "the runtime's turn failed: EMPTY_RESPONSE"},
		{"HTTP 400", "[[fake:status 400]]", "error", "", "the runtime's turn failed: INVALID_REQUEST (HTTP status 400)"},
		{"HTTP 500", "[[fake:status 500]]", "error", "", "the runtime's turn failed: SERVER (HTTP status 500)"},
	} {
		t.Run("runtime/"+c.cell, func(t *testing.T) {
			st := realRuntime(t, nil)
			run := st.run(t, t.Context(), c.prompt)
			res, err := run.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if c.cell == "lingering descendants" {
				products.Until(t, "its processes linger", func() bool { return len(lingering()) == 4 })
			}
			if err := run.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if got := message.JoinText(res.Output); res.StopReason != c.reason || got != c.text && c.cell != "refusal" || res.Diagnostic != c.diagnostic {
				t.Errorf("%s, %q, %q; want %s, %q, %q", res.StopReason, got, res.Diagnostic, c.reason, c.text, c.diagnostic)
			}
			if st.model.Total() == 0 {
				t.Error("it never asked the fake model")
			}
			if c.cell == "tool" {
				if _, err := os.Stat(filepath.Join(st.dir, "made")); err != nil {
					t.Error(err)
				}
			}
			products.Empty(t, "lingering", lingering)
		})
	}
	for _, c := range []struct{ cell, prompt, text string }{
		{"cancel while silent", "[[fake:stall]]", ""},
		{"cancel mid-stream", "[[fake:reply part]] [[fake:stall]]", "part"},
	} {
		t.Run("runtime/"+c.cell, func(t *testing.T) {
			st := realRuntime(t, nil)
			ctx, cancel := context.WithCancel(t.Context())
			run := st.run(t, ctx, c.prompt)
			products.Until(t, "the model was asked", func() bool { return st.model.InFlight() == 1 && dsh.Said(run) == c.text })
			began := time.Now()
			cancel()
			res, err := run.Wait(t.Context())
			if took := time.Since(began); err != nil || res.StopReason != subagent.StopAborted || message.JoinText(res.Output) != c.text || took > time.Second {
				t.Errorf("%+v, %v, after %s", res, err, took)
			}
			if err := run.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("runtime/child killed", func(t *testing.T) {
		st := realRuntime(t, nil)
		run := st.run(t, t.Context(), "[[fake:reply part]] [[fake:stall]]")
		products.Until(t, "it said a part", func() bool { return dsh.Said(run) == "part" })
		products.Kill(t, st.mark, products.FindHarness(t).Node)
		res := subagenttest.Await(t, run)
		if res.StopReason != subagent.StopError || message.JoinText(res.Output) != "part" || !strings.HasPrefix(res.Diagnostic, "the product's process ended in the middle of its work: signal") {
			t.Errorf("%+v", res)
		}
	})
	t.Run("runtime/unknown model provider", func(t *testing.T) {
		st := realRuntime(t, func(c *dsh.Config) { c.ModelProvider = "nobody" })
		_, err := st.Service.Start(t.Context(), st.p.Name(), subagenttest.Request(st.Parent(t), "x"))
		if !errors.Is(err, subagent.ErrStartFailed) || !strings.HasSuffix(err.Error(), "handshake: the product answered with the error -32603") {
			t.Errorf("%v", err)
		}
	})
	t.Run("runtime/probe", func(t *testing.T) {
		st := realRuntime(t, nil)
		r, err := st.p.Probe(t.Context(), st.dir)
		if err != nil || r.About != "deepseek-harness-sdk-runtime 0.0.1" || r.Ready <= 0 {
			t.Errorf("%+v, %v", r, err)
		}
		t.Logf("ready in %s", r.Ready)
	})
	t.Run("runtime/parent killed", func(t *testing.T) {
		products.FindHarness(t)
		script, lingering := products.Linger(t)
		products.KillHost(t, "TestHost", script, lingering)
	})
}

// TestHost is the program that is killed while a runtime works for it.
func TestHost(t *testing.T) {
	script := os.Getenv(products.HostVariable)
	if script == "" {
		t.Skip("it is a part of TestProduct")
	}
	st := realRuntime(t, nil)
	run := st.run(t, t.Context(), fmt.Sprintf(`[[fake:tool bash {"command":"sh %s","description":"w"}]] [[fake:reply done]]`, script))
	if _, err := run.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Error("its command has ended")
}
