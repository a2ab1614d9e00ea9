package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const deployment = `version: 1
model: work:big
routes:
  work:
    dialect: vllm
    baseURL: https://models.example.org/v1
    keyEnv: WORK_KEY
    headers: {X-Token: hunter3}
tools: {deny: [write]}
agents:
  default: {tools: {deny: [bash]}}
  reader: {description: Reads only., tools: {allow: [read, list]}}
providers:
  spawn: {provider: spawn, maxDepth: 2}
`

// C5: the configuration with its sources, the providers with what they can do,
// the tools that each agent would see; and never a secret.
func TestConfigGolden(t *testing.T) {
	h := newHome(t)
	h.write(filepath.Join(h.dir, "config.yaml"), deployment)
	h.env["WORK_KEY"] = "hunter1"
	h.env["OPENAI_API_KEY"] = "hunter4"
	before := snapshot(t, filepath.Dir(h.dir))
	for name, args := range map[string][]string{"config.txt": {"config"}, "config.json": {"config", "--json"}} {
		got := h.must(args...)
		if strings.Contains(got, "hunter") {
			t.Errorf("%s tells a secret", name)
		}
		golden(t, name, h.plain(got))
	}
	if snapshot(t, filepath.Dir(h.dir)) != before {
		t.Error("showing the configuration changed files")
	}
}

// overviewOf is what the tests read of config --json.
type overviewOf struct {
	Configuration struct {
		Trusted bool `json:"trusted"`
	} `json:"configuration"`
	Model      *modelView  `json:"model"`
	ModelError string      `json:"modelError"`
	Agents     []agentView `json:"agents"`
}

func (h *home) overview(args ...string) (v overviewOf) {
	h.t.Helper()
	if err := json.Unmarshal([]byte(h.must(append([]string{"config", "--json"}, args...)...)), &v); err != nil {
		h.t.Fatal(err)
	}
	return v
}

func TestConfigModel(t *testing.T) {
	for _, c := range []struct {
		name, file string
		env        map[string]string
		ref, why   string
	}{
		{"nothing", "", nil, "demo:demo", "the embedded demo: there is no key, no --model and no configuration file"},
		{"a key", "", map[string]string{"DEEPSEEK_API_KEY": "k"}, "deepseek:deepseek-v4-flash", "DEEPSEEK_API_KEY is set, and no model was named"},
		{"a variable", "", map[string]string{"OFFSHOOT_MODEL": "ollama:a:b"}, "ollama:a:b", "env OFFSHOOT_MODEL"},
		{"the file", "model: vllm", nil, "vllm:default", "user HOME/config.yaml:1"},
		{"none", "version: 1", nil, "", "no model: give --model"},
		{"no key", "model: openai:x", nil, "", "route openai needs a key: set OPENAI_API_KEY"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHome(t)
			if c.file != "" {
				h.write(filepath.Join(h.dir, "config.yaml"), c.file+"\n")
			}
			for k, v := range c.env {
				h.env[k] = v
			}
			v := h.overview()
			if c.ref == "" {
				if v.Model != nil || !strings.Contains(v.ModelError, c.why) {
					t.Errorf("model %+v, %s", v.Model, v.ModelError)
				}
			} else if v.Model == nil || v.Model.Ref != c.ref || h.plain(v.Model.Why) != c.why {
				t.Errorf("model %+v, %s", v.Model, v.ModelError)
			}
		})
	}
}

