//go:build unix

package main

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// closedPort is the address of an endpoint that is not there.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return addr
}

// TestMistakes: what was asked wrongly ends in 2 with one line for each fault, and
// nothing is made. HOME and CWD stand for the world's folders.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		args    []string
		env     []string
		user    string // the user's configuration file
		project string // offshoot.yaml
		stderr  []string
	}{
		{name: "whitespace prompt", args: []string{"run", " \n\t"}, stderr: []string{`offshoot: the prompt is empty`}},
		{name: "empty prompt", args: []string{"run", ""}, stderr: []string{`offshoot: the prompt is empty`}},
		{name: "nothing on stdin", args: []string{"run", "-"}, stderr: []string{`offshoot: the prompt is empty`}},
		{name: "two prompts", args: []string{"run", "a", "b"}, stderr: []string{`offshoot: .*2`}},
		{name: "missing cwd", args: []string{"run", "x", "--cwd", "CWD/no/such"}, stderr: []string{`offshoot: config CWD/no/such: the working directory cannot be used: no such file or directory`}},
		{name: "cwd is a file", args: []string{"run", "x", "--cwd", "HOME/config.yaml"}, user: "version: 1\n", stderr: []string{`offshoot: config HOME/config.yaml: the working directory is not a folder`}},
		{name: "empty cwd", args: []string{"run", "x", "--cwd", ""}, stderr: []string{`offshoot: flag --cwd: the folder is empty`}},
		{name: "unknown flag", args: []string{"run", "x", "--nope"}, stderr: []string{`offshoot: unknown flag: --nope \(see "offshoot run --help"\)`}},
		{name: "unknown command", args: []string{"walk"}, stderr: []string{`offshoot: unknown command "walk" for "offshoot" .*`}},
		{name: "no duration", args: []string{"run", "x", "--timeout", "soon"}, stderr: []string{`offshoot: invalid argument "soon" for "--timeout" flag.*`}},
		{name: "negative duration", args: []string{"run", "x", "--timeout", "-1s"}, stderr: []string{`offshoot: .*--timeout.*`}},
		{name: "negative depth", args: []string{"run", "x", "--max-depth", "-1"}, stderr: []string{`offshoot: config flag --max-depth: .*`}},
		{name: "no tokens", args: []string{"run", "x", "--max-tokens", "0"}, stderr: []string{`offshoot: config flag --max-tokens: .*`}},
		{name: "unknown permission", args: []string{"run", "x", "--permission", "maybe"}, stderr: []string{`offshoot: config flag --permission: .*maybe.*`}},
		{name: "unknown permission in the environment", args: []string{"run", "x"}, env: []string{"OFFSHOOT_PERMISSION", "maybe"}, stderr: []string{`offshoot: config env OFFSHOOT_PERMISSION: .*maybe.*`}},
		{name: "unknown route", args: []string{"run", "x", "--model", "nope:gpt"}, stderr: []string{`offshoot: config flag --model: model: .*nope.*`}},
		{name: "unknown route in the environment", args: []string{"run", "x"}, env: []string{"OFFSHOOT_MODEL", "nope:gpt"}, stderr: []string{`offshoot: config env OFFSHOOT_MODEL: model: .*nope.*`}},
		{name: "absent key", args: []string{"run", "x", "--model", "openai:gpt"}, stderr: []string{`offshoot: config flag --model: model: route openai needs a key: set OPENAI_API_KEY`}},
		{name: "empty key", args: []string{"run", "x", "--model", "deepseek:chat"}, env: []string{"DEEPSEEK_API_KEY", ""}, stderr: []string{`offshoot: .*route deepseek needs a key: set DEEPSEEK_API_KEY`}},
		{name: "no usable model", args: []string{"run", "x"}, user: "version: 1\n", stderr: []string{`offshoot: config: no model: give --model ROUTE:MODEL, .*HOME/config.yaml.*OPENAI_API_KEY.*`}},
		{name: "unknown key", args: []string{"run", "x"}, user: "version: 1\nmoodel: demo\n", stderr: []string{`offshoot: config HOME/config.yaml:2: .*moodel.*`}},
		{name: "unknown keys", args: []string{"run", "x"}, user: "limits:\n  maxDepht: 3\n  maxLiev: 2\n", stderr: []string{`offshoot: config HOME/config.yaml:2: .*maxDepht.*`, `offshoot: config HOME/config.yaml:3: .*maxLiev.*`}},
		{name: "no YAML", args: []string{"run", "x"}, user: "a: [\n", stderr: []string{`offshoot: config HOME/config.yaml.*`}},
		{name: "unknown key of the project", args: []string{"run", "x"}, project: "moodel: demo\n", stderr: []string{`offshoot: config CWD/offshoot.yaml:1: .*moodel.*`}},
		{name: "untrusted keys", args: []string{"run", "x"}, project: "model: demo\npermissions:\n  mode: allow\nstore:\n  path: x.db\n",
			stderr: []string{`offshoot: config CWD/offshoot.yaml:2: permissions: .*offshoot trust CWD.*`, `offshoot: config CWD/offshoot.yaml:4: store: .*offshoot trust CWD.*`}},
		{name: "missing configuration file", args: []string{"run", "x", "--config", "CWD/no.yaml"}, stderr: []string{`offshoot: config CWD/no.yaml: there is no such file`}},
		{name: "unknown tool in a filter", args: []string{"run", "x"}, user: "model: demo\ntools:\n  deny: [shel]\n", stderr: []string{`offshoot: config HOME/config.yaml:3: tools.deny: .*shel.*`}},
		{name: "no session named", args: []string{"resume"}, stderr: []string{`offshoot: .*`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var made []string
			if tt.user != "" {
				w.write(filepath.Join(w.home, "config.yaml"), tt.user)
				made = []string{"config.yaml"}
			}
			if tt.project != "" {
				w.write("offshoot.yaml", tt.project)
			}
			place := strings.NewReplacer("HOME", w.home, "CWD", w.cwd)
			var args []string
			for _, a := range tt.args {
				args = append(args, place.Replace(a))
			}
			e := w.with(tt.env...).run(args...)
			got := lines(e.stderr)
			if e.code != 2 || e.stdout != "" || len(got) != len(tt.stderr) {
				t.Fatalf("want exit 2 and %d lines: %v", len(tt.stderr), e)
			}
			quoted := strings.NewReplacer("HOME", regexp.QuoteMeta(w.home), "CWD", regexp.QuoteMeta(w.cwd))
			for i := range got {
				if !regexp.MustCompile("^" + quoted.Replace(tt.stderr[i]) + "$").MatchString(got[i]) {
					t.Errorf("line %d is %q, want %q", i, got[i], tt.stderr[i])
				}
			}
			w.holds(made...)
		})
	}
}

