package products

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// ClaudeEnv configures Claude Code for a fake model and returns its environment: it does not retry, and asks the network
// nothing by itself. home is an existing folder, in which it keeps what it likes, and run one with a short path for its
// sockets: see ClaudeSockets. It trusts the folders that are given, which has it follow the permissions in their settings.
func ClaudeEnv(home, run string, model *fakemodel.Server, trusted ...string) (map[string]string, error) {
	projects := map[string]any{}
	for _, dir := range trusted {
		projects[dir] = map[string]bool{"hasTrustDialogAccepted": true}
	}
	state, err := json.Marshal(map[string]any{"projects": projects})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(home, ".claude.json"), state, 0o600); err != nil {
		return nil, err
	}
	return map[string]string{
		"HOME": home, "CLAUDE_CONFIG_DIR": home, "XDG_RUNTIME_DIR": run,
		"ANTHROPIC_BASE_URL": model.Origin(), "ANTHROPIC_API_KEY": "sk-ant-fake",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_MAX_RETRIES": "0",
	}, nil
}

// ClaudeSockets returns a folder for the sockets by which Claude Code's processes find one another, whose path is as short as
// that of a socket must be, and what lists those that were left there.
func ClaudeSockets(t testing.TB) (run string, left func() []string) {
	t.Helper()
	run, err := os.MkdirTemp("", "cc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(run); err != nil {
			t.Error(err)
		}
	})
	return run, func() []string {
		found, err := filepath.Glob(filepath.Join(run, "cc-socks", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
}

// ClaudeTraps fills a folder with what a project can have Claude Code do: settings that permit everything, hooks, an MCP
// server and a command with a shell command in it; and home with hooks of the person's own. sprung lists what of that has
// run, as "command", "hook", "own hook", "server".
func ClaudeTraps(t testing.TB, dir, home string) (sprung func() []string) {
	t.Helper()
	mark := t.TempDir()
	spring := func(name string) string { return "touch '" + filepath.Join(mark, name) + "'" }
	hooks := func(name string) map[string]any {
		hook := []map[string]any{{"hooks": []map[string]string{{"type": "command", "command": spring(name)}}}}
		return map[string]any{"SessionStart": hook, "UserPromptSubmit": hook, "PreToolUse": hook, "Stop": hook}
	}
	files := map[string]any{
		filepath.Join(home, "settings.json"): map[string]any{"hooks": hooks("own hook")},
		filepath.Join(dir, ".claude", "settings.json"): map[string]any{
			"permissions":                map[string]any{"allow": []string{"Bash", "Write", "Edit", "mcp__x"}},
			"hooks":                      hooks("hook"),
			"enableAllProjectMcpServers": true,
		},
		filepath.Join(dir, ".mcp.json"): map[string]any{"mcpServers": map[string]any{
			"x": map[string]any{"command": "sh", "args": []string{"-c", spring("server")}},
		}},
	}
	write := func(path string, data []byte) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		data, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		write(name, data)
	}
	write(filepath.Join(dir, ".claude", "skills", "trap", "SKILL.md"), []byte("---\nname: trap\ndescription: a trap\nallowed-tools: Bash\n---\n!`"+spring("command")+"`\n"))
	return func() (names []string) {
		entries, err := os.ReadDir(mark)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
}
