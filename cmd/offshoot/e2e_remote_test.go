//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
)

// remotely is a directive that calls the delegation tool of a product.
func remotely(provider, prompt string) string {
	args, err := json.Marshal(map[string]string{"description": "ask " + provider, "prompt": prompt})
	if err != nil {
		panic(err) // two strings
	}
	return "[[fake:tool subagent_" + provider + " " + string(args) + "]]"
}

// runtime configures a provider whose product is this test binary, a scripted DSH runtime.
func (w *world) runtime(more string) {
	w.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(w.home, "config.yaml"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(filepath.Join(w.home, "config.yaml"), fmt.Sprintf("%sproviders:\n  rt:\n    provider: dsh\n    command: %s\n    env: {FAKEAGENT_AS: dsh, FAKEAGENT: record=%s}\n%s",
		text, exe, filepath.Join(w.home, "record"), more))
}

// A model delegates to a product: the answer is the tool's result, the children of this
// program stay beside it, and no session comes of it (seam RUN-05).
func TestDelegatesToAProduct(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	w.runtime("    permission: allow\n")
	w.ok("trust")
	e := w.ok("run", "--permission", "allow", remotely("rt", "[[agent:say from afar]]")+delegation("near", "[[fake:reply from here]]")+
		"[[fake:reply {{match:from afar}} and {{match:from here}}]]")
	if e.stdout != "from afar and from here\n" || !strings.Contains(e.stderr, "ask rt") {
		t.Errorf("%v", e)
	}
	w.verify()
	root, children := w.tree()
	if diff := cmp.Diff([]string{"from afar", "from here"}, results(t, root)); diff != "" {
		t.Error(diff)
	}
	if len(children) != 1 {
		t.Errorf("%d children are stored, want the one of this program", len(children))
	}
}

// What may not be started says why and what would help, and nothing is started (design § 4,
// Trust).
func TestProductIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trusted    bool
		permission string
		code       subagent.Code
		want       string
	}{
		"not trusted": {permission: "allow", code: subagent.CodeUntrustedFolder, want: "run \"offshoot trust "},
		"only reads":  {trusted: true, permission: "read-only", code: subagent.CodeForbidden, want: "has no mode in which it only reads"},
		"denied":      {trusted: true, permission: "deny", code: subagent.CodeForbidden, want: "has no mode in which it only reads"},
		"nobody asks": {trusted: true, permission: "ask", code: subagent.CodeForbidden, want: "nobody agreed to its start"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := newModelWorld(t, fakemodel.OpenAI)
			w.runtime("    permission: allow\n")
			if c.trusted {
				w.ok("trust")
			}
			w.ok("run", "--permission", c.permission, remotely("rt", "[[agent:say x]]")+"[[fake:reply done]]")
			if _, err := os.Stat(filepath.Join(w.home, "record")); err == nil {
				t.Error("the product was started")
			}
			root, _ := w.tree()
			got := payloads[*session.ToolResult](t, root)
			if len(got) != 1 || got[0].ErrorCode != string(c.code) || !strings.Contains(results(t, root)[0], c.want) {
				t.Errorf("%q: %q, want %s with %s", got[0].ErrorCode, results(t, root), c.code, c.want)
			}
		})
	}
}

// A product that is not installed is told when somebody wants it, with how to get it; until
// then it is no fault.
func TestProductIsMissing(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	w.runtime("    permission: allow\n  gone: {provider: dsh, command: no-such-program, permission: allow}\n")
	w.ok("trust")
	w.ok("run", "--permission", "allow", remotely("gone", "x")+"[[fake:reply done]]")
	root, _ := w.tree()
	if got := results(t, root); len(got) != 1 || !strings.Contains(got[0], `"no-such-program" is not installed, or not in PATH`) {
		t.Errorf("%q", got)
	}
}

// A background job may be a product's child, too.
func TestProductInTheBackground(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	w.runtime("    permission: allow\n")
	w.ok("trust")
	e := w.ok("run", "--permission", "allow",
		`[[fake:tool subagent_rt {"description":"far","prompt":"[[agent:big 33]]","run_in_background":true}]] [[fake:reply started]]`)
	w.verify()
	root, _ := w.tree()
	if text := strings.Join(root.lines, "\n"); !strings.Contains(text, "job completed: subagent-1 (far)") || !strings.Contains(e.stderr, "far    rt    -      completed") {
		t.Errorf("its end has not reached the root: %v\n%s", e, text)
	}
}
