package scripted

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// The tools that the demo model uses where a request offers them.
const (
	toolList     = "list"
	toolRead     = "read"
	toolSubagent = "subagent"
)

const (
	// DemoRoute and DemoModel are the route and the model id of the demo model.
	DemoRoute = "demo"
	DemoModel = "demo"
	// DemoNotice is the first line of each answer of the demo model.
	DemoNotice = "[demo model: no language model was called; a fixed script sent agents to list and read files, and this is what they found]"
	// DefaultPace is a pace at which a person can watch the demo model's agents
	// work side by side.
	DefaultPace = 15 * time.Millisecond
)

// maxGroups is how many agents the demo model sends out at once.
const maxGroups = 4

// DemoOptions tune the demo model.
type DemoOptions struct {
	// Pace is waited before each piece of an answer; 0 is no wait. See DefaultPace.
	Pace time.Duration
	// Sleep waits for the pace; nil is the package's Sleep.
	Sleep func(ctx context.Context, d time.Duration) error
	// Hint, if set, is the last line of each answer: how to get a real model.
	Hint string
	// Record is Options.Record, but 0 means none.
	Record int
}

// Demo returns the embedded model: a script that delegates for real through the
// tools that it sees. Asked anything, it lists the working directory, sends up to
// four agents out in one step, one for each top-level folder or group of files,
// and composes its answer from what they returned. Such an agent, which it knows
// by its prompt, lists its folders, reads a few files and reports what the tools
// said; nothing is invented. Without a subagent tool, or where every agent was
// refused, it does their work alone and says so.
//
// Everything is decided from the messages of the request, so a session that was
// interrupted goes on where it was.
func Demo(o DemoOptions) *Adapter {
	if o.Sleep == nil {
		o.Sleep = Sleep
	}
	if o.Record == 0 {
		o.Record = -1
	}
	d := demo{hint: o.Hint}
	script := Script{
		{Name: "demo agent", Match: isErrand, Repeat: true, Steps: []Step{{Func(d.agent)}}},
		{Name: "demo", Repeat: true, Steps: []Step{{Func(d.root)}}},
		{Name: "demo title", Purpose: llm.PurposeTitle, Repeat: true, Steps: []Step{{Func(d.title)}}},
		{Name: "demo summary", Purpose: llm.PurposeCompaction, Repeat: true, Steps: []Step{{Func(d.summary)}}},
	}
	return New(script, Options{Record: o.Record, Sleep: o.Sleep, Pace: o.Pace})
}

type demo struct{ hint string }

// root answers what a person asked.
func (d demo) root(_ context.Context, req *llm.Request) (Step, error) {
	turn := Results(Turn(req))
	here, listed := findList(turn, ".")
	switch {
	case !listed && toolNamed(req, toolList) == nil:
		return d.answer(req, "There is no tool to list files with here, so nothing was looked at."), nil
	case !listed:
		return Step{Split(2), SayLiteral("I look at the working directory first."), CallLiteral(toolList, pathArgs("."))}, nil
	case here.failed != "":
		return d.answer(req, "The working directory could not be listed: "+here.failed), nil
	case len(here.entries) == 0:
		return d.answer(req, "The working directory is empty."), nil
	}
	plan := planSurvey(here)
	sent := callsOf(turn, toolSubagent)
	if len(sent) == 0 && toolNamed(req, toolSubagent) != nil {
		return d.delegate(req, plan), nil
	}
	for _, s := range sent {
		if s.Found && !s.IsError {
			return d.answer(req, plan.describe(here)+reports(plan, sent)), nil
		}
	}
	if step := surveyStep(req, turn, plan.whole()); step != nil {
		return step, nil
	}
	alone := "There is no tool to start agents with here, so I did the work alone.\n"
	if len(sent) > 0 {
		alone = fmt.Sprintf("All %s that I started failed, so I did the work alone. The first one: %s\n",
			count(len(sent), "agent", "agents"), clip(oneLine(resultText(sent[0])), 300))
	}
	return d.answer(req, plan.describe(here)+alone+"\n"+surveyOf(turn, plan.whole()).report()), nil
}

// agent answers what root sent it to do.
func (d demo) agent(_ context.Context, req *llm.Request) (Step, error) {
	e, _ := errandOf(PromptText(req))
	turn := Results(Turn(req))
	if toolNamed(req, toolList) == nil {
		return say("There is no tool to list files with here, so nothing was looked at."), nil
	}
	if step := surveyStep(req, turn, e); step != nil {
		return step, nil
	}
	return say(surveyOf(turn, e).report()), nil
}

func (d demo) title(_ context.Context, req *llm.Request) (Step, error) {
	words := strings.Fields(PromptText(req))
	return Step{SayLiteral(clip("Demo: "+strings.Join(words[:min(len(words), 8)], " "), 80))}, nil
}

func (d demo) summary(_ context.Context, req *llm.Request) (Step, error) {
	var b strings.Builder
	b.WriteString(DemoNotice + "\n\nAsked so far:\n")
	for i := range req.Messages {
		if m := &req.Messages[i]; isPrompt(m) {
			fmt.Fprintf(&b, "- %q\n", clip(oneLine(message.JoinText(m.Content)), 200))
		}
	}
	return say(b.String()), nil
}

// say is a text that arrives in a few pieces.
func say(text string) Step {
	return Step{Split(min(max(len(text)/160, 4), 16)), SayLiteral(text)}
}

