package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/harness/config"
)

// TestTrustTable: what the file of a folder may say before and after the person has trusted the folder (design, "Trust").
func TestTrustTable(t *testing.T) {
	const plea = `; run "offshoot trust $WORK" to trust this folder`
	const notTaken = "is not taken from a folder that is not trusted" + plea
	tests := []struct {
		name, user, project string
		untrusted           string // the one fault, "" when it is taken
	}{
		{name: "model by route name", project: "model: ollama:x"},
		{name: "agents", project: "agents: {default: {persona: p, model: vllm, maxTokens: 100}, x: {tools: {allow: [read]}}}"},
		{name: "filters", user: "tools: {deny: [bash]}", project: "tools: {allow: [read], deny: []}"},
		{name: "spawn", project: "providers: {a: {provider: spawn, toolFilter: {deny: [bash]}, maxDepth: 2}}"},
		{name: "fork", project: "providers: {a: {provider: fork}}"},
		{name: "lower limits", user: "limits: {maxLive: 5}", project: "limits: {maxLive: 5, maxChildren: 1}"},
		{name: "no background", project: "providers: {a: {provider: spawn, background: false}}\nlimits: {maxJobs: 1}"},
		{
			name: "background on", user: "providers: {a: {provider: spawn, background: false}}", project: "providers: {a: {background: true}}",
			untrusted: "1: providers.a.background: a folder that is not trusted may not switch this on" + plea,
		},
		{name: "continuable children", user: "providers: {a: {provider: spawn}}", project: "providers: {a: {backgroundMode: continuable}}\nagents: {b: {backgroundMode: continuable}}\nsubagents: {reportDelivery: wakeup, notices: false, interrupt: false}"},
		{
			name: "continuable on", user: "providers: {a: {provider: spawn, backgroundMode: one-shot}}", project: "providers: {a: {backgroundMode: continuable}}",
			untrusted: "1: providers.a.backgroundMode: a folder that is not trusted may not switch this on" + plea,
		},
		{
			name: "interrupt on", user: "subagents: {interrupt: false}", project: "subagents: {interrupt: true}",
			untrusted: "1: subagents.interrupt: a folder that is not trusted may not switch this on" + plea,
		},
		{name: "switch off", project: "tools: {shell: {enabled: false, timeout: 1s}}\ncompaction: {auto: false}"},
		{name: "switch on what is on", project: "tools: {shell: {enabled: true}, files: {enabled: true}}"},
		{name: "empty section", project: "version: 1\nroutes:\n", untrusted: "2: routes: " + notTaken},

		{name: "endpoint", project: "routes:\n  openai: {baseURL: 'https://evil.example/v1'}", untrusted: "1: routes: " + notTaken},
		{name: "permissions", project: "\npermissions: {mode: allow}", untrusted: "2: permissions: " + notTaken},
		{name: "stricter permissions too", project: "permissions: {mode: deny}", untrusted: "1: permissions: " + notTaken},
		{name: "store", project: "store: {path: /tmp/x.db}", untrusted: "1: store: " + notTaken},
		{name: "recovery", project: "recovery: {onStart: none}", untrusted: "1: recovery: " + notTaken},
		{name: "mcp", project: "mcp: {}", untrusted: "1: mcp: " + notTaken},
		{name: "mcp server", project: "limits: {maxLive: 3}\nmcp:\n  files: {command: ./run-me}\n", untrusted: "2: mcp: " + notTaken},
		{name: "mcp of the user's", user: "mcp: {files: {command: x}}", project: "mcp: {files: {command: y}}", untrusted: "1: mcp: " + notTaken},
		{
			name: "another product", project: "providers:\n  a:\n    provider: codex",
			untrusted: "3: providers.a.provider: a folder that is not trusted may not start another product (codex)" + plea,
		},
		{
			name: "raise a default", project: "limits:\n  maxLive: 100000",
			untrusted: "2: limits.maxLive: a folder that is not trusted may only lower this limit (256)" + plea,
		},
		{
			name: "raise the user's", user: "limits: {maxChildren: 2}", project: "limits: {maxChildren: 3}",
			untrusted: "1: limits.maxChildren: a folder that is not trusted may only lower this limit (2)" + plea,
		},
		{
			name: "raise a timeout", project: "tools: {shell: {timeout: 3m}}",
			untrusted: "1: tools.shell.timeout: a folder that is not trusted may only lower this limit (2m)" + plea,
		},
		{
			name: "raise tokens", user: "agents: {default: {maxTokens: 10}}", project: "agents: {default: {maxTokens: 11}}",
			untrusted: "1: agents.default.maxTokens: a folder that is not trusted may only lower this limit (10)" + plea,
		},
		{
			name: "switch on", user: "tools: {shell: {enabled: false}}", project: "tools: {shell: {enabled: true}}",
			untrusted: "1: tools.shell.enabled: a folder that is not trusted may not switch this on" + plea,
		},
		{
			name: "raise the depth of a new provider", project: "providers: {a: {provider: spawn, maxDepth: 4}}",
			untrusted: "1: providers.a.maxDepth: a folder that is not trusted may only lower this limit (3)" + plea,
		},
		{
			name: "leave the depth to a provider", project: "providers: {a: {provider: spawn, maxDepth: provider-managed}}",
			untrusted: "1: providers.a.maxDepth: a folder that is not trusted may only lower this limit (3)" + plea,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t).user(tt.user).project(tt.project)
			p.o.Providers = []string{"spawn", "fork", "codex"}
			var want []string
			if tt.untrusted != "" {
				want = []string{"config $WORK/offshoot.yaml:" + tt.untrusted}
			}
			if diff := cmp.Diff(want, p.faults()); diff != "" {
				t.Errorf("not trusted: %s", diff)
			}
			p.trust()
			if got := p.faults(); got != nil {
				t.Errorf("trusted: %q", got)
			}
			if !p.load().Trusted {
				t.Error("Effective does not say that the folder is trusted")
			}
			// An embedding program's word stands above the list.
			p.o.Trusted = new(bool)
			if diff := cmp.Diff(want, p.faults()); diff != "" {
				t.Errorf("distrusted by the program: %s", diff)
			}
		})
	}
}

