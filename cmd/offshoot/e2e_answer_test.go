//go:build unix

package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

const answerSchema = `{
  "type": "object",
  "properties": {"n": {"type": "integer"}, "why": {"type": "string"}},
  "required": ["n"],
  "additionalProperties": false
}
`

// wires are those that the answer has to come over.
func wires() []string { return []string{"openai", config.DialectAnthropic} }

// newAnswerWorld is a model world with a file s.json to answer by.
func newAnswerWorld(t *testing.T, wire string) (*world, *fakemodel.Server) {
	t.Helper()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	if wire == config.DialectAnthropic {
		w = w.with("OPENAI_API_KEY", "")
		w.use(s, "anthropic")
		w.route("anthropic", "maxRetries: 0")
	}
	w.write("s.json", answerSchema)
	w.write("a.txt", "alpha\n")
	return w, s
}

// TestOutputSchema takes the command through what a model may do about its answer, on
// two wires: stdout holds the JSON or nothing, what was said instead is on stderr,
// and the log is legal for the next request (SO-08, SO-14, SO-15, SO-17, SO-18,
// SO-19, T27–T30).
func TestOutputSchema(t *testing.T) {
	t.Parallel()
	const never, twice = "offshoot: the agent ended without calling structured_output, also after it was told to", "offshoot: the agent said:"
	for _, tt := range []struct {
		name, prompt   string
		code, requests int
		stdout         string
		stderr         []string // the last lines
		codes          []string // of the failed tool results
		ends           string
	}{
		{name: "at once", prompt: `[[fake:tool structured_output {"why":"<é> & \u2028","n": 9007199254740991}]]`, requests: 1,
			stdout: `{"why":"<é> & \u2028","n":9007199254740991}`, ends: "completed"},
		{name: "after work, with talk", prompt: `[[fake:tool read {"path":"a.txt"}]] [[fake:reply here it is]] [[fake:tool structured_output {"n":1,"why":"{{match:alpha}}"}]]`, requests: 2,
			stdout: `{"n":1,"why":"alpha"}`, ends: "completed"},
		{name: "bad, then good", prompt: `[[fake:tool structured_output {"n":"1"}]] [[fake:next]] [[fake:tool structured_output [1]]] [[fake:next]] [[fake:tool structured_output {"n":1}]]`, requests: 3,
			stdout: `{"n":1}`, codes: []string{"INVALID_ARGS", "INVALID_ARGS"}, ends: "completed"},
		{name: "talk, then good", prompt: `[[fake:reply there is 1]] [[fake:next]] [[fake:tool structured_output {"n":1}]]`, requests: 2, stdout: `{"n":1}`, ends: "completed"},
		{name: "talk only", prompt: "[[fake:reply there is 1]] [[fake:next]] [[fake:reply as I said]]", requests: 2,
			code: 1, stderr: []string{twice, "there is 1", "", "as I said", never}, ends: "completed"},
		{name: "the same talk", prompt: "[[fake:reply there is 1]] [[fake:next]] [[fake:reply there is 1]]", requests: 2,
			code: 1, stderr: []string{twice, "there is 1", never}, ends: "completed"},
		{name: "good, then more", prompt: `[[fake:tool structured_output {"n":1}]] [[fake:next]] [[fake:reply and more]]`, requests: 1, stdout: `{"n":1}`, ends: "completed"},
		{name: "between other calls", prompt: `[[fake:tool read {"path":"a.txt"}]] [[fake:tool structured_output {"n":1}]] [[fake:tool bash {"command":"touch ran.txt"}]] [[fake:tool structured_output {"n":2}]]`, requests: 1,
			stdout: `{"n":1}`, codes: []string{"DENIED", "DENIED"}, ends: "completed"},
		{name: "cut in the arguments", prompt: `[[fake:length-tool structured_output {"n":1,"why":"because of this"}]]`, requests: 1,
			code: 1, stderr: []string{"offshoot: the turn ended as max-tokens"}, ends: "max-tokens"},
		{name: "declined", prompt: "[[fake:refusal I will not]]", requests: 1, code: 1, stderr: []string{twice, "I will not", "offshoot: the model declined the task"}, ends: "refusal"},
		{name: "failed", prompt: "[[fake:reply half]] [[fake:cut]]", requests: 1, code: 1, ends: "error"},
	} {
		for _, wire := range wires() {
			t.Run(wire+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				w, s := newAnswerWorld(t, wire)
				e := w.run("run", tt.prompt, "--output-schema", "s.json", "--permission", "allow")
				want := tt.stdout
				if want != "" {
					want += "\n"
				}
				if e.code != tt.code || e.stdout != want {
					t.Errorf("want exit %d and %q: %v", tt.code, want, e)
				}
				if got := lines(e.stderr); len(got) < len(tt.stderr) || !slices.Equal(got[len(got)-len(tt.stderr):], tt.stderr) {
					t.Errorf("want at the end of stderr\n%s\n%v", strings.Join(tt.stderr, "\n"), e)
				}
				if n := len(s.Requests()); n != tt.requests {
					t.Errorf("%d requests, want %d", n, tt.requests)
				}
				w.verify()
				root, _ := w.tree()
				if diff := cmp.Diff([]string{tt.ends}, ends(t, root)); diff != "" {
					t.Errorf("turn ends (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tt.codes, codes(t, root)); diff != "" {
					t.Errorf("codes (-want +got):\n%s", diff)
				}
				if n := w.count("ran.txt"); n != 0 {
					t.Error("a command ran behind the answer")
				}
				if wire == config.DialectAnthropic && tt.ends != "completed" {
					// The fake sees the two prompts as one message there, and obeys the first.
					return
				}
				w.followUp(root.Header.ID)
			})
		}
	}
}

