package subagenttest_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// boaster is a provider that takes what it does not give to its children.
type boaster struct {
	*spawn.Provider
	drop func(*subagent.ResolvedRequest)
}

func (b boaster) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	less := *req
	b.drop(&less)
	return b.Provider.Start(ctx, &less)
}

// boasts are what a provider can claim falsely, and the case of the suite that finds out.
func boasts() map[string]struct {
	drop  func(*subagent.ResolvedRequest)
	found string
} {
	return map[string]struct {
		drop  func(*subagent.ResolvedRequest)
		found string
	}{
		"persona": {func(r *subagent.ResolvedRequest) { r.Persona = nil }, "COMP-08"},
		"filter":  {func(r *subagent.ResolvedRequest) { r.ToolFilter = nil }, "COMP-12"},
		"depth":   {func(r *subagent.ResolvedRequest) { r.MaxDepth = nil }, "DEP-06"},
		"schema":  {func(r *subagent.ResolvedRequest) { r.OutputSchema, r.Schema = nil, nil }, "SO-01"},
	}
}

const boastEnv = "SUBAGENTTEST_BOAST"

// CAP-12: the suite fails a provider that advertises a capability and ignores it.
// What it says of each is seen in a process of its own, which has to fail.
func TestSuiteFindsBoasters(t *testing.T) {
	if lie, ok := boasts()[os.Getenv(boastEnv)]; ok {
		subagenttest.Run(t, func(t testing.TB, s *subagenttest.System) subagenttest.Subject {
			return subagenttest.Local(t, s, boaster{spawn.New(""), lie.drop})
		})
		return
	}
	for name, lie := range boasts() {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSuiteFindsBoasters$")
		cmd.Env = append(os.Environ(), boastEnv+"="+name)
		out, err := cmd.CombinedOutput()
		var failed []string
		for line := range strings.Lines(string(out)) {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: TestSuiteFindsBoasters/"); ok {
				failed = append(failed, rest)
			}
		}
		if err == nil || len(failed) == 0 {
			t.Errorf("a provider that drops the %s passes the suite", name)
		}
		for _, f := range failed {
			if !strings.HasPrefix(f, lie.found) {
				t.Errorf("a provider that drops the %s fails %s, which is not about it", name, f)
			}
		}
	}
}
