package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/harness/config"
)

// C6 and the exit codes: one clear line for each fault, and the right code.
func TestExitCodes(t *testing.T) {
	user, project := "home/config.yaml", "work/offshoot.yaml"
	for _, c := range []struct {
		name  string
		files map[string]string // below the parent of home and work
		env   map[string]string
		args  string
		code  int
		want  []string // each line of stderr contains this
	}{
		{name: "no argument", args: ""},
		{name: "help", args: "sessions list --help"},
		{name: "help command", args: "help trust"},
		{name: "group alone", args: "sessions"},
		{name: "version", args: "--version"},
		{name: "unknown command", args: "frobnicate", code: 2, want: []string{`unknown command "frobnicate" for "offshoot"`}},
		{name: "near command", args: "sessions lits", code: 2, want: []string{`(did you mean list?)`}},
		{name: "unknown help topic", args: "help nothing", code: 2, want: []string{`unknown command "nothing"`}},
		{name: "unknown flag", args: "sessions list --nope", code: 2, want: []string{`unknown flag: --nope (see "offshoot sessions list --help")`}},
		{name: "unknown short flag", args: "config -x", code: 2, want: []string{`unknown shorthand flag`}},
		{name: "flag without value", args: "config --store", code: 2, want: []string{`--store`}},
		{name: "malformed flag", args: "sessions list --limit many", code: 2, want: []string{`"many"`}},
		{name: "negative limit", args: "sessions list --limit -3", code: 2, want: []string{`--limit`}},
		{name: "too many arguments", args: "trust a b", code: 2, want: []string{`unexpected argument "b"`}},
		{name: "too few arguments", args: "sessions show", code: 2, want: []string{`an argument is missing`}},
		{name: "unknown key", files: map[string]string{user: "version: 1\nmodell: x\n"}, args: "config", code: 2, want: []string{`home/config.yaml:2: unknown key "modell"`}},
		{name: "two faults", files: map[string]string{user: "version: 2\n", project: "\nlimits: {maxDepht: 1}\n"}, args: "sessions list", code: 2,
			want: []string{"home/config.yaml:1: version: ", `work/offshoot.yaml:2: unknown key "maxDepht" in limits`}},
		{name: "untrusted key", files: map[string]string{project: "version: 1\nstore: {path: /elsewhere.db}\n"}, args: "sessions list", code: 2,
			want: []string{"work/offshoot.yaml:2: store: is not taken from a folder that is not trusted"}},
		{name: "unknown route", files: map[string]string{user: "model: nowhere:x\n"}, args: "config", code: 2, want: []string{`home/config.yaml:1: model: unknown route "nowhere"`}},
		{name: "unknown tool in a filter", files: map[string]string{user: "tools: {deny: [bahs]}\n"}, args: "config", code: 2, want: []string{`home/config.yaml:1: tools.deny: no tool is named "bahs"`}},
		{name: "named file is missing", args: "config --config nope.yaml", code: 2, want: []string{"work/nope.yaml: there is no such file"}},
		{name: "empty file name", args: "config --config=", code: 2, want: []string{"flag --config"}},
		{name: "missing cwd", args: "sessions list --cwd nope", code: 2, want: []string{"work/nope: the working directory cannot be used"}},
		{name: "empty cwd", args: "config --cwd=", code: 2, want: []string{"flag --cwd"}},
		{name: "cwd is a file", files: map[string]string{"work/f": ""}, args: "config --cwd f", code: 2, want: []string{"is not a folder"}},
		{name: "trust of nothing", args: "trust nope", code: 2, want: []string{"work/nope: is not a folder"}},
		{name: "bad variable", env: map[string]string{config.EnvModel: "nowhere:x"}, args: "config", code: 2, want: []string{"env OFFSHOOT_MODEL: model: unknown route"}},
		{name: "no model shows", files: map[string]string{user: "version: 1\n"}, args: "config"},
		{name: "store is a folder", args: "sessions list --store .", code: 1, want: []string{"work: a folder stands in place of the file"}},
		{name: "store is no database", files: map[string]string{"work/s.db": strings.Repeat("no database ", 200)}, args: "sessions verify --store s.db", code: 1, want: []string{"work/s.db: not an Offshoot store"}},
		{name: "home is a file: trust", files: map[string]string{"home": ""}, args: "trust", code: 1, want: []string{"home/trusted.json: "}},
		{name: "home is a file: list", files: map[string]string{"home": ""}, args: "sessions list", code: 1, want: []string{"home"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHome(t)
			base := filepath.Dir(h.dir)
			for name, text := range c.files {
				h.write(filepath.Join(base, name), text)
			}
			for k, v := range c.env {
				h.env[k] = v
			}
			before := snapshot(t, base)
			o := h.run(strings.Fields(c.args)...)
			lines := strings.Split(strings.TrimSuffix(o.errOut, "\n"), "\n")
			if o.errOut == "" {
				lines = nil
			}
			ok := o.code == c.code && len(lines) == len(c.want)
			for i := range min(len(lines), len(c.want)) {
				ok = ok && strings.HasPrefix(lines[i], "offshoot: ") && strings.Contains(lines[i], filepath.FromSlash(c.want[i]))
			}
			if !ok {
				t.Errorf("exit code %d (want %d), stderr (want %q):\n%s", o.code, c.code, c.want, o.errOut)
			}
			if c.code == 0 && o.out == "" {
				t.Error("nothing was said")
			}
			if after := snapshot(t, base); after != before {
				t.Errorf("something half-made was left:\n%.300s\n%.300s", before, after)
			}
		})
	}
}