// SO-02, SO-04: what goes over the wire: the tool with the schema, and the instruction
// behind the persona.
func TestOutputSchemaRequest(t *testing.T) {
	t.Parallel()
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			w, s := newAnswerWorld(t, wire)
			w.ok("run", `[[fake:tool structured_output {"n":1}]]`, "--output-schema", "s.json", "--persona", "You are terse.")
			body := string(s.Requests()[0].Body)
			var compact strings.Builder
			if err := json.NewEncoder(&compact).Encode(json.RawMessage(answerSchema)); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(body, strings.TrimSpace(compact.String())) {
				t.Errorf("the schema is not in the request:\n%s", body)
			}
			if persona, told := strings.Index(body, "You are terse."), strings.Index(body, "delivered through the tool structured_output"); persona < 0 || told < persona {
				t.Errorf("the instruction is at %d, the persona at %d", told, persona)
			}
			// The next run of the same session has neither.
			root, _ := w.tree()
			w.followUp(root.Header.ID)
			if body := string(s.Requests()[1].Body); strings.Contains(body, "delivered through the tool") || strings.Contains(body, `"additionalProperties":false,"properties":{"n"`) {
				t.Errorf("the schema outlives its run:\n%s", body)
			}
		})
	}
}

// SO-06, SO-26: an agent without tools sends no list of tools; with a schema it has the
// one that takes the answer, which the deployment's filter does not reach.
func TestOutputSchemaWithoutTools(t *testing.T) {
	t.Parallel()
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			w, s := newAnswerWorld(t, wire)
			w.write("offshoot.yaml", "tools: {allow: []}\n")
			w.ok("run", "[[fake:reply hi]]")
			if e := w.ok("run", `[[fake:tool structured_output {"n":1}]]`, "--output-schema", "s.json"); e.stdout != `{"n":1}`+"\n" {
				t.Errorf("%v", e)
			}
			plain, asked := s.Requests()[0], s.Requests()[1]
			if strings.Contains(string(plain.Body), `"tools"`) {
				t.Errorf("SO-06: tools are sent:\n%s", plain.Body)
			}
			if len(asked.Tools) != 1 || asked.Tools[0].Name != "structured_output" {
				t.Errorf("SO-26: the tools are %+v", asked.Tools)
			}
		})
	}
}

