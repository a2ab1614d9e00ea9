package products

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// CodexModel is the model that Codex is configured with, and CodexProvider its own name of who serves it. Codex goes on with
// the real vendor if it cannot read its configuration: a test has its answer say this name before it sends a prompt.
const (
	CodexModel    = "fake-model"
	CodexProvider = "fake"
)

// codexConfig is Codex's configuration: a fake model, no retries, nothing that asks the network by itself, and a sandbox in
// which the folders for temporary files, where tests live, are nothing special.
const codexConfig = `check_for_update_on_startup = false
model = %q
model_provider = %q
[model_providers.fake]
name = "fake"
base_url = %q
env_key = "FAKE_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[sandbox_workspace_write]
exclude_slash_tmp = true
exclude_tmpdir_env_var = true
[analytics]
enabled = false
[features]
plugins = false
shell_snapshot = false
`

// CodexEnv configures Codex for a fake model and returns its environment. home is an existing folder, in which it keeps
// what it likes.
func CodexEnv(home string, model *fakemodel.Server) (map[string]string, error) {
	config := fmt.Sprintf(codexConfig, CodexModel, CodexProvider, model.URL())
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	return map[string]string{"HOME": home, "CODEX_HOME": home, "FAKE_KEY": "sk-fake"}, nil
}