// holds checks that the home has exactly these files; none means that it is not there.
func (w *world) holds(names ...string) {
	w.t.Helper()
	entries, err := os.ReadDir(w.home)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if diff := cmp.Diff(names, got); diff != "" {
		w.t.Errorf("the home holds (-want +got):\n%s", diff)
	}
	if len(names) == 0 && err == nil {
		w.t.Errorf("%s was made", w.home)
	}
}

// TestFailures: what was asked rightly and failed ends in 1 with one line.
func TestFailures(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		args   []string
		make   func(w *world)
		stderr string // the last line
		lines  int    // how many; 0 is 1
	}{
		{name: "unreachable host", args: []string{"run", "x", "--model", "openai:fake-model", "--quiet"}, make: func(w *world) {
			w.env["OPENAI_BASE_URL"], w.env["OPENAI_API_KEY"] = "http://"+closedPort(w.t)+"/v1", secretKey
			w.write(filepath.Join(w.home, "config.yaml"), "routes:\n  openai:\n    maxRetries: 0\n")
		}, stderr: `openai:fake-model at 127\.0\.0\.1:\d+: TRANSPORT: .*connection refused`},
		{name: "timeout at an unreachable host", args: []string{"run", "x", "--model", "openai:fake-model", "--quiet", "--timeout", "700ms"}, make: func(w *world) {
			w.env["OPENAI_BASE_URL"], w.env["OPENAI_API_KEY"] = "http://"+closedPort(w.t)+"/v1", secretKey
		}, stderr: `timed out after 700ms; the last model failure was openai:fake-model at 127\.0\.0\.1:\d+: TRANSPORT: .*connection refused`},
		{name: "unknown model", args: []string{"run", "x", "--model", "openai:no-such-model", "--quiet"}, stderr: `openai:no-such-model at 127\.0\.0\.1:\d+: HTTP_404: .*no-such-model.*does not exist`},
		{name: "a file in the place of the home", args: []string{"run", "x"}, make: func(w *world) {
			w.write(w.home, "I am a file\n")
		}, stderr: `not a directory|not a folder`},
		{name: "a file in the place of the home's parent", args: []string{"run", "x"}, make: func(w *world) {
			w.write(filepath.Join(w.cwd, "file"), "I am a file\n")
			w.home = filepath.Join(w.cwd, "file", "home")
			w.env["OFFSHOOT_HOME"] = w.home
		}, stderr: `not a directory|not a folder`},
		{name: "a folder in the place of the store", args: []string{"run", "x", "--store", "."}, stderr: `folder|directory`},
		{name: "a store that is none", args: []string{"run", "x", "--store", "s.db"}, make: func(w *world) {
			w.write("s.db", strings.Repeat("this is no database\n", 100))
		}, stderr: `s\.db`},
		{name: "an unknown session", args: []string{"resume", "nope"}, stderr: `session "nope": .*no sessions yet`},
		{name: "an unknown session to show", args: []string{"sessions", "show", "nope"}, stderr: `session "nope": .*no sessions yet`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s, err := fakemodel.Open(fakemodel.Options{Key: secretKey, Models: []string{"fake-model"}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			w.use(s, "openai")
			if tt.make != nil {
				tt.make(w)
			}
			e := w.run(tt.args...)
			if e.code != 1 || e.stdout != "" {
				t.Errorf("want exit 1: %v", e)
			}
			wantLine(t, e, tt.stderr, nil)
			noSecret(t, e)
			if entries, err := os.ReadDir(w.home); err == nil && len(entries) > 0 {
				w.verify()
			}
		})
	}
}

