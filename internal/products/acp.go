package products

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// ACP returns how to start the harness set's ACP agent against a fake model with the DeepSeek dialect. All that it keeps is
// below dir, an existing folder. Its shell runs in a sandbox that writes below the folder to work in alone; it asks for leave
// to leave that.
func (h Harness) ACP(dir string, model *fakemodel.Server) (Runtime, error) {
	return h.boot(dir, model, []plugin{
		row("cordis-plugin-timer", nil),
		row("dsh-llm", nil),
		row("dsh-session", nil),
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
		row("dsh-sandbox-local", nil),
		row("dsh-sandbox-policy", object{"mode": "workspace-write"}),
		row("dsh-bash-sandbox", object{"timeoutMs": 60000}),
		row("dsh-user-approval", object{"policy": "ask"}),
		row("dsh-tool-bash", object{"enableRunInBackground": false}),
		row("dsh-subagent", nil),
		row("dsh-acp", object{"provider": "deepseek-official", "model": "deepseek-v4-flash"}),
	})
}

// OpencodeACP returns how to start opencode as an ACP agent against a fake model with the OpenAI dialect. All that it keeps
// is below dir, an existing folder. It asks for leave for everything but reading, unless OPENCODE_PERMISSION is taken from its
// environment. In a folder with plugins it would install their
// library; there is no registry here. Opencode must be there: see Need.
func (a Agents) OpencodeACP(dir string, model *fakemodel.Server) (Runtime, error) {
	config, err := json.Marshal(object{
		"model": "fake/fake-model", "small_model": "fake/fake-model", "autoupdate": false, "share": "disabled",
		"provider": object{"fake": object{
			"npm": "@ai-sdk/openai-compatible", "name": "Fake", "options": object{"baseURL": model.URL(), "apiKey": "x"},
			"models": object{"fake-model": object{"name": "Fake", "tool_call": true, "limit": object{"context": 100000, "output": 8000}}},
		}},
	})
	if err != nil {
		return Runtime{}, err
	}
	path := filepath.Join(dir, "opencode.json")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		return Runtime{}, err
	}
	return Runtime{
		Command: a.Opencode, Args: []string{"acp"},
		Env: map[string]string{
			"HOME": dir, "XDG_CONFIG_HOME": dir + "/config", "XDG_DATA_HOME": dir + "/data", "XDG_STATE_HOME": dir + "/state", "XDG_CACHE_HOME": dir + "/cache",
			"OPENCODE_CONFIG": path, "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
			"OPENCODE_PERMISSION": `{"*":"ask","read":"allow","glob":"allow","grep":"allow","list":"allow"}`,
			"npm_config_registry": "http://127.0.0.1:1/", "npm_config_fetch_retries": "0",
		},
	}, nil
}
