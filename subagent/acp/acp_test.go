package acp_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/internal/fakeagent"
	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/internal/products"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/acp"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

func TestMain(m *testing.M) {
	proc.Supervise()
	fakeagent.Become()
	os.Exit(m.Run())
}

// provider makes a provider that needs no configuration but what a test is about.
func provider(t testing.TB, cfg acp.Config) *acp.Provider {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "agent"
	}
	if cfg.Command == "" {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cfg.Command = exe
	}
	p, err := acp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// fake is a provider whose agent is this test binary.
type fake struct {
	*acp.Provider
	dir   string // where it works
	lines string // the file with what it was sent; its name is in the environment of its processes
}

func newFake(t testing.TB, faults string, change func(*acp.Config)) *fake {
	t.Helper()
	f := &fake{dir: t.TempDir(), lines: filepath.Join(t.TempDir(), "lines")}
	cfg := acp.Config{Config: external.Config{
		Env:      map[string]string{fakeagent.As: "acp", fakeagent.Variable: faults + " record=" + f.lines},
		Dir:      f.dir,
		EOFGrace: 200 * time.Millisecond, Grace: 200 * time.Millisecond,
	}}
	if change != nil {
		change(&cfg)
	}
	f.Provider = provider(t, cfg)
	return f
}

// system registers the provider in a system of its own.
func (f *fake) system(t testing.TB, o subagenttest.Options) *subagenttest.System {
	t.Helper()
	s := subagenttest.NewSystem(t, o)
	s.Register(t, f)
	return s
}

// gone checks that nothing is left of the agent.
func (f *fake) gone(t testing.TB) {
	t.Helper()
	if n := acp.Active(f.Provider); n != 0 {
		t.Errorf("%d children hold a process", n)
	}
	products.Empty(t, "left of the agent", func() []string { return products.Marked(t, f.lines) })
}

// sent returns the lines that the agent was sent.
func (f *fake) sent(t testing.TB) string {
	t.Helper()
	lines, err := os.ReadFile(f.lines)
	if err != nil {
		t.Fatal(err)
	}
	return string(lines)
}

// OOPX-05…08, OOPX-14, OOPX-17, OOPX-18: the contract of a one-shot run, with an agent that
// is a goroutine.
func TestConformance(t *testing.T) {
	subagenttest.Run(t, func(t testing.TB, _ *subagenttest.System) subagenttest.Subject {
		desk := &fakeagent.Desk{}
		p := provider(t, acp.Config{Config: external.Config{Dir: t.TempDir()}})
		acp.Launch(p, func(cfg proc.Config) (remote.Link, error) {
			return fakeagent.Launch(cfg, fakeagent.Named("acp"), desk.Play, fakeagent.Faults{}), nil
		})
		return subagenttest.Subject{
			Provider: p, Script: desk.Script, Active: func() int { return acp.Active(p) },
			Reasons:     []subagent.StopReason{subagent.StopMaxTokens, subagent.StopRefusal, subagent.StopError, subagent.StopAborted},
			PartialText: true,
		}
	})
}

// CAP-10, CAP-11: nothing is advertised, and whoever changes what they got changes nothing.
func TestCapabilities(t *testing.T) {
	p := provider(t, acp.Config{})
	c := p.Capabilities()
	c.Persona = true
	if got := p.Capabilities(); got != (subagent.Capabilities{}) || p.InheritsParentContext() {
		t.Errorf("%+v, inherits %v; want nothing", got, p.InheritsParentContext())
	}
}

// OOPX-02, OOPX-04: a configuration that makes no sense is refused, and the error says which
// field.
func TestNew(t *testing.T) {
	for want, cfg := range map[string]acp.Config{
		"Name is required":          {Config: external.Config{Command: "x"}},
		"Command is required":       {Config: external.Config{Name: "x"}},
		"Grace is negative":         {Config: external.Config{Name: "x", Command: "x", Grace: -1}},
		"permission":                {Config: external.Config{Name: "x", Command: "x", Permission: "all"}},
		"no such file or directory": {Config: external.Config{Name: "x", Command: "x", Dir: "/no/such"}},
	} {
		if _, err := acp.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
