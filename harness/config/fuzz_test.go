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

// FuzzAgentFile: whatever a file of a folder that is not trusted holds, ours or Claude Code's, it gives an agent within the
// bounds or a fault that names the file, and of another program's tools only those of the table.
func FuzzAgentFile(f *testing.F) {
	for _, seed := range []string{
		"", "---\n---\n", "---\ndescription: x\n---\nbody", "---\nname: b\ntools: Read, Bash(x, y)\n---\n", "---\nname: b\ntools: *\n---\n",
		"---\nname: b\ndescription: a: b\ndisallowedTools: [Bash, 1]\n---\n{{x}}", "---\nmaxDepth: 99\n---\n", "---\ntemplate: true\n---\n",
		"---\ntools: {allow: [read]}\nmaxDepth: 1\n---\n", "\ufeff---\r\n---\r\n\r\nx\r\n", "---\nname: b\ntools:\n  - Read\n  - [Edit]\n---\n", "---\nname: b\nhooks: {}\npermissionMode: plan\n---\n",
	} {
		f.Add([]byte(seed))
	}
	dir := f.TempDir()
	env := config.MapEnviron(map[string]string{"OFFSHOOT_HOME": filepath.Join(dir, "home")})
	ours, theirs := filepath.Join(dir, ".offshoot", "agents", "a.md"), filepath.Join(dir, ".claude", "agents", "b.md")
	for path, text := range map[string]string{filepath.Join(dir, "home", "config.yaml"): "agents: {claude: true}\n", ours: "", theirs: ""} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			f.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, path := range []string{ours, theirs} {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		e, err := config.LoadPartial(config.LoadOptions{Cwd: dir, Env: env, Trusted: new(bool)})
		for _, fault := range config.Faults(err) {
			if fault.File != ours {
				t.Errorf("a fault elsewhere: %v", fault)
			}
		}
		if e == nil {
			t.Fatalf("nothing is left: %v", err)
		}
		if strings.ContainsAny(e.Text(), "\x00\x1b") {
			t.Errorf("a control character is rendered: %q", e.Text())
		}
		for name, a := range e.Config.Agents {
			if err == nil && (a.MaxDepth.Managed || a.MaxDepth.Max > 3 || a.Template != nil && *a.Template) {
				t.Errorf("%s is out of bounds: %+v", name, a)
			}
		}
		for _, file := range e.Agents {
			if !file.Claude {
				continue
			}
			a := e.Config.Agents[file.Agent]
			if a.Tools == nil || a.Tools.Allow == nil || a.Model != nil || a.Provider != "spawn" {
				t.Errorf("%s: %+v", file.Agent, a)
				continue
			}
			for _, tool := range a.Tools.Allow {
				if !strings.Contains(" bash read list search write edit ", " "+tool+" ") {
					t.Errorf("%s may use %s", file.Agent, tool)
				}
			}
		}
	})
}
