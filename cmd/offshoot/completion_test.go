package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The scripts for the four shells are there, and asking for another is an error.
func TestCompletionScripts(t *testing.T) {
	h := newHome(t)
	for shell, want := range map[string]string{
		"bash": "__start_offshoot", "zsh": "#compdef offshoot", "fish": "complete -c offshoot", "powershell": "Register-ArgumentCompleter",
	} {
		if out := h.must("completion", shell); !strings.Contains(out, want) {
			t.Errorf("%s: %.200s", shell, out)
		}
	}
	if o := h.run("completion", "tcsh"); o.code != exitUsage {
		t.Errorf("%d, %s", o.code, o.errOut)
	}
	if help := h.must("--help"); !strings.Contains(help, "\n  completion ") {
		t.Errorf("the command is hidden:\n%s", help)
	}
}

// What a shell is offered, and that offering it changes nothing.
func TestCompletionOfValues(t *testing.T) {
	full := newHome(t)
	library(t, full)
	h := newHome(t)
	h.env["OPENAI_API_KEY"] = doctorKey
	h.write(filepath.Join(h.dir, "config.yaml"), "routes: {mine: {dialect: vllm, baseURL: 'http://127.0.0.1:1'}}\n")
	broken := newHome(t)
	broken.write(filepath.Join(broken.dir, "config.yaml"), "nonsense")
	for _, c := range []struct {
		home *home
		args string
		want []string
	}{
		{full, "sessions show |", []string{otherID, childID, rootID}},
		{full, "sessions verify 018b|", []string{childID, rootID}},
		{full, "sessions tree 018c|", []string{otherID}},
		{full, "sessions rm --tree |", []string{otherID, childID, rootID}},
		{full, "sessions export --tree 018b|", []string{childID, rootID}},
		{full, "agents children 018b|", []string{childID, rootID}},
		{full, "agents chi|", []string{"children"}},
		{full, "agents send |", []string{childID}},
		{full, "agents wait 018b|", []string{childID}},
		{full, "agents interrupt |", []string{childID}},
		{full, "agents close |", []string{childID}},
		{full, "agents s|", []string{"send", "show"}},
		{full, "resume |", []string{otherID, rootID}},
		{full, "sessions show 018c-other |", nil},
		{full, "sessions show nope|", nil},
		{newHome(t), "sessions show |", nil},
		{full, "--store memory sessions show |", nil},
		{broken, "sessions show |", nil},
		{broken, "run --model |", nil},
		{h, "run --model o|", []string{"openai:gpt-5.4-mini", "openrouter:openai/gpt-5.4-mini", "ollama:qwen3"}},
		{h, "resume x --model mi|", []string{"mine:"}},
		{h, "run --delegate |", []string{"spawn", "fork"}},
		{broken, "resume x --delegate f|", []string{"spawn", "fork"}}, // the shell leaves out what does not begin so
		{h, "sessions tr|", []string{"tree"}},
		{h, "doct|", []string{"doctor"}},
	} {
		before := snapshot(t, filepath.Dir(c.home.work))
		words := strings.Split(strings.TrimSuffix(c.args, "|"), " ")
		o := c.home.run(append([]string{"__complete"}, words...)...)
		var got []string
		for line := range strings.Lines(o.out) {
			if !strings.HasPrefix(line, ":") {
				word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
				got = append(got, word)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" || o.code != 0 {
			t.Errorf("%s: %d (-want +got):\n%s%s", c.args, o.code, diff, o.errOut)
		}
		if strings.Contains(o.out, doctorKey) {
			t.Errorf("%s shows a key:\n%s", c.args, o.out)
		}
		if snapshot(t, filepath.Dir(c.home.work)) != before {
			t.Errorf("%s changed files", c.args)
		}
	}
	if o := full.run("__completeNoDesc", "sessions", "show", "018c"); !strings.HasPrefix(o.out, otherID+"\n") {
		t.Errorf("%q", o.out)
	}
}
