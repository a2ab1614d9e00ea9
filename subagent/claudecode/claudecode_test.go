package claudecode_test

import (
	"os"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/fakeagent"
	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/claudecode"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

func TestMain(m *testing.M) {
	proc.Supervise()
	fakeagent.Become()
	os.Exit(m.Run())
}

func provider(t testing.TB, cfg claudecode.Config) *claudecode.Provider {
	t.Helper()
	if cfg.Command == "" {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cfg.Command = exe
	}
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	p, err := claudecode.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// goroutine has a provider's children played by a goroutine.
func goroutine(p *claudecode.Provider, play func(string) (fakeagent.Play, error), protocol fakeagent.Protocol) {
	claudecode.Launch(p, func(cfg proc.Config) (remote.Link, error) {
		return fakeagent.Launch(cfg, protocol, play, fakeagent.Faults{}), nil
	})
}

// OOPX-05, OOPX-06, OOPX-07, OOPX-08, OOPX-09, OOPX-17, OOPX-18: the contract of a one-shot
// run, with a product that is a goroutine.
func TestConformance(t *testing.T) {
	subagenttest.Run(t, func(t testing.TB, _ *subagenttest.System) subagenttest.Subject {
		desk := &fakeagent.Desk{}
		p := provider(t, claudecode.Config{})
		goroutine(p, desk.Play, fakeagent.Named("claude-code"))
		return subagenttest.Subject{
			Provider: p, Script: desk.Script, Active: func() int { return claudecode.Active(p) },
			Reasons: []subagent.StopReason{subagent.StopMaxTokens, subagent.StopRefusal, subagent.StopError}, PartialText: true,
		}
	})
}

// CAP-10, REG-22: what is said of the provider.
func TestIdentity(t *testing.T) {
	p := provider(t, claudecode.Config{})
	if got, want := p.Capabilities(), (subagent.Capabilities{OutputSchema: true, Persona: true}); got != want || p.Name() != "claude-code" || p.InheritsParentContext() {
		t.Errorf("%+v, %q, inherits %v", got, p.Name(), p.InheritsParentContext())
	}
}

// OOPX-02, OOPX-04, OOPX-22: what a configuration cannot mean.
func TestNew(t *testing.T) {
	for want, cfg := range map[string]claudecode.Config{
		"MaxTurns is negative: -1": {MaxTurns: -1},
		"Model cannot be given":    {Config: external.Config{Args: []string{"-p"}}, Model: "m"},
		"MaxTurns cannot be given": {Config: external.Config{Args: []string{"-p"}}, MaxTurns: 1},
		"Grace is negative":        {Config: external.Config{Grace: -1}},
		"permission":               {Config: external.Config{Permission: "all"}},
		"no such file":             {Config: external.Config{Dir: "/no/such"}},
	} {
		if _, err := claudecode.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