// TestTrustedFolder: a key that a folder may not set by itself counts once the person said so.
func TestTrustedFolder(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	w.write("offshoot.yaml", "permissions:\n  mode: allow\n")
	prompt := `[[fake:tool bash {"command":"echo ran >> ran.txt"}]] [[fake:reply done]]`
	if e := w.run("run", prompt); e.code != 2 || !strings.Contains(e.stderr, "offshoot.yaml:1: permissions: ") {
		t.Errorf("%v", e)
	}
	w.holds("config.yaml")
	real, err := filepath.EvalSymlinks(w.cwd)
	if err != nil {
		t.Fatal(err)
	}
	if e := w.ok("trust"); e.stdout != real+"\n" {
		t.Errorf("%v", e)
	}
	w.holds("config.yaml", "trusted.json")
	w.ok("run", prompt)
	if w.count("ran.txt") != 1 {
		t.Error("the command did not run")
	}
	w.modes()
}

// TestFreshHome: what a first run makes is for its owner alone, and an umask that
// gives everything away changes nothing about that.
func TestFreshHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.home = filepath.Join(w.home, "deep", "home")
	w.env["OFFSHOOT_HOME"] = w.home
	w.write("README.md", "# A project\n")
	w.ok("run", "hello", "--quiet")
	w.modes()
	for _, dir := range []string{filepath.Dir(w.home), filepath.Dir(filepath.Dir(w.home))} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info.Mode(), err)
		}
	}
	names, err := filepath.Glob(filepath.Join(w.home, "*"))
	if err != nil || !slices.Contains(names, filepath.Join(w.home, "offshoot.db")) {
		t.Errorf("the home holds %v, %v", names, err)
	}
	for _, args := range [][]string{{"sessions", "list"}, {"sessions", "verify"}, {"config"}, {"version"}} {
		w.ok(args...)
	}
	again, err := filepath.Glob(filepath.Join(w.home, "*"))
	if err != nil || !slices.Equal(names, again) {
		t.Errorf("reading made files: %v, were %v (%v)", again, names, err)
	}
}