func (d demo) answer(req *llm.Request, body string) Step {
	var b strings.Builder
	b.WriteString(DemoNotice + "\n\n")
	if asked := oneLine(PromptText(req)); asked != "" {
		fmt.Fprintf(&b, "You asked: “%s”\n\n", clip(asked, 300))
	}
	b.WriteString(strings.TrimRight(body, "\n"))
	if d.hint != "" {
		b.WriteString("\n\n" + d.hint)
	}
	return say(b.String())
}

// delegate starts an agent for each group of the plan, all in one step.
func (d demo) delegate(req *llm.Request, plan plan) Step {
	foreground := bytes.Contains(toolNamed(req, toolSubagent).Parameters, []byte(`"run_in_background"`))
	step := Step{Split(2), SayLiteral(fmt.Sprintf("I send %s to look at %s.",
		count(len(plan.errands), "agent", "agents"), joinAnd(plan.titles())))}
	for _, e := range plan.errands {
		args := jsonx.AppendStringField([]byte("{"), "description", clip("Survey "+e.title(), 60))
		args = jsonx.AppendStringField(args, "prompt", e.prompt(PromptText(req)))
		if foreground {
			// The answer is made of what the agents return, so it waits for them.
			args = append(jsonx.AppendKey(args, "run_in_background"), "false"...)
		}
		step = append(step, CallLiteral(toolSubagent, string(append(args, '}'))))
	}
	return step
}

// reports quotes what each agent returned under the name of what it looked at.
func reports(plan plan, sent []Result) string {
	var b strings.Builder
	failed := 0
	for _, s := range sent {
		if !s.Found || s.IsError {
			failed++
		}
	}
	fmt.Fprintf(&b, "%s looked at it side by side", capital(count(len(sent), "agent", "agents")))
	if failed > 0 {
		fmt.Fprintf(&b, "; %d of them failed", failed)
	}
	b.WriteString(".\n")
	for i, s := range sent {
		title := fmt.Sprintf("part %d", i+1)
		if i < len(plan.errands) {
			title = plan.errands[i].title()
		}
		text := strings.TrimSpace(resultText(s))
		switch {
		case !s.Found || s.IsError:
			fmt.Fprintf(&b, "\n## %s\nThe agent for this part failed: %s\n", title, clip(oneLine(text), 500))
		case text == "":
			fmt.Fprintf(&b, "\n## %s\nThe agent for this part returned no text.\n", title)
		default:
			fmt.Fprintf(&b, "\n## %s\n%s\n", title, clip(text, 6000))
		}
	}
	return b.String()
}

func resultText(r Result) string {
	if !r.Found {
		return "it left no result"
	}
	return r.Text
}

func callsOf(turn []Result, tool string) []Result {
	var calls []Result
	for _, r := range turn {
		if r.Call.Name == tool {
			calls = append(calls, r)
		}
	}
	return calls
}

// errandMark begins the line of an agent's prompt by which the demo model knows
// its own agents.
const errandMark = "demo-survey: "

// errand is what one agent looks at.
type errand struct {
	// Folders are paths relative to the working directory.
	Folders []string `json:"folders,omitempty"`
	// Files asks for files that lie directly in the working directory.
	Files *fileRange `json:"files,omitempty"`
}

// fileRange is the files whose names are, by their bytes, behind After and not
// behind UpTo; empty is no bound.
type fileRange struct {
	After string `json:"after,omitempty"`
	UpTo  string `json:"upTo,omitempty"`
}

func (r *fileRange) holds(name string) bool {
	return r != nil && (r.After == "" || name > r.After) && (r.UpTo == "" || name <= r.UpTo)
}

func isErrand(req *llm.Request) bool {
	_, ok := errandOf(PromptText(req))
	return ok
}

func errandOf(prompt string) (errand, bool) {
	var e errand
	for line := range strings.Lines(prompt) {
		if data, ok := strings.CutPrefix(line, errandMark); ok {
			err := json.Unmarshal([]byte(data), &e)
			return e, err == nil && (len(e.Folders) > 0 || e.Files != nil)
		}
	}
	return e, false
}

func (e errand) title() string {
	var names []string
	if r := e.Files; r != nil {
		switch {
		case r.After == "" && r.UpTo == "":
			names = append(names, "the files at the top")
		case r.After == "":
			names = append(names, fmt.Sprintf("the files up to %s", printable(r.UpTo)))
		case r.UpTo == "":
			names = append(names, fmt.Sprintf("the files after %s", printable(r.After)))
		default:
			names = append(names, fmt.Sprintf("the files after %s, up to %s", printable(r.After), printable(r.UpTo)))
		}
	}
	for _, f := range e.Folders {
		names = append(names, printable(f)+"/")
	}
	return joinAnd(names)
}

// prompt is what the agent reads. Our line stands before the person's text, so
// that nothing in that can be taken for it.
func (e errand) prompt(asked string) string {
	line, err := json.Marshal(e)
	if err != nil {
		line = []byte("{}") // cannot happen: strings only
	}
	return "You are one of several agents that look at parts of a working directory at the same time.\n\n" +
		"Your part: " + e.title() + "\n" +
		errandMark + string(line) + "\n\n" +
		"List your part and the folders below it. Read the beginning of a few files: README files first, then the largest. " +
		"Report how many folders and files there are, how large they are and of which kinds; for each file that you read, " +
		"how many lines it has and how it begins. Report only what the tools returned, and say what you could not see. " +
		"Change nothing. The other agents' work is not visible to you.\n\n" +
		"This is for the following request of a person:\n" + clip(strings.TrimSpace(asked), 1000) + "\n"
}
