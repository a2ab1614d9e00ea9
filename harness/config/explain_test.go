package config_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/harness/config"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites it)\n%s", name, diff)
	}
}

// rich has a value from every layer, and every secret that a configuration can hold.
func rich(t *testing.T) *place {
	p := newPlace(t).user(`version: 1
model: own:big
routes:
  own:
    dialect: openai
    baseURL: http://me:hunter2@gpu:9000/v1
    keyEnv: OWN_KEY
    headers:
      X-Token: hunter2
tools:
  deny: [bash]
mcp:
  gh:
    command: ./bin/gh-mcp
    args: [--stdio, "two words"]
    env: {GH_TOKEN: hunter2}
    envFrom: {GH_OTHER: OTHER_TOKEN}
    tools: {deny: [repo/delete]}
  web:
    url: https://me:hunter2@example.org/mcp/
    headers: {X-Key: hunter2}
    headersFrom: {X-Other: OTHER_TOKEN}
    keyEnv: OWN_KEY
    isolate: true
limits:
  maxLive: 12
`).project(`agents:
  default:
    persona: "You are terse.\nAlways: be kind #1"
  reviewer: {}
tools:
  shell: {timeout: 1m30s}
  deny: [write]
providers:
  spawn:
    provider: spawn
    maxDepth: 2
    toolFilter: {allow: []}
    outputSchema: {type: object, properties: {n: {type: integer}}}
`)
	p.env["OPENAI_API_KEY"] = "hunter2"
	p.env["OWN_KEY"] = "hunter2"
	p.env["DEEPSEEK_API_KEY"] = "" // set to nothing
	p.env["OLLAMA_HOST"] = "0.0.0.0"
	p.env["OPENAI_BASE_URL"] = "https://u:hunter2@proxy.example/v1"
	p.env["OFFSHOOT_PERMISSION"] = "read-only"
	p.o.Flags = config.Flags{Store: ptr("memory"), MaxTokens: ptr(4000)}
	return p
}

// TestExplain: every value with its source, and no secret (core C5, C6).
func TestExplain(t *testing.T) {
	p := rich(t)
	e := p.load()
	golden(t, "explain.txt", p.short(e.Text()))
	raw, err := e.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, raw, "", " "); err != nil {
		t.Fatal(err)
	}
	golden(t, "explain.json", p.short(pretty.String())+"\n")
	if strings.Contains(e.Text()+string(raw), "hunter2") {
		t.Error("a secret is rendered")
	}
	if got := e.Config.Routes["own"].Headers["X-Token"]; got != "hunter2" {
		t.Errorf("the header itself is %q", got)
	}
	if got := e.Config.Routes["own"].BaseURL; got != "http://me:hunter2@gpu:9000/v1" {
		t.Errorf("the endpoint itself is %q", got)
	}
}

func TestExplainDefaults(t *testing.T) {
	p := newPlace(t)
	golden(t, "defaults.txt", p.short(p.load().Text()))
}

// TestFault: what only the assembled system can see is told with the place of the value.
func TestFault(t *testing.T) {
	p := rich(t)
	e := p.load()
	for key, want := range map[string]string{
		"tools.deny":         "config $WORK/offshoot.yaml:7: tools.deny: unknown tool \"x\"",
		"permissions.mode":   "config env OFFSHOOT_PERMISSION: permissions.mode: unknown tool \"x\"",
		"store.driver":       "config flag --store: store.driver: unknown tool \"x\"",
		"limits.maxChildren": "config: limits.maxChildren: unknown tool \"x\"",
	} {
		if got := p.short(e.Fault(key, "unknown tool %q", "x").Error()); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
