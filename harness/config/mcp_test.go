package config_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/harness/config"
)

func TestMCPServers(t *testing.T) {
	p := newPlace(t).user(`mcp:
  gh:
    command: ./bin/gh
    args: [a, b]
    env: {A: "1"}
    envFrom: {TOKEN: MY_TOKEN}
    cwd: sub
    timeout: 10s
    trustHints: true
    tools: {allow: [x/y, z], deny: [z]}
  npm: {command: npx, isolate: true}
  web:
    url: http://h/mcp/
    headers: {A: b}
    headersFrom: {C: MY_TOKEN}
    keyEnv: MY_KEY
`).project("mcp: {gh: {args: [c], tools: {deny: [w]}}}\n")
	p.trust()
	dir := filepath.Dir(p.load().Files[0].Path)
	e := p.load()
	want := map[string]config.MCPServer{
		"gh": {
			Name: "gh", Command: filepath.Join(dir, "bin/gh"), Args: []string{"c"}, Env: map[string]string{"A": "1"},
			EnvFrom: map[string]string{"TOKEN": "MY_TOKEN"}, Dir: filepath.Join(dir, "sub"), Timeout: 10 * time.Second, TrustHints: true,
			Tools: config.Filter{Allow: []string{"x/y", "z"}, Deny: []string{"z", "w"}},
		},
		"npm": {Name: "npm", Command: "npx", Timeout: 2 * time.Minute, Isolate: true},
		"web": {
			Name: "web", URL: "http://h/mcp/", Headers: map[string]string{"A": "b"}, HeadersFrom: map[string]string{"C": "MY_TOKEN"},
			KeyEnv: "MY_KEY", Timeout: 2 * time.Minute,
		},
	}
	if diff := cmp.Diff(want, e.Config.MCP); diff != "" {
		t.Error(diff)
	}
	env := config.MapEnviron(map[string]string{"MY_TOKEN": "t", "MY_KEY": "k"})
	environ, _, err := e.Secrets("gh", env)
	if diff := cmp.Diff(map[string]string{"A": "1", "TOKEN": "t"}, environ); diff != "" || err != nil {
		t.Error(diff, err)
	}
	_, headers, err := e.Secrets("web", env)
	if diff := cmp.Diff(map[string]string{"A": "b", "C": "t", "Authorization": "Bearer k"}, headers); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for server, want := range map[string]string{
		"gh":  ":6: mcp.gh.envFrom.TOKEN: MY_TOKEN is not set",
		"web": ":15: mcp.web.headersFrom.C: MY_TOKEN is not set",
	} {
		_, _, err := e.Secrets(server, config.MapEnviron(nil))
		if err == nil || err.Error() != "config "+e.Files[0].Path+want {
			t.Errorf("%s: %v", server, err)
		}
	}
	_, _, err = e.Secrets("web", config.MapEnviron(map[string]string{"MY_TOKEN": "t"}))
	if err == nil || err.Error() != "config "+e.Files[0].Path+":16: mcp.web.keyEnv: MY_KEY is not set" {
		t.Error(err)
	}
}
