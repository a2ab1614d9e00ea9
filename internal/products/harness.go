package products

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// Harness is the installed harness set.
type Harness struct {
	// Dir is the set's folder, Node its Node.js, Boot the script that runs a plugin list.
	Dir, Node, Boot string
}

// FindHarness returns the installed harness set, or skips or fails the test as the package says.
func FindHarness(t testing.TB) Harness {
	t.Helper()
	h := harnessIn(find(t, "harness"))
	file(t, h.Node)
	file(t, h.Boot)
	return h
}

func harnessIn(dir string) Harness {
	return Harness{
		Dir: dir, Node: filepath.Join(dir, "bin", "node"),
		Boot: filepath.Join(dir, "node_modules", "@deepseek-ai", "dsh-sdk-jsonrpc-demo", "lib", "bin.js"),
	}
}

// Persistence is how the runtime writes its sessions. The zero value is plain lines with packed rows, each event on
// disk as soon as may be.
type Persistence struct {
	// Unpacked writes every chunk as an event of its own.
	Unpacked bool
	// Compressed writes session.jsonl.zstd, which is what the runtime does unless it is told otherwise.
	Compressed bool
}

// plugin is a row of the runtime's plugin list.
type plugin struct {
	ID     string         `json:"id"`
	Name   string         `json:"name"`
	Config map[string]any `json:"config,omitempty"`
}

// pluginList renders the list of an SDK server that writes its sessions below root, with a shell and three ways to
// delegate: subagent and fork wait for their child, background does not. Its provider retries as often as it does
// unconfigured, but hardly waits. The runtime reads YAML, of which JSON is a part.
func pluginList(root string, p Persistence) ([]byte, error) {
	type object = map[string]any
	row := func(name string, config object) plugin {
		return plugin{ID: name, Name: "@deepseek-ai/" + name, Config: config}
	}
	delegation := func(tool, provider string, more object) plugin {
		config := object{"toolName": tool, "provider": provider}
		for key, value := range more {
			config[key] = value
		}
		return plugin{ID: "delegation-" + tool, Name: "@deepseek-ai/dsh-tool-subagent", Config: config}
	}
	compression := "none"
	if p.Compressed {
		compression = "zstd"
	}
	data, err := json.MarshalIndent([]plugin{
		row("cordis-plugin-timer", nil),
		row("dsh-llm", nil),
		row("dsh-session", nil),
		row("dsh-session-persistence-jsonl", object{
			"root": root, "compression": compression, "packChunks": !p.Unpacked, "writeBatchMaxDelayMs": 1,
		}),
		row("dsh-session-title", object{"fallbackMaxWords": 5, "fallbackMaxBytes": 40, "maxTitleBytes": 80}),
		row("dsh-system-prompt", object{"persona": "You are a test agent."}),
		row("dsh-tools", nil),
		row("dsh-agent", nil),
		row("dsh-llm-retry", nil),
		row("dsh-jobs-local", nil),
		row("dsh-invariants", nil),
		row("dsh-agent-loop", object{"agents": []string{}}),
		row("dsh-llm-deepseek", object{
			"retryPolicy": object{"mode": "normal", "backoff": object{"initialDelayMs": 1, "maxDelayMs": 2}},
		}),
		row("dsh-subprocess-local", nil),
		row("dsh-shell-env", nil),
		row("dsh-bash-local", object{"timeoutMs": 60000}),
		row("dsh-tool-bash", object{"enableRunInBackground": false}),
		row("dsh-subagent", nil),
		row("dsh-subagent-spawn-in-process", nil),
		row("dsh-subagent-fork-in-process", nil),
		delegation("subagent", "spawn", object{"enableRunInBackground": false}),
		delegation("fork", "fork", object{"enableRunInBackground": false}),
		delegation("background", "spawn", object{"backgroundMode": "continuable"}),
		row("dsh-sdk-jsonrpc-server", nil),
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render the plugin list: %w", err)
	}
	return append(data, '\n'), nil
}

// Runtime is how a provider starts the harness set's SDK server.
type Runtime struct {
	Command string
	Args    []string
	Env     map[string]string
}

// Runtime returns how to start the SDK server against a fake model with the DeepSeek dialect. All that it keeps is below
// dir, an existing folder.
func (h Harness) Runtime(dir string, model *fakemodel.Server) (Runtime, error) {
	data, err := pluginList(filepath.Join(dir, "sessions"), Persistence{})
	if err != nil {
		return Runtime{}, err
	}
	plugins := filepath.Join(dir, "plugins.yml")
	if err := os.WriteFile(plugins, data, 0o600); err != nil {
		return Runtime{}, err
	}
	return Runtime{
		Command: h.Node, Args: []string{h.Boot, plugins},
		Env: map[string]string{"HOME": dir, "DEEPSEEK_API_KEY": "sk-fake", "DEEPSEEK_BASE_URL": model.Origin()},
	}, nil
}
