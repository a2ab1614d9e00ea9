package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/harness/config"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// home is a person's home and a folder to work in, with nothing in either.
type home struct {
	t         *testing.T
	dir, work string
	env       map[string]string
	now       time.Time
	stdin     string
}

func newHome(t *testing.T) *home {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := &home{t: t, dir: filepath.Join(root, "home"), work: filepath.Join(root, "work"), now: time.UnixMilli(epoch).Add(90 * time.Minute).UTC()}
	h.env = map[string]string{config.EnvHome: h.dir}
	if err := os.Mkdir(h.work, 0o700); err != nil {
		t.Fatal(err)
	}
	return h
}

// output is what a command line left.
type output struct {
	code        int
	out, errOut string
}

// app is the program as a person in this home runs it.
func (h *home) app() (a *app, out, errOut *bytes.Buffer) {
	out, errOut = &bytes.Buffer{}, &bytes.Buffer{}
	return &app{
		stdin: strings.NewReader(h.stdin), stdout: out, stderr: errOut,
		env: config.MapEnviron(h.env), getwd: func() (string, error) { return h.work, nil },
		now: func() time.Time { return h.now },
		build: func() (*debug.BuildInfo, bool) {
			return &debug.BuildInfo{GoVersion: "go1.99", Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
				{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2030-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: "true"},
			}}, true
		},
	}, out, errOut
}

func (h *home) run(args ...string) output {
	h.t.Helper()
	a, out, errOut := h.app()
	code := a.execute(h.t.Context(), args)
	return output{code, out.String(), errOut.String()}
}

// must runs a command line that is to end in 0 and returns its stdout.
func (h *home) must(args ...string) string {
	h.t.Helper()
	o := h.run(args...)
	if o.code != exitOK || o.errOut != "" {
		h.t.Fatalf("offshoot %s: exit code %d\n%s", strings.Join(args, " "), o.code, o.errOut)
	}
	return o.out
}

func (h *home) write(path, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// plain replaces the places of this run by names.
func (h *home) plain(text string) string {
	return strings.NewReplacer(h.dir, "HOME", h.work, "WORK").Replace(text)
}

// golden compares with testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// snapshot tells names, modes, times and contents of everything below a folder,
// but of shared memory, which is no data.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || strings.HasSuffix(path, "-shm") {
			return err
		}
		fmt.Fprintf(&b, "%s %v %v", path, info.Mode(), info.ModTime())
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %x", data)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
