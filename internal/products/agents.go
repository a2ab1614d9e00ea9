package products

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Agents are the installed agents of other vendors.
type Agents struct {
	// Dir is the set's folder; the others are programs, but for ACPSample, a script for Node.
	Dir, Node, Codex, Claude, Opencode, ACPSample string
}

// FindAgents returns the installed agents, or skips or fails the test as the package says.
// Where a vendor has no program for this machine, its path is "": see [Agents.Need].
func FindAgents(t testing.TB) Agents {
	t.Helper()
	dir := find(t, "agents")
	a := agentsIn(dir)
	for _, path := range []string{a.Node, a.ACPSample, a.Codex, a.Claude, a.Opencode} {
		if path != "" {
			file(t, path)
		}
	}
	return a
}

// Locate returns what is installed for programs that are no tests; an error says what is not.
func Locate() (Agents, Harness, error) {
	list := os.Getenv(Variable)
	agents, why, err := lookUp(list, "agents")
	if err == nil && why != "" {
		err = errors.New(why)
	}
	harness, why, herr := lookUp(list, "harness")
	if herr == nil && why != "" {
		herr = errors.New(why)
	}
	if err := errors.Join(err, herr); err != nil {
		return Agents{}, Harness{}, err
	}
	return agentsIn(agents), harnessIn(harness), nil
}

func agentsIn(dir string) Agents {
	in := func(elem ...string) string { return filepath.Join(append([]string{dir}, elem...)...) }
	a := Agents{
		Dir: dir, Node: in("bin", "node"),
		ACPSample: in("node_modules", "@agentclientprotocol", "sdk", "dist", "examples", "agent.js"),
	}
	switch runtime.GOOS + "/" + runtime.GOARCH {
	case "linux/amd64":
		a.Codex = in("node_modules", "codex-linux-x64", "vendor", "x86_64-unknown-linux-musl", "bin", "codex")
		a.Claude = in("node_modules", "@anthropic-ai", "claude-code-linux-x64", "claude")
		a.Opencode = in("node_modules", "opencode-linux-x64", "bin", "opencode")
	case "linux/arm64":
		a.Codex = in("node_modules", "codex-linux-arm64", "vendor", "aarch64-unknown-linux-musl", "bin", "codex")
		a.Claude = in("node_modules", "@anthropic-ai", "claude-code-linux-arm64", "claude")
	}
	return a
}

// Need returns a program, or skips the test where its vendor has none for this machine.
func (a Agents) Need(t testing.TB, path, product string) string {
	t.Helper()
	if path == "" {
		t.Skipf("%s is not packaged for %s/%s", product, runtime.GOOS, runtime.GOARCH)
	}
	return path
}