// TestOutputSchemaJSON: with --json the value is a member of the result line, beside
// whatever the run ended as.
func TestOutputSchemaJSON(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, prompt, reason, text string
		code                       int
		value                      string
	}{
		{"an answer", `[[fake:reply here]] [[fake:tool structured_output {"n": 1}]]`, "completed", "here", 0, `{"n":1}`},
		{"none", "[[fake:reply there is 1]]", "error", "there is 1", 1, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, s := newAnswerWorld(t, "openai")
			s.SetScript(fakemodel.Directives(fakemodel.Always(fakemodel.Text("there is 1"))))
			e := w.run("run", tt.prompt, "--output-schema", "s.json", "--json", "--quiet")
			all := lines(e.stdout)
			parseOutput(t, e.stdout)
			var last struct {
				Type, StopReason, Text string
				Structured             json.RawMessage
			}
			if err := json.Unmarshal([]byte(all[len(all)-1]), &last); err != nil {
				t.Fatal(err)
			}
			if e.code != tt.code || last.Type != "result" || last.StopReason != tt.reason || last.Text != tt.text || string(last.Structured) != tt.value {
				t.Errorf("want exit %d, %s, %q, %q: %s\n%s", tt.code, tt.reason, tt.text, tt.value, all[len(all)-1], e.stderr)
			}
			if strings.Contains(e.stderr, "the agent said") {
				t.Errorf("what it said is in the result: %v", e)
			}
		})
	}
}

// REQ-03, T26: a schema that cannot be enforced, a file that cannot be read and a model
// that cannot answer so are refused before anything is made, for a new session and a
// stored one.
func TestOutputSchemaRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, schema string
		args         []string
		stderr       []string
	}{
		{"faults", `{"type":"object","$schema":"x","properties":{"a":{"type":"string","format":"date"},"b":{"$ref":"#"}},"required":["c"]}`, nil, []string{
			"offshoot: flag --output-schema: s.json: at /$schema: the keyword is not supported",
			"offshoot: flag --output-schema: s.json: at /properties/a/format: the keyword is not supported",
			"offshoot: flag --output-schema: s.json: at /properties/b/$ref: the keyword is not supported",
			`offshoot: flag --output-schema: s.json: at /required/0: it names "c", which properties does not declare`,
		}},
		{"no JSON", `type: object`, nil, []string{`offshoot: flag --output-schema: s.json: at the root: it is not lossless JSON: json: expected true at byte 0`}},
		{"no file", "", nil, []string{"offshoot: flag --output-schema: open s.json: no such file or directory"}},
		{"too large", `{"type":"object"}` + strings.Repeat(" ", maxSchemaBytes), nil, []string{"offshoot: flag --output-schema: s.json is larger than 1048576 bytes"}},
		{"no name", "", []string{"--output-schema", ""}, []string{"offshoot: flag --output-schema: open : no such file or directory"}},
		{"the demo", answerSchema, []string{"--model", "demo"}, []string{"offshoot: flag --output-schema: the embedded demo model answers in text alone; choose another model, see offshoot config"}},
	} {
		for _, command := range []string{"run", "resume"} {
			t.Run(command+" "+tt.name, func(t *testing.T) {
				t.Parallel()
				w, s := newModelWorld(t, fakemodel.OpenAI)
				if tt.schema != "" {
					w.write("s.json", tt.schema)
				}
				args := []string{"run", "[[fake:reply hi]]"}
				if command == "resume" {
					w.ok("run", "[[fake:reply hi]]")
					root, _ := w.tree()
					args = []string{"resume", string(root.Header.ID), "[[fake:reply hi]]"}
				}
				before, requests := w.logs(), len(s.Requests())
				e := w.run(slices.Concat(args, []string{"--output-schema", "s.json"}, tt.args)...)
				if diff := cmp.Diff(tt.stderr, lines(e.stderr)); e.code != 2 || e.stdout != "" || diff != "" {
					t.Errorf("want exit 2: %v\n%s", e, diff)
				}
				if after := w.logs(); len(after) != len(before) || len(s.Requests()) != requests {
					t.Errorf("%d sessions are stored, %d requests were made", len(after), len(s.Requests()))
				}
			})
		}
	}
}

// SO-01, TOOL-21, C051: an agent's own schema: the parent's model reads the JSON.
func TestOutputSchemaOfAnAgent(t *testing.T) {
	t.Parallel()
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			w, s := newAnswerWorld(t, wire)
			w.write("offshoot.yaml", "agents:\n  counter:\n    description: It counts.\n    outputSchema: {type: object, properties: {n: {type: integer}}, required: [n]}\n")
			child := func(prompt string) string {
				return strings.Replace(delegation("count", prompt), "subagent ", "subagent_counter ", 1)
			}
			prompt := child(`[[fake:reply so]] [[fake:tool structured_output {"n": 3}]]`) + child("[[fake:reply there are 3]] [[fake:next]] [[fake:reply three]]") +
				`[[fake:reply it says {{match:^\{.*\}$}}]]`
			e := w.ok("run", prompt)
			if e.stdout != `it says {"n":3}`+"\n" {
				t.Errorf("%v", e)
			}
			root, children := w.tree()
			want := []string{`{"n":3}`, "Error: the subagent failed\nDiagnostic: the agent ended without calling structured_output, also after it was told to\nPartial output:\nthere are 3\n\nthree"}
			var got []string
			for _, r := range payloads[*session.ToolResult](t, root) {
				got = append(got, message.JoinText(r.Message.Content[0].Content))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
			if len(children) != 2 || !strings.Contains(string(s.Requests()[0].Body), `{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"]}`) {
				t.Errorf("%d children; the tool does not tell its schema", len(children))
			}
			w.verify()
			w.followUp(root.Header.ID)
		})
	}
}

