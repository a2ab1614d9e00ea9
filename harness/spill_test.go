package harness_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
)

// core D45; design § 4, Bounded: the limits of the configuration hold for what the
// model reads and for what the log keeps, and what read gives of the rest fits into
// the smallest of them: it is not cut again.
func TestSpillLimits(t *testing.T) {
	home, work := t.TempDir(), t.TempDir()
	text := "version: 1\nlimits: {maxToolResultBytes: 1024, maxSpillBytes: 3000}\n"
	if err := os.WriteFile(filepath.Join(home, "config.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	model := scripted.New(scripted.Script{{Steps: []scripted.Step{
		{scripted.Call("bash", `{"command":"yes 0123456789 | head -c 5000"}`)},
		{scripted.Call("read", `{"path":"{{match:spill:[^ ]+}}"}`)},
		{scripted.Say("done")},
	}}}, scripted.Options{})
	eff, err := config.Load(config.LoadOptions{Cwd: work, Env: config.MapEnviron(map[string]string{"OFFSHOOT_HOME": home, "HOME": home})})
	if err != nil {
		t.Fatal(err)
	}
	h, err := harness.Open(t.Context(), harness.Options{
		Config: eff, Store: memory.New(), Permission: config.PermissionAllow,
		Adapters: func(r *llm.Registry) error { _, err := r.Register(model, "script"); return err },
	})
	if err != nil {
		t.Fatal(err)
	}
	root, err := h.NewRoot(t.Context(), work, config.Choice{Ref: config.ModelRef{Route: "script", Model: "any"}})
	if err != nil {
		t.Fatal(err)
	}
	a := root.Agent()
	if err := a.Followup(agent.UserText("Print it.")); err != nil {
		t.Fatal(err)
	}
	if err := a.WhenIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
	var shown []string
	spills := 0
	for e := range a.Session().Events(0) {
		switch p := e.Payload().(type) {
		case *session.ToolSpill:
			spills++
			kept, err := p.Text()
			if err != nil || p.Bytes != 5000 || p.Omitted < 2000 || len(kept) > 3000 {
				t.Errorf("kept are %d bytes of %d without %d, %v", len(kept), p.Bytes, p.Omitted, err)
			}
		case *session.ToolResult:
			shown = append(shown, message.JoinText(p.Message.Content[0].Content))
		}
	}
	if spills != 1 || len(shown) != 2 {
		t.Fatalf("%d spills, results %q", spills, shown)
	}
	for _, text := range shown {
		if len(text) > 1024 {
			t.Errorf("the model reads %d bytes", len(text))
		}
	}
	if !strings.HasPrefix(shown[1], "[lines 1 to ") || !strings.Contains(shown[1], "go on with offset") || !strings.HasSuffix(shown[1], "0123456789\n") {
		t.Errorf("read gives %q", shown[1])
	}
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
