package products

import (
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
	a := Agents{
		Dir: dir, Node: file(t, dir, "bin", "node"),
		ACPSample: file(t, dir, "node_modules", "@agentclientprotocol", "sdk", "dist", "examples", "agent.js"),
	}
	switch runtime.GOOS + "/" + runtime.GOARCH {
	case "linux/amd64":
		a.Codex = file(t, dir, "node_modules", "codex-linux-x64", "vendor", "x86_64-unknown-linux-musl", "bin", "codex")
		a.Claude = file(t, dir, "node_modules", "@anthropic-ai", "claude-code-linux-x64", "claude")
		a.Opencode = file(t, dir, "node_modules", "opencode-linux-x64", "bin", "opencode")
	case "linux/arm64":
		a.Codex = file(t, dir, "node_modules", "codex-linux-arm64", "vendor", "aarch64-unknown-linux-musl", "bin", "codex")
		a.Claude = file(t, dir, "node_modules", "@anthropic-ai", "claude-code-linux-arm64", "claude")
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
