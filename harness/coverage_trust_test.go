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
	"github.com/offshoot-dev/offshoot/store/memory"
)

// seam COMP-36, amendment P42, design § 4 Trust: a persona that came with a folder
// which nobody trusts is text, for the root and for a child; the person's own in a
// configuration file is a template, and that of an agent file is text unless the file
// says otherwise.
func TestCOMP36PersonaOfAFolderIsText(t *testing.T) {
	const personas = "agents:\n  default: {persona: 'Root on {{model}}.'}\n  helper: {description: Helps., persona: 'Child on {{model}}.'}\n"
	const root = "agents: {default: {persona: 'Root on {{model}}.'}}\n"
	const plain, template = "---\ndescription: Helps.\n---\nChild on {{model}}.\n", "---\ndescription: Helps.\ntemplate: true\n---\nChild on {{model}}.\n"
	for name, c := range map[string]struct {
		files       map[string]string // below the parent of home and work
		trusted     bool
		root, child string // in place of the group
	}{
		"a folder that is not trusted":       {map[string]string{"work/offshoot.yaml": personas}, false, "{{model}}", "{{model}}"},
		"a trusted folder":                   {map[string]string{"work/offshoot.yaml": personas}, true, "any", "any"},
		"the person's own file":              {map[string]string{"home/config.yaml": personas}, false, "any", "any"},
		"a variable of the program's own":    {map[string]string{"home/config.yaml": strings.ReplaceAll(personas, "{{model}}", "{{team}}")}, false, "red", "red"},
		"the person's agent file":            {map[string]string{"home/config.yaml": root, "home/agents/helper.md": plain}, false, "any", "{{model}}"},
		"the person's template":              {map[string]string{"home/config.yaml": root, "home/agents/helper.md": template}, false, "any", "any"},
		"an agent file of a trusted folder":  {map[string]string{"home/config.yaml": root, "work/.offshoot/agents/helper.md": plain}, true, "any", "{{model}}"},
		"a template of a trusted folder":     {map[string]string{"home/config.yaml": root, "work/.offshoot/agents/helper.md": template}, true, "any", "any"},
		"a folder's text over a template":    {map[string]string{"home/config.yaml": root, "home/agents/helper.md": template, "work/.offshoot/agents/helper.md": plain}, false, "any", "{{model}}"},
		"a folder's entry over a template":   {map[string]string{"home/agents/helper.md": template, "work/offshoot.yaml": personas}, false, "{{model}}", "{{model}}"},
		"a fork of a root that is a literal": {map[string]string{"home/config.yaml": "agents: {default: {persona: 'Root on {{model}}.', template: false}}\n", "home/agents/helper.md": "---\nprovider: fork\n---\n"}, false, "{{model}}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var who []string
			for _, system := range systems(t, c.files, c.trusted) {
				switch {
				case strings.Contains(system, "Root on "+c.root+"."):
					who = append(who, "Root")
				case strings.Contains(system, "Child on "+c.child+"."):
					who = append(who, "Child")
				}
			}
			want := "Root Child Root"
			if c.child == "" {
				want = "Root Root Root" // a fork is as its root is
			}
			if got := strings.Join(who, " "); got != want {
				t.Errorf("the personas reached the requests of %q", got)
			}
		})
	}
}

// systems runs a root that calls subagent_helper, in a folder with files, and returns
// the system prompts of the requests.
func systems(t *testing.T, files map[string]string, trusted bool) (prompts []string) {
	t.Helper()
	base := t.TempDir()
	home, work := filepath.Join(base, "home"), filepath.Join(base, "work")
	for _, dir := range []string{home, work} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		path := filepath.Join(base, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	eff, err := config.Load(config.LoadOptions{Cwd: work, Env: config.MapEnviron(map[string]string{"OFFSHOOT_HOME": home, "HOME": home}), Trusted: &trusted})
	if err != nil {
		t.Fatal(err)
	}
	model := scripted.New(scripted.Script{
		{Match: scripted.FirstPrompt("help"), Steps: []scripted.Step{{scripted.Say("helped")}}},
		{Steps: []scripted.Step{{scripted.Call("subagent_helper", `{"description":"d","prompt":"help"}`)}, {scripted.Say("done")}}},
	}, scripted.Options{})
	h, err := harness.Open(t.Context(), harness.Options{
		Config: eff, Store: memory.New(), Variables: map[string]func() (string, bool){"team": func() (string, bool) { return "red", true }},
		Adapters: func(r *llm.Registry) error { _, err := r.Register(model, "script"); return err },
	})
	if err != nil {
		t.Fatal(err)
	}
	root, err := h.NewRoot(t.Context(), work, config.Choice{Ref: config.ModelRef{Route: "script", Model: "any"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := root.Agent().Followup(agent.UserText("go")); err != nil {
		t.Fatal(err)
	}
	if err := root.Agent().WhenIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for _, call := range model.Calls() {
		prompts = append(prompts, call.Request.System)
	}
	return prompts
}