// TestUntrustedFilterCannotLift: the user's filter holds whatever the folder's file says.
func TestUntrustedFilterCannotLift(t *testing.T) {
	p := newPlace(t).
		user("tools: {deny: [bash]}\nagents: {default: {tools: {allow: [read]}}}\n").
		project("tools: {deny: []}\nagents: {default: {tools: {allow: [read, bash]}}}\n")
	c := p.load().Config
	if diff := cmp.Diff([]string{"bash"}, c.Tools.Filter.Deny); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"read"}, c.Agents["default"].Tools.Allow); diff != "" {
		t.Error(diff)
	}
}

func TestTrustList(t *testing.T) {
	p := newPlace(t)
	data := filepath.Join(p.home, "made", "here")
	sub := filepath.Join(p.work, "sub")
	link := filepath.Join(p.home, "link")
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(p.work, link); err != nil {
		t.Fatal(err)
	}
	is := func(dir string, want bool) {
		t.Helper()
		got, err := config.Trusted(data, dir)
		if err != nil || got != want {
			t.Errorf("Trusted(%s) = %v, %v; want %v", p.short(dir), got, err, want)
		}
	}
	is(p.work, false) // no list, no folder of data yet
	if got, err := config.Trust(data, link); err != nil || got != p.work {
		t.Fatalf("Trust gave %q, %v", got, err)
	}
	is(p.work, true)
	is(p.work+"/./sub/..", true)
	is(link, true)
	is(sub, false)
	is(p.home, false)
	if _, err := config.Trust(data, sub); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Trust(data, p.work); err != nil { // again: no change
		t.Fatal(err)
	}
	is(p.work, true)
	is(sub, true)

	path := filepath.Join(data, "trusted.json")
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := "{\n  \"version\": 1,\n  \"folders\": [\n    \"$WORK\",\n    \"$WORK/sub\"\n  ]\n}\n"
	if diff := cmp.Diff(want, p.short(string(got))); diff != "" {
		t.Error(diff)
	}
	if runtime.GOOS != "windows" { // no modes there
		for name, want := range map[string]os.FileMode{path: 0o600, data: 0o700, filepath.Dir(data): 0o700} {
			info, err := os.Stat(name)
			if err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: mode %v, %v; want %v", p.short(name), info.Mode().Perm(), err, want)
			}
		}
	}
	entries, err := os.ReadDir(data)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestTrustFaults(t *testing.T) {
	p := newPlace(t)
	file := filepath.Join(p.work, "file")
	p.write(file, "x")
	kind := func(err error) config.Kind {
		fault := &config.Error{}
		_ = errors.As(err, &fault) // another error leaves the empty kind
		return fault.Kind
	}
	for _, dir := range []string{file, filepath.Join(p.work, "gone")} {
		if _, err := config.Trust(p.home, dir); kind(err) != config.KindUsage {
			t.Errorf("Trust(%s): %v", p.short(dir), err)
		}
	}
	if _, err := config.Trust(file, p.work); kind(err) != config.KindIO { // a file in the place of the data folder
		t.Errorf("data folder is a file: %v", err)
	}
	// A list that makes no sense is never read as "not trusted", nor overwritten.
	for _, text := range []string{"", "{", `{"version":2,"folders":[]}`, `{"version":1,"folders":[],"x":1}`, `{"version":1} {}`} {
		path := filepath.Join(p.home, "trusted.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := config.Trusted(p.home, p.work); kind(err) != config.KindIO || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: Trusted: %v", text, err)
		}
		if _, err := config.Trust(p.home, p.work); kind(err) != config.KindIO {
			t.Errorf("%q: Trust: %v", text, err)
		}
		if _, err := config.Load(p.o); kind(err) != config.KindIO {
			t.Errorf("%q: Load: %v", text, err)
		}
	}
}

// Whether a folder is trusted is asked anew each time, but for what an embedding program has said.
func TestTrusts(t *testing.T) {
	p := newPlace(t)
	e := p.load()
	ask := func(dir string) bool {
		t.Helper()
		trusted, err := e.Trusts(dir)
		if err != nil {
			t.Fatal(err)
		}
		return trusted
	}
	other := t.TempDir()
	if ask(p.work) || ask(other) {
		t.Error("a folder is trusted that nobody has trusted")
	}
	p.trust()
	if !ask(p.work) || ask(other) {
		t.Error("what the person trusted meanwhile does not count, or counts for others")
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(p.work, link); err != nil {
		t.Fatal(err)
	}
	if !ask(link) {
		t.Error("a folder that is reached by a link is not the same")
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	if ask(link) {
		t.Error("a link that leads elsewhere now is still trusted")
	}
	p.o.Trusted = new(bool)
	if e = p.load(); ask(p.work) {
		t.Error("the word of the program does not count")
	}
}
