package codex_test

import (
	"os"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/fakeagent"
	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/codex"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

func TestMain(m *testing.M) {
	proc.Supervise()
	fakeagent.Become()
	os.Exit(m.Run())
}

func provider(t testing.TB, cfg codex.Config) *codex.Provider {
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
	p, err := codex.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// OOPX-05…08, OOPX-17, OOPX-18, OOPX-29: the contract of a one-shot run, with a Codex that is
// a goroutine.
func TestConformance(t *testing.T) {
	subagenttest.Run(t, func(t testing.TB, _ *subagenttest.System) subagenttest.Subject {
		desk := &fakeagent.Desk{}
		p := provider(t, codex.Config{})
		codex.Launch(p, func(cfg proc.Config) (remote.Link, error) {
			return fakeagent.Launch(cfg, fakeagent.Named("codex"), desk.Play, fakeagent.Faults{}), nil
		})
		return subagenttest.Subject{
			Provider: p, Script: desk.Script, Active: func() int { return codex.Active(p) },
			Reasons: []subagent.StopReason{subagent.StopError}, PartialText: true,
		}
	})
}