// The tools are those of an assembled system: a tool that the deployment hides is
// hidden from all, and what it would have started is not listed.
func TestConfigTools(t *testing.T) {
	h := newHome(t)
	h.write(filepath.Join(h.dir, "config.yaml"), "model: demo\ntools: {shell: {enabled: false}, deny: [edit, write, subagent]}\nagents: {quick: {description: Q, tools: {allow: []}}}\n")
	got := map[string][]string{}
	for _, a := range h.overview().Agents {
		got[a.Name] = a.Tools
	}
	want := map[string][]string{"default": {"job_kill", "job_list", "job_output", "list", "read", "search", "subagent_quick"}, "quick": {}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
}

// A folder is trusted with its own key set once the person said so.
func TestTrust(t *testing.T) {
	h := newHome(t)
	h.write(filepath.Join(h.work, "offshoot.yaml"), "model: demo\nstore: {path: sub/own.db}\n")
	h.write(filepath.Join(h.work, "sub", "offshoot.yaml"), "store: {driver: memory}\n")
	if o := h.run("config"); o.code != 2 {
		t.Fatalf("%d, %s", o.code, o.errOut)
	}
	if got := h.must("trust"); got != h.work+"\n" {
		t.Errorf("trusted %q", got)
	}
	if !h.overview().Configuration.Trusted {
		t.Error("the folder is not trusted")
	}
	if o := h.run("config", "--cwd", "sub"); o.code != 2 {
		t.Errorf("a folder below is trusted with it: %d", o.code)
	}
	if got := h.must("trust", "sub"); got != filepath.Join(h.work, "sub")+"\n" {
		t.Errorf("trusted %q", got)
	}
	h.must("config", "--cwd", "sub")
	if got := h.must("trust", "--cwd", "sub"); got != filepath.Join(h.work, "sub")+"\n" {
		t.Errorf("trusted %q", got)
	}
}

func TestVersion(t *testing.T) {
	h := newHome(t)
	got := h.must("version")
	if !strings.HasPrefix(got, "offshoot v1.2.3 (revision abc of 2030-01-02T03:04:05Z with changes)\ngo1.99 ") {
		t.Errorf("version says %q", got)
	}
	if first := h.must("--version"); !strings.HasPrefix(got, first) {
		t.Errorf("--version says %q", first)
	}
}

// MCP servers are shown without their secrets, and none is started to be shown.
func TestConfigServers(t *testing.T) {
	h := newHome(t)
	mark := filepath.Join(t.TempDir(), "started")
	h.write(filepath.Join(h.dir, "config.yaml"), "version: 1\nmcp:\n  eye: {command: touch, args: ["+mark+"], env: {A: never-to-be-seen}, envFrom: {B: C_KEY}}\n"+
		"agents: {default: {tools: {allow: [read, eye_look]}}}\n")
	h.env["C_KEY"] = "never-to-be-seen"
	out := h.must("config")
	for _, want := range []string{
		"mcp.eye.command: touch  # user ", "mcp.eye.env.A: (hidden)", "mcp.eye.envFrom.B: C_KEY", "mcp.eye.envFrom.B.value: set  # env C_KEY",
		"\n# without those of MCP servers (eye), which are not started here; offshoot doctor counts them\ndefault (root): read\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "never-to-be-seen") {
		t.Error("a secret is shown")
	}
	if _, err := os.Stat(mark); !os.IsNotExist(err) {
		t.Error("the server was started")
	}
}

// Of an agent that a product plays it is said that it has the product's tools, not ours.
func TestShowsProducts(t *testing.T) {
	h := newHome(t)
	h.write(filepath.Join(h.dir, "config.yaml"), "version: 1\nproviders:\n  rt: {provider: dsh, command: no-such-program, envFrom: {A_KEY: NOT_SET}}\nagents:\n  far: {provider: rt}\n")
	out := h.must("config")
	for _, want := range []string{
		"rt: no option; children start fresh, each a process of its own (dsh)\n",
		"rt (by subagent_rt, provider rt, depth as it allows): its own\n", "far (by subagent_far, provider rt, depth as it allows): its own\n",
		"providers.rt.envFrom.A_KEY.value: not set",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if out := h.must("agents", "show", "far", "--json"); !strings.Contains(out, `"product":"dsh"`) || !strings.Contains(out, `"tools":[]`) {
		t.Errorf("%s", out)
	}
	if out := h.must("agents", "show", "far"); !strings.Contains(out, "sees      the tools of its product (dsh)\n") {
		t.Errorf("%s", out)
	}
}
