package dsh_test

import (
	"os"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/fakeagent"
	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/dsh"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

func TestMain(m *testing.M) {
	proc.Supervise()
	fakeagent.Become()
	os.Exit(m.Run())
}

func provider(t testing.TB, cfg dsh.Config) *dsh.Provider {
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
	if cfg.Permission == "" {
		cfg.Permission = external.Allow
	}
	p, err := dsh.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// W19, W27–W32, OOPX-05…08, OOPX-15, OOPX-17, OOPX-18: the contract of a one-shot run, with
// a runtime that is a goroutine.
func TestConformance(t *testing.T) {
	subagenttest.Run(t, func(t testing.TB, _ *subagenttest.System) subagenttest.Subject {
		desk := &fakeagent.Desk{}
		p := provider(t, dsh.Config{})
		dsh.Launch(p, func(cfg proc.Config) (remote.Link, error) {
			return fakeagent.Launch(cfg, fakeagent.Named("dsh"), desk.Play, fakeagent.Faults{}), nil
		})
		return subagenttest.Subject{
			Provider: p, Script: desk.Script, Active: func() int { return dsh.Active(p) },
			Reasons: []subagent.StopReason{subagent.StopMaxTokens, subagent.StopError}, PartialText: true,
		}
	})
}
