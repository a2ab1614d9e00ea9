//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
)

// project writes a project of several hundred files into the cwd.
func (w *world) project() {
	w.t.Helper()
	w.write("README.md", "# The survey project\n\nIt exists to be looked at.\n")
	w.write("go.mod", "module example.com/survey\n")
	for i, top := range []string{"api", "cmd", "docs", "internal", "web"} {
		for sub := range 6 {
			for file := range 10 + i {
				name := fmt.Sprintf("%s/part%d/file%02d.txt", top, sub, file)
				w.write(name, fmt.Sprintf("%s number %d\n", top, file)+strings.Repeat("more\n", file))
			}
		}
		w.write(top+"/README.md", "# About "+top+"\n")
	}
}

// census counts the files and folders below a folder of the cwd.
func (w *world) census(dir string) (files, folders int) {
	w.t.Helper()
	root := filepath.Join(w.cwd, dir)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			files++
		case path != root:
			folders++
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return files, folders
}

// TestDemo: with no key and an empty home the command surveys a real project with
// real children at the same time, and what it says is true.
func TestDemo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.project()
	if files, _ := w.census("."); files < 300 {
		t.Fatalf("only %d files", files)
	}
	e := w.ok("run", "Map this repository", "--json")
	if !strings.Contains(e.stderr, "the embedded demo model runs") {
		t.Errorf("stderr does not say that it is the demo: %v", e)
	}
	all := parseOutput(t, e.stdout)
	text := *all[len(all)-1].Text
	if first, _, _ := strings.Cut(text, "\n"); !strings.Contains(first, "demo model") {
		t.Errorf("the first line is %q", first)
	}
	for _, top := range []string{"api", "cmd", "docs", "internal", "web"} {
		if !strings.Contains(text, top+"/") {
			t.Errorf("%s/ is not named:\n%s", top, text)
		}
	}
	w.checkReports(text)
	w.verify()
	root, children := w.tree()
	if len(children) != 4 {
		t.Errorf("%d children", len(children))
	}
	if !overlap(t, all, root.Header.ID) {
		t.Error("the children did not work at the same time")
	}
	id := string(root.Header.ID)
	again := w.ok("resume", id, "again", "--quiet")
	if !strings.Contains(again.stdout, "demo model") || !strings.Contains(again.stdout, "web/") || again.stderr != "" {
		t.Errorf("%v", again)
	}
	root, children = w.tree()
	if got := ends(t, root); !slices.Equal(got, []string{"completed", "completed"}) || len(children) != 8 {
		t.Errorf("turn ends %v, %d children", got, len(children))
	}
	w.verify()
	w.modes()
	list := w.ok("sessions", "list")
	if n := len(lines(list.stdout)); n != 2 || !strings.Contains(list.stdout, "Map this repository") {
		t.Errorf("%v", list)
	}
}

// checkReports compares everything that the answer states with the files.
func (w *world) checkReports(text string) {
	w.t.Helper()
	want := []string{"holds 5 folders and 2 files.\n", "\n- Directly in the working directory: 2 files, "}
	for _, top := range []string{"api", "cmd", "docs", "internal", "web"} {
		files, folders := w.census(top)
		want = append(want, fmt.Sprintf("\n- %s/: %d folders and %d files, ", top, folders, files))
	}
	for _, part := range want {
		if strings.Count(text, part) != 1 {
			w.t.Errorf("the answer does not say %q:\n%s", part, text)
		}
	}
	claims := regexp.MustCompile(`(?m)^- (\S+) has (\d+) lines? and begins: (.*)$`).FindAllStringSubmatch(text, -1)
	if len(claims) < 8 {
		w.t.Errorf("only %d files were read:\n%s", len(claims), text)
	}
	for _, c := range claims {
		data, err := os.ReadFile(filepath.Join(w.cwd, c[1]))
		if err != nil {
			w.t.Error(err)
			continue
		}
		if got := lines(string(data)); strconv.Itoa(len(got)) != c[2] || got[0] != c[3] {
			w.t.Errorf("%q is not true: it has %d lines and begins %q", c[0], len(got), got[0])
		}
	}
}

// overlap reports whether all children were seen at work before the first of them
// had ended.
func overlap(t *testing.T, all []outputLine, root session.ID) bool {
	t.Helper()
	working := map[session.ID]bool{}
	for _, l := range all {
		if l.Type != "session.event" || l.SessionID == root {
			continue
		}
		var e struct{ Type session.Type }
		if err := json.Unmarshal(l.Event, &e); err != nil {
			t.Fatal(err)
		}
		switch e.Type {
		case session.TypeToolCall:
			working[l.SessionID] = true
		case session.TypeTurnEnd:
			return len(working) >= 4
		}
	}
	return false
}

// The first characters of a root's id are often its children's too: resume means the root.
func TestResumeByTheBeginningOfAnID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := os.WriteFile(filepath.Join(w.cwd, "a.txt"), []byte("one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.ok("run", "Map this", "--quiet")
	root, children := w.tree()
	if len(children) == 0 {
		t.Fatal("nothing was delegated")
	}
	id, other := string(root.Header.ID), string(children[0].Header.ID)
	n := 0
	for n < len(id) && id[n] == other[n] {
		n++
	}
	if e := w.ok("resume", id[:n]); !strings.Contains(e.stderr, "session "+id) {
		t.Errorf("%v", e)
	}
}
