package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/harness/config"
)

// FuzzLoad: whatever a project file holds, Load ends, every fault is an *Error with its file, and a folder that is not
// trusted cannot touch what is not its own.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		"", "version: 1\n", "model: ollama:x\ntools: {deny: [bash]}\n", "routes:\n  openai: {baseURL: 'http://x'}\n",
		"a: &a [*a]\n", "x: [[[[[[[[{{{{", "---\n---\n", "? {a: b}\n: c\n", "limits: {maxLive: 0x7fffffff}\n", "\xff\xfe\x00", "%YAML 9.9\n---\na\n",
		"providers: {a: {provider: spawn, maxDepth: 2, toolFilter: {allow: []}}}\n", "agents: {a: {persona: |\n  x\n}}\n", "!!binary a: b\n",
		"permissions: {mode: allow}\nstore: {path: x}\n", "version: !!int 1\n", "model: >\n vllm\n",
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	dir := f.TempDir()
	path := filepath.Join(dir, "offshoot.yaml")
	env := config.MapEnviron(map[string]string{"OFFSHOOT_HOME": filepath.Join(dir, "home")})
	f.Fuzz(func(t *testing.T, data []byte, trusted bool) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		e, err := config.Load(config.LoadOptions{Cwd: dir, Env: env, Trusted: &trusted})
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if !strings.HasPrefix(line, "config ") && !strings.HasSuffix(line, " more faults") {
					t.Errorf("a fault without its place: %q", err)
				}
			}
			if len(config.Faults(err)) == 0 {
				t.Errorf("an error without faults: %v", err)
			}
			return
		}
		if _, err := e.MarshalJSON(); err != nil {
			t.Errorf("render: %v", err)
		}
		if strings.ContainsAny(e.Text(), "\x00\x1b") {
			t.Errorf("a control character is rendered: %q", e.Text())
		}
		c := e.Config
		if !trusted && (c.Store.Path != filepath.Join(dir, "home", "offshoot.db") || c.Permissions.Mode != "" || len(c.Routes) != len(config.BuiltinRoutes()) || c.Limits.MaxLive > 256) {
			t.Errorf("a folder that is not trusted changed what is not its own: %+v", c)
		}
	})
}
