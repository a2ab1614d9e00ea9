package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// A model may call a tool that does not exist by any name at all. It is told so,
// and the session stays one that the vendor takes, now and when it is resumed.
func TestOddToolNameDoesNotBrickASession(t *testing.T) {
	t.Parallel()
	for _, d := range []fakemodel.Dialect{fakemodel.OpenAI, fakemodel.DeepSeek} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			w, _ := newModelWorld(t, d)
			if e := w.ok("run", `[[fake:tool functions.read {}]] [[fake:reply told]]`); e.stdout != "told\n" {
				t.Errorf("%v", e)
			}
			root, _ := w.tree()
			w.followUp(root.Header.ID)
			w.verify()
		})
	}
}

// The same on the Messages wire, whose ids are as narrow as its names.
func TestOddToolNameOnTheMessagesWire(t *testing.T) {
	t.Parallel()
	s, err := fakemodel.Open(fakemodel.Options{Key: secretKey, Models: []string{"fake-model"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	w := newWorld(t).with("ANTHROPIC_API_KEY", secretKey, "ANTHROPIC_BASE_URL", s.Origin())
	w.route("anthropic", "maxRetries: 0")
	if e := w.ok("run", `[[fake:tool functions.read {}]] [[fake:reply told]]`); e.stdout != "told\n" {
		t.Errorf("%v", e)
	}
	root, _ := w.tree()
	w.followUp(root.Header.ID)
	w.verify()
}

// An endpoint of one's own, of a dialect whose vendor wants a key, is asked without
// one where the configuration names none.
func TestOwnRouteWithoutAKey(t *testing.T) {
	t.Parallel()
	s, err := fakemodel.Open(fakemodel.Options{Dialect: fakemodel.OpenAI})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	w := newWorld(t)
	w.write(filepath.Join(w.home, "config.yaml"), fmt.Sprintf("version: 1\nroutes:\n  mine:\n    dialect: openai\n    baseURL: %s\n", s.URL()))
	if e := w.ok("run", "--model", "mine:any", "[[fake:reply served]]"); e.stdout != "served\n" {
		t.Errorf("%v", e)
	}
}

// The notice that the demo runs for want of a model is for that case alone, and a
// session is resumed in its own folder.
func TestDemoByChoiceAndResumeElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const notice = "no model is configured"
	if e := w.ok("run", "x"); !strings.Contains(e.stderr, notice) {
		t.Errorf("%v", e)
	}
	root, _ := w.tree()
	id := string(root.Header.ID)
	if e := w.ok("resume", id, "again"); strings.Contains(e.stderr, notice) {
		t.Errorf("%v", e)
	}
	if e := w.ok("run", "--model", "demo", "x"); strings.Contains(e.stderr, notice) {
		t.Errorf("%v", e)
	}
	if e := w.run("resume", id, "again", "--cwd", t.TempDir()); e.code != 2 || !strings.Contains(e.stderr, "its own folder") {
		t.Errorf("%v", e)
	}
}
