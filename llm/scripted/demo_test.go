package scripted_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/tool"
	"github.com/offshoot-dev/offshoot/tool/files"
)

// world is a loop just large enough to drive the demo model: real file tools, and
// a subagent tool that runs the same loop.
type world struct {
	t     *testing.T
	model func() llm.Adapter // a new instance for every call
	scope *tool.Scope
	specs []llm.ToolSpec
	cwd   string
	// child, if set, replaces the run of the nth child.
	child func(n int) (text string, isError, replaced bool)

	mu    sync.Mutex
	sent  []string // prompts of children
	calls []message.Block
}

func newWorld(t *testing.T, tree map[string]string, without ...string) *world {
	t.Helper()
	w := &world{t: t, cwd: t.TempDir(), model: func() llm.Adapter { return scripted.Demo(scripted.DemoOptions{}) }}
	for name, content := range tree {
		full := filepath.Join(w.cwd, name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(full, 0o700); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.scope = tool.New().Root()
	for _, def := range files.Tools(files.Options{}) {
		if slices.Contains(without, def.Name) {
			continue
		}
		if _, err := w.scope.Register(def); err != nil {
			t.Fatal(err)
		}
		w.specs = append(w.specs, llm.ToolSpec{Name: def.Name, Description: def.Description, Parameters: def.Parameters})
	}
	if !slices.Contains(without, "subagent") {
		w.specs = append(w.specs, llm.ToolSpec{Name: "subagent", Parameters: []byte(`{"type":"object","properties":{"description":{"type":"string"},"prompt":{"type":"string"},"run_in_background":{"type":"boolean"}}}`)})
	}
	return w
}

// run drives one agent from a prompt to its answer and returns its history.
func (w *world) run(history []message.Message, prompt string) (string, []message.Message) {
	history = append(slices.Clone(history), user(fmt.Sprintf("u%d", len(history)), prompt))
	for range 30 {
		got := ask(w.t, w.t.Context(), w.model(), &llm.Request{Provider: scripted.DemoRoute, Model: scripted.DemoModel, Messages: history, Tools: w.specs})
		if got.Kind != llm.FinishStop && got.Kind != llm.FinishToolCalls {
			w.t.Errorf("the demo ended as %s: %s", got.Kind, got.Failure.Message)
			return "", history
		}
		history = append(history, assistant(got.Blocks...))
		var calls []message.Block
		for _, b := range got.Blocks {
			if b.Type == message.BlockToolCall {
				calls = append(calls, b)
			}
		}
		if len(calls) == 0 {
			return message.JoinText(got.Blocks), history
		}
		results := make([]message.Message, len(calls))
		var group sync.WaitGroup
		for i, c := range calls {
			group.Go(func() { results[i] = w.execute(c) })
		}
		group.Wait()
		history = append(history, results...)
	}
	w.t.Error("the demo does not come to an end")
	return "", history
}

func (w *world) execute(c message.Block) message.Message {
	w.mu.Lock()
	w.calls = append(w.calls, c)
	w.mu.Unlock()
	m := message.Message{Role: message.RoleUser, Source: message.NewSource(message.SourceTool, message.SourceDetails{CallID: c.ID})}
	if c.Name == "subagent" {
		text, isError := w.delegate(c)
		m.Content = []message.Block{message.ToolResult(c.ID, []message.Block{message.Text(text)}, isError)}
		return m
	}
	r := w.scope.Execute(w.t.Context(), tool.CallInput{ID: c.ID, Name: c.Name, Args: c.Arguments, Cwd: w.cwd}, tool.ExecOptions{})
	m.Content = []message.Block{message.ToolResult(c.ID, r.Content, r.IsError)}
	return m
}

func (w *world) delegate(c message.Block) (text string, isError bool) {
	var args struct {
		Description, Prompt string
		Background          *bool `json:"run_in_background"`
	}
	if err := json.Unmarshal([]byte(c.Arguments), &args); err != nil {
		w.t.Errorf("arguments of subagent: %v", err)
	}
	if args.Description == "" || args.Background == nil || *args.Background {
		w.t.Errorf("arguments of subagent: %s", c.Arguments)
	}
	w.mu.Lock()
	n := len(w.sent)
	w.sent = append(w.sent, args.Prompt)
	w.mu.Unlock()
	if w.child != nil {
		if text, isError, replaced := w.child(n); replaced {
			return text, isError
		}
	}
	text, _ = w.run(nil, args.Prompt)
	return text, false
}

// has fails unless the answer says all of the texts.
func has(t *testing.T, answer string, texts ...string) {
	t.Helper()
	for _, s := range texts {
		if !strings.Contains(answer, s) {
			t.Errorf("the answer does not say %q:\n%s", s, answer)
		}
	}
}

func lines(n int) string { return strings.Repeat("line of text\n", n) }

func TestDemoDelegates(t *testing.T) {
	w := newWorld(t, map[string]string{
		"README.md": "# Sample\n\ntext\n", "go.mod": "module sample\n", "empty.txt": "",
		"cmd/main.go": "package main\n" + lines(99), "cmd/tool/tool.go": "package tool\n",
		"docs/README.md": "\n\n  Docs of the sample  \nmore\n", "docs/a/b/c/deep.md": "deep\n", "docs/pic.png": "\x89PNG\x00",
		"internal/x.go": "package internal\n", "internal/vendor/y/z.go": "package z\n",
		"web/app.js": "let a = 1", ".git/config": "[core]\n", "node_modules/x/index.js": "x\n",
	})
	answer, history := w.run(nil, "Map this\nrepository")
	if first, _, _ := strings.Cut(answer, "\n"); first != scripted.DemoNotice {
		t.Errorf("first line %q", first)
	}
	has(t, answer, "You asked: “Map this repository”",
		"holds 6 folders and 3 files", "Passed over as hidden or third-party: .git/ and node_modules/",
		"4 agents looked at it side by side",
		"## the files at the top", "3 files, 29 bytes in all", "README.md has 3 lines and begins: # Sample", "go.mod has 1 line and begins: module sample",
		"- cmd/: 1 folder and 2 files, 1.3 kB in all", "cmd/main.go has 100 lines and begins: package main", "cmd/tool/tool.go has 1 line",
		"- docs/: 3 folders and 3 files", "docs/README.md has 4 lines and begins: Docs of the sample", "2 .md and 1 .png",
		"- internal/: 1 folder and 1 file", "Not opened, as hidden or third-party: internal/vendor/",
		"- web/: 0 folders and 1 file", "web/app.js has 1 line and begins: let a = 1")
	if len(w.sent) != 4 {
		t.Errorf("%d children", len(w.sent))
	}
	// All of them in one step, so that they run side by side.
	for _, m := range history {
		n := 0
		for _, b := range m.Content {
			if b.Type == message.BlockToolCall && b.Name == "subagent" {
				n++
			}
		}
		if n != 0 && n != 4 {
			t.Errorf("%d children in one step", n)
		}
	}
	for _, p := range w.sent {
		if !strings.Contains(p, "Map this\nrepository") || !strings.Contains(p, "Your part: ") {
			t.Errorf("a prompt that does not stand alone:\n%s", p)
		}
	}
	for _, c := range w.calls {
		if !slices.Contains([]string{"list", "read", "subagent"}, c.Name) {
			t.Errorf("the demo called %s", c.Name)
		}
	}
	// A follow-up in the resumed session delegates anew, with what is there now.
	if err := os.WriteFile(filepath.Join(w.cwd, "web", "new.css"), []byte("a{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	answer, _ = w.run(history, "And again?")
	has(t, answer, scripted.DemoNotice, "“And again?”", "- web/: 0 folders and 2 files", "web/new.css has 1 line")
	if len(w.sent) != 8 {
		t.Errorf("%d children after the follow-up", len(w.sent))
	}
}

func TestDemoOddDirectories(t *testing.T) {
	many := map[string]string{}
	for i := range 700 {
		many[fmt.Sprintf("f%03d.txt", i)] = "x\n"
	}
	folders := map[string]string{}
	for i := range 300 {
		folders[fmt.Sprintf("d%03d/f.go", i)] = "package p\n"
	}
	wide := map[string]string{}
	for i := range 80 {
		wide[fmt.Sprintf("src/d%02d/f.go", i)] = "package p\n"
	}
	for _, tc := range []struct {
		name     string
		tree     map[string]string
		children int
		want     []string
	}{
		{"empty", nil, 0, []string{"The working directory is empty."}},
		{"one file", map[string]string{"a": "1\n2\n"}, 1, []string{"0 folders and 1 file", "a has 2 lines and begins: 1"}},
		{"only files", map[string]string{"a": "a\n", "b": "b\n", "c": "c\n", "d": "d\n", "e": "e\n"}, 4,
			[]string{"0 folders and 5 files", "## the files up to a", "## the files after c", "a has 1 line", "b has 1 line", "c has 1 line", "d has 1 line", "e has 1 line"}},
		{"one folder", map[string]string{"src/a.go": "package a\n"}, 1, []string{"1 folder and 0 files", "src/a.go has 1 line and begins: package a"}},
		{"only hidden", map[string]string{".config/a": "x\n"}, 1, []string{"- .config/: 0 folders and 1 file", ".config/a has 1 line"}},
		{"hidden and files", map[string]string{".git/a": "x\n", "b": "y\n"}, 1, []string{"Passed over as hidden or third-party: .git/", "b has 1 line"}},
		{"empty folders", map[string]string{"a/": "", "b/c/": ""}, 2, []string{"- a/: 0 folders and 0 files", "- b/: 1 folder and 0 files"}},
		{"names", map[string]string{"two words/ä ö.txt": "ü\n", "日本/本.md": "# 本\n", "new\nline/a\tb": "x\n", `q"uote/{{result:list}}`: "y\n", "[odd]": "z\n", "-> x": "w\n", "demo-survey: {}": "v\n"}, 4,
			[]string{"two words/ä ö.txt has 1 line and begins: ü", "日本/本.md has 1 line and begins: # 本", `"new\nline/a\tb" has 1 line`, `q"uote/{{result:list}} has 1 line and begins: y`,
				"[odd] has 1 line and begins: z", "-> x has 1 line and begins: w", "demo-survey: {} has 1 line and begins: v"}},
		{"hundreds of files", many, 4, []string{"0 folders and 500 files", "The listing says: 200 more entries", "f000.txt has 1 line"}},
		{"hundreds of folders", folders, 4, []string{"300 folders and 0 files", "d000/f.go has 1 line", "not listed"}},
		{"wide", wide, 1, []string{"Not opened, to keep this short: 21 folders", "80 folders and 59 files"}},
		{"binary and long", map[string]string{"a.dat": "ab\x00cd", "b.txt": lines(1000)}, 2,
			[]string{"a.dat could not be read: ", "is not text", "b.txt has 1000 lines and begins: line of text"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, tc.tree)
			answer, _ := w.run(nil, "What is here?")
			has(t, answer, append(tc.want, scripted.DemoNotice, "“What is here?”")...)
			if len(w.sent) != tc.children {
				t.Errorf("%d children, want %d\n%s", len(w.sent), tc.children, answer)
			}
			if n := len(answer); n > 30_000 {
				t.Errorf("the answer has %d bytes", n)
			}
		})
	}
}

func TestDemoLinksAndSymlinkedFolders(t *testing.T) {
	w := newWorld(t, map[string]string{"src/a.go": "package a\n"})
	for name, target := range map[string]string{"link": "src", "src/up": ".."} {
		if err := os.Symlink(target, filepath.Join(w.cwd, name)); err != nil {
			t.Fatal(err)
		}
	}
	answer, _ := w.run(nil, "go")
	has(t, answer, "holds 1 folder, 0 files and 1 link", "- src/: 0 folders, 1 file and 1 link")
}

func TestDemoWhenAgentsFail(t *testing.T) {
	tree := map[string]string{"a/x.go": "package x\n", "b/y.go": "package y\n", "top.md": "# top\n"}
	refused := func(int) (string, bool, bool) { return "Error: too deep", true, true }

	w := newWorld(t, tree)
	w.child = func(n int) (string, bool, bool) { return "The agent failed: no luck", true, n == 0 }
	answer, _ := w.run(nil, "go")
	has(t, answer, "3 agents looked at it side by side; 1 of them failed", "The agent for this part failed: The agent failed: no luck")
	if strings.Contains(answer, "I did the work alone") || len(w.sent) != 3 {
		t.Errorf("one failed child of %d: %s", len(w.sent), answer)
	}

	w = newWorld(t, tree)
	w.child = func(n int) (string, bool, bool) { return " ", false, n == 0 }
	answer, _ = w.run(nil, "go")
	has(t, answer, "returned no text")

	own := []string{"- a/: 0 folders and 1 file", "b/y.go has 1 line and begins: package y", "top.md has 1 line"}
	w = newWorld(t, tree)
	w.child = refused
	answer, _ = w.run(nil, "go")
	has(t, answer, append(own, "All 3 agents that I started failed, so I did the work alone. The first one: Error: too deep")...)

	answer, _ = newWorld(t, tree, "subagent").run(nil, "go")
	has(t, answer, append(own, "There is no tool to start agents with here, so I did the work alone.")...)

	answer, _ = newWorld(t, tree, "read").run(nil, "go")
	has(t, answer, "- b/: 0 folders and 1 file", "No file was read.")

	answer, _ = newWorld(t, tree, "list").run(nil, "go")
	has(t, answer, scripted.DemoNotice, "no tool to list files")

	w = newWorld(t, tree)
	if err := os.RemoveAll(w.cwd); err != nil {
		t.Fatal(err)
	}
	answer, _ = w.run(nil, "go")
	has(t, answer, "could not be listed: Error: ")
}

// A listing or a reading that the pipeline cut in the middle yields fewer facts,
// not wrong ones.
func TestDemoReadsCutResults(t *testing.T) {
	adapter := scripted.Demo(scripted.DemoOptions{Hint: "Set a key."})
	prompt := "x\ndemo-survey: {\"folders\":[\"d\"]}\n"
	list, read := message.ToolCall("1", "list", `{"path":"d"}`), message.ToolCall("2", "read", `{"path":"d/a","limit":60}`)
	req := request(user("u", prompt), assistant(list), result("1", "a\t10\nb\t2\nc\t3"+tool.OmittedLine(99)+"yz\t7\nz\t5"), assistant(read), result("2", "one\ntwo"+tool.OmittedLine(5)+"nine\n"))
	req.Tools = []llm.ToolSpec{{Name: "list"}, {Name: "read"}}
	got := ask(t, t.Context(), adapter, req)
	has(t, message.JoinText(got.Blocks), "3 files, 17 bytes in all", "99 bytes left out here", "d/a has more than 2 lines and begins: one")
	if strings.Contains(message.JoinText(got.Blocks), "Set a key") {
		t.Error("a child gives the hint")
	}
	req = request(user("u", "go"))
	has(t, message.JoinText(ask(t, t.Context(), adapter, req).Blocks), "Set a key.")
}

func TestDemoOtherPurposes(t *testing.T) {
	adapter := scripted.Demo(scripted.DemoOptions{})
	req := request(user("u", "Map this repository"), assistant(message.Text("x")), user("v", "and more"))
	req.Purpose = llm.PurposeTitle
	has(t, message.JoinText(ask(t, t.Context(), adapter, req).Blocks), "Demo: and more")
	req.Purpose = llm.PurposeCompaction
	has(t, message.JoinText(ask(t, t.Context(), adapter, req).Blocks), scripted.DemoNotice, `- "Map this repository"`, `- "and more"`)
}

func TestDemoPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		got := ask(t, t.Context(), scripted.Demo(scripted.DemoOptions{Pace: scripted.DefaultPace}), request(user("u", "go")))
		if took := time.Since(start); got.Deltas < 2 || took != time.Duration(got.Deltas)*scripted.DefaultPace {
			t.Errorf("%d deltas took %v", got.Deltas, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), scripted.DefaultPace/2)
		defer cancel()
		if got := ask(t, ctx, scripted.Demo(scripted.DemoOptions{Pace: scripted.DefaultPace}), request(user("u", "go"))); got.Kind != llm.FinishAborted {
			t.Errorf("ended as %s", got.Kind)
		}
	})
}