// T29, D23: killed between the answer and the end of the turn. The log holds the
// answer, the turn counts as interrupted, and a resume says so without passing the
// answer for one that was given.
func TestKillAfterAnswer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kill     string
		recorded bool
	}{
		{"after:tool/call", false}, {"body", false}, {"lose:tool/result", false},
		{"upto:tool/result", true}, {"before:step/end", true}, {"before:turn/end", true},
	} {
		t.Run(tt.kill, func(t *testing.T) {
			t.Parallel()
			w, s := newAnswerWorld(t, "openai")
			w.killAt(tt.kill, "run", `[[fake:tool structured_output {"n":1}]]`, "--output-schema", "s.json")
			w.verify()
			before := w.logs()
			id := string(before[0].Header.ID)
			says := "session " + id + " owes nothing and has nothing queued; its last turn was interrupted"
			if tt.recorded {
				says += " after it had handed in its answer, which stands in its log"
			}
			says += ": say how to go on, e.g. offshoot resume " + id + ` "go on"` + "\n"
			if e := w.run("resume", id); e.code != 0 || e.stdout != "" || e.stderr != "offshoot: "+says {
				t.Errorf("want %q: %v", says, e)
			}
			e := w.run("resume", id, "--output-schema", "s.json", "--json")
			if e.code != 1 || e.stderr != "offshoot: there is no answer: "+says || !strings.Contains(e.stdout, `"stopReason":"nothing"`) || strings.Contains(e.stdout, "structured") {
				t.Errorf("with a schema: %v", e)
			}
			if n := len(s.Requests()); n != 1 {
				t.Errorf("%d requests were made", n)
			}
			e = w.run("resume", id, `[[fake:tool structured_output {"n":2}]]`, "--output-schema", "s.json")
			if e.code != 0 || e.stdout != `{"n":2}`+"\n" {
				t.Errorf("going on: %v", e)
			}
			w.grew(before)
			root, _ := w.tree()
			if diff := cmp.Diff([]string{"interrupted", "completed"}, ends(t, root)); diff != "" {
				t.Errorf("turn ends (-want +got):\n%s", diff)
			}
			w.followUp(root.Header.ID)
		})
	}
}

// SO-20, L27: stopped while it is being reminded: the exit code is the signal's,
// stdout is empty, and no reminder waits for the next turn.
func TestSignalWhileReminded(t *testing.T) {
	t.Parallel()
	w, s := newAnswerWorld(t, "openai")
	p := w.start("run", "[[fake:reply there is 1]] [[fake:next]] [[fake:stall]]", "--output-schema", "s.json")
	if _, err := s.WaitRequest(bounded(t), 2); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGINT)
	e := p.wait()
	if e.code != 130 || e.stdout != "" || !strings.Contains(e.stderr, "offshoot: the agent said:\nthere is 1\n") {
		t.Errorf("%v", e)
	}
	w.verify()
	root, _ := w.tree()
	if e := w.run("resume", string(root.Header.ID)); e.code != 0 || !strings.Contains(e.stderr, "owes nothing") {
		t.Errorf("%v", e)
	}
	w.followUp(root.Header.ID)
}

// The file of a schema is looked for where the command is called, not in --cwd.
func TestOutputSchemaFolder(t *testing.T) {
	t.Parallel()
	w, _ := newAnswerWorld(t, "openai")
	w.write("sub/b.txt", "x\n")
	e := w.run("run", `[[fake:tool structured_output {"n":1}]]`, "--output-schema", "s.json", "--cwd", filepath.Join(w.cwd, "sub"))
	if e.code != 0 || e.stdout != `{"n":1}`+"\n" {
		t.Errorf("%v", e)
	}
}