// What runs an agent says what its exit codes mean, and what it refuses.
func TestHelpTellsTheExitCodes(t *testing.T) {
	h := newHome(t)
	for _, name := range []string{"run", "resume"} {
		out := h.must(name, "--help")
		for _, want := range []string{"Exit codes: 0 the turn completed", "1 it ended any other way; 2 a mistake", "130 interrupted, 143 terminated.", "the demo model"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s --help does not say %q", name, want)
			}
		}
	}
}

// A shell may stand in a folder that was removed meanwhile.
func TestMissingWorkingDirectory(t *testing.T) {
	h := newHome(t)
	for _, args := range [][]string{{"config"}, {"trust"}, {"sessions", "list"}} {
		a, _, errOut := h.app()
		a.getwd = func() (string, error) { return "", &os.PathError{Op: "getwd", Path: ".", Err: os.ErrNotExist} }
		if code := a.execute(t.Context(), args); code != 2 || !strings.Contains(errOut.String(), "working directory") {
			t.Errorf("%v: %d, %s", args, code, errOut)
		}
	}
}

func TestExplain(t *testing.T) {
	use, io := &config.Error{Kind: config.KindUsage, Msg: "a"}, &config.Error{Kind: config.KindIO, Msg: "b"}
	for _, c := range []struct {
		err   error
		code  int
		lines []string
	}{
		{nil, 0, nil},
		{errors.New("x\ny \x1b[31m"), 1, []string{"x; y \uFFFD[31m"}},
		{use, 2, []string{"config: a"}},
		{io, 1, []string{"config: b"}},
		{errors.Join(use, use), 2, []string{"config: a", "config: a"}},
		{errors.Join(use, io), 1, []string{"config: a", "config: b"}},
		{errors.Join(io, use), 1, []string{"config: b", "config: a"}},
		{fmt.Errorf("open: %w", use), 2, []string{"open: config: a"}},
		{fmt.Errorf("open: %w", errors.Join(use, io)), 1, []string{"open: config: a; config: b"}},
		{fmt.Errorf("%w, %w", use, use), 2, []string{"config: a, config: a"}},
		{usagef("z"), 2, []string{"z"}},
		{fmt.Errorf("run: %w", usagef("z")), 2, []string{"run: z"}},
		{&exitError{code: 130}, 130, nil},
		{&exitError{code: 143, err: errors.Join(use, io)}, 143, []string{"config: a", "config: b"}},
		{errors.Join(nil, &exitError{code: 130, err: errors.New("q")}), 130, []string{"q"}},
	} {
		code, lines := explain(c.err)
		if diff := cmp.Diff(c.lines, lines); code != c.code || diff != "" {
			t.Errorf("%v: code %d, want %d; lines (-want +got):\n%s", c.err, code, c.code, diff)
		}
	}
}
