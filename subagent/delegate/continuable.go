package delegate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

// The places of the prompt sections among the guidance of tools (seam TOOL-33, RT-06).
const (
	orderGuidance = prompt.OrderToolGuidance + 16.5
	orderReport   = prompt.OrderToolGuidance + 17
)

// continuableTexts names the parts of a continuable tool's text; the second is that of a
// provider without inheritance.
func (m *mount) continuableTexts() []string {
	names := []string{"continuable.md", "fresh.md", "waits.md"}
	if m.cfg.Background {
		names[2] = "starts.md"
		if m.svc.Notices() {
			names = append(names, "notice.md")
		} else {
			names = append(names, "unnoticed.md")
		}
		names = append(names, "override.md")
	}
	return append(names, "followup.md")
}

// guide adds the tool's prompt section.
func (m *mount) guide() error {
	if !m.cfg.Continuable || !m.cfg.Background || m.cfg.Prompts == nil {
		return nil
	}
	text, err := read("guidance.md")
	if err != nil {
		return err
	}
	if m.svc.Notices() {
		more, err := read("guidance_notice.md")
		if err != nil {
			return err
		}
		text += " " + more
	}
	text = strings.ReplaceAll(text, "TOOL", m.cfg.ToolName)
	m.silent, err = m.cfg.Prompts.Add(prompt.Section{
		Name: prompt.SectionToolPrefix + m.cfg.ToolName, Order: orderGuidance, Literal: true,
		Render: func(rc prompt.RenderContext) (string, error) {
			if !rc.ToolVisible(m.cfg.ToolName) {
				return "", nil
			}
			return text, nil
		},
	})
	return err
}

func notInBackground(call *tool.Call) error {
	return tool.Errorf(tool.CodeInvalidArgs, "%s does not run in the background: call it without run_in_background", call.Name)
}

// continuable is one delegation to a continuable child (seam TOOL-30, amendment P41). ctx
// governs the start; what it governs beyond that is the wait of this call alone.
func (m *mount) continuable(ctx context.Context, call *tool.Call, parent *agent.Agent, a args) (any, error) {
	background := m.cfg.inBackground(a)
	switch {
	case background && !m.cfg.Background:
		return nil, notInBackground(call)
	case strings.TrimSpace(a.description) == "":
		return nil, tool.Errorf(tool.CodeInvalidArgs, "the description is blank: name the work in three to six words")
	}
	req := subagent.ContinuableRequest{
		Label: a.description, Prompt: []message.Block{message.Text(a.prompt)}, Parent: parent,
		Model: m.cfg.Model, ToolFilter: m.cfg.ToolFilter, Persona: m.cfg.Persona, MaxDepth: m.cfg.MaxDepth,
	}
	if background {
		acc, err := m.svc.StartContinuable(ctx, m.cfg.Provider, req)
		if err != nil {
			return nil, startError(err)
		}
		call.SetMeta(startedMeta(acc.Child))
		return m.started(parent, acc.Child), nil
	}
	w, err := m.svc.StartAwaited(ctx, m.cfg.Provider, req)
	if err != nil {
		return nil, startError(err)
	}
	defer w.Release()
	call.SetMeta(startedMeta(w.Child))
	set, err := w.Wait(ctx)
	if err != nil {
		return nil, m.unsettled(parent, w.Child, err)
	}
	// Only together with the outcome does it take the settlement.
	call.SetOutcomeMeta(session.SettledMeta(set.ID))
	return settled(&set)
}

// startedMeta is what other readers than the model learn of a call that told no outcome.
func startedMeta(child session.ID) []byte {
	buf := jsonx.AppendStringField([]byte{'{'}, "kind", "continuable")
	return append(jsonx.AppendStringField(buf, "subagentId", string(child)), '}')
}

// started acknowledges a child (seam TOOL-30, TOOL-39).
func (m *mount) started(parent *agent.Agent, child session.ID) string {
	text := fmt.Sprintf("started subagent %s\n", child)
	if m.svc.Notices() {
		text += "It works by itself, and a message tells you when it is done"
	} else {
		text += "It works by itself"
	}
	if sees(parent, SendTool) {
		text += fmt.Sprintf("; give it more work with %s and this id", SendTool)
	}
	return text + ". The id is that of an agent, not of a background job."
}

// unsettled is the failure of a wait: the child goes on.
func (m *mount) unsettled(parent *agent.Agent, child session.ID, err error) error {
	later := ""
	switch {
	case m.svc.Notices():
		later = ", and a message will tell you what it came to"
	case sees(parent, ListTool):
		later = ", and " + ListTool + " tells whether it is done"
	}
	if errors.Is(err, subagent.ErrDraining) {
		return &tool.Error{Code: string(subagent.CodeDraining), Err: err, Msg: fmt.Sprintf(
			"subagent %s was started, and the program is ending before it is done. It goes on when this conversation is resumed%s; do not start the work again.", child, later)}
	}
	return &tool.Error{Code: tool.CodeAborted, Err: err, Msg: fmt.Sprintf(
		"the call was cancelled while it waited. Subagent %s was started and goes on%s; do not start the work again.", child, later)}
}

// settled maps what a waited-for epoch came to, as finish does for a run (seam TOOL-14…16).
func settled(set *subagent.Settlement) (any, error) {
	out := message.JoinText(set.Output)
	blank := strings.TrimSpace(out) == ""
	who := fmt.Sprintf("subagent %s", set.Child)
	if set.StopReason == subagent.StopCompleted {
		if blank {
			return who + " has finished without saying anything.", nil
		}
		return who + " has finished:\n" + out, nil
	}
	code := tool.CodeToolFailed
	if set.StopReason == subagent.StopAborted {
		code = tool.CodeAborted
	}
	lines := []string{headline(who, set.StopReason)}
	if set.Failure != "" {
		lines = append(lines, "Diagnostic: "+set.Failure)
	}
	if set.Unread > 0 {
		lines = append(lines, fmt.Sprintf("%d message(s) that were sent to it were not taken up.", set.Unread))
	}
	if !blank {
		lines = append(lines, "Partial output:", out)
	}
	return nil, &tool.Error{Code: code, Msg: strings.Join(lines, "\n")}
}
