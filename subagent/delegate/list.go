package delegate

import (
	"context"
	_ "embed" // the text of the tool
	"fmt"
	"strings"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

//go:embed list_agents.md
var listText string

// listPage is how many rows are asked for at once, and from how many lines on an answer
// is long enough.
const listPage = 50

// List returns list_agents (seam LA): a page of the caller's own subagents, or of all
// below it, in the order of the service. It needs nothing of Control.
func List(svc *subagent.Service) []tool.Definition {
	def := define(svc, ListTool, listText,
		`{"type":"object","properties":{`+
			`"scope":{"type":"string","enum":["children","descendants"],"description":"children, the default: those that you started. descendants: also those that they started, and so on."},`+
			`"after":{"type":"string","description":"Where the list goes on, as the answer before said."}`+
			`},"additionalProperties":false}`,
		func(args map[string]string) string { return strings.TrimSpace("subagents " + args["scope"]) },
		func(ctx context.Context, caller *agent.Agent, args map[string]string) (reply, error) {
			return list(ctx, svc, caller, args)
		},
	)
	def.ConcurrencySafe = func([]byte) bool { return true }
	return []tool.Definition{def}
}

// list reads pages until there is enough to show: one-shot children are none of the
// model's business, but what is below them is (seam LA-02, LA-09).
func list(ctx context.Context, svc *subagent.Service, caller *agent.Agent, args map[string]string) (reply, error) {
	descendants := args["scope"] == "descendants"
	page := svc.Lister().PageChildren
	if descendants {
		page = svc.Lister().PageDescendants
	}
	var lines []string
	after := args["after"]
	for first := true; first || after != "" && len(lines) < listPage; first = false {
		p, err := page(ctx, caller.ID(), subagent.ListPage{Limit: listPage, After: after})
		switch {
		case err != nil && context.Cause(ctx) != nil:
			return reply{}, err // the call was cancelled, whatever the listing calls it
		case err != nil:
			return reply{}, advised("the subagents could not be listed", err)
		}
		for i := range p.Rows {
			if row := &p.Rows[i]; row.Kind != subagent.RowChild || row.Mode == session.ModeContinuable {
				lines = append(lines, line(svc, row, descendants))
			}
		}
		after = p.Next
	}
	switch {
	case after != "" && descendants:
		lines = append(lines, fmt.Sprintf("There is more: call %s with scope \"descendants\" and after %q.", ListTool, after))
	case after != "":
		lines = append(lines, fmt.Sprintf("There is more: call %s with after %q.", ListTool, after))
	case len(lines) == 0 && args["after"] != "":
		lines = append(lines, "(no more subagents)")
	case len(lines) == 0:
		lines = append(lines, "(no subagents)")
	}
	return reply{text: strings.Join(lines, "\n")}, nil
}

// line is one entry (seam LA-05, LA-06).
func line(svc *subagent.Service, row *subagent.Row, descendants bool) string {
	what := "diagnostic: " + string(row.Reason)
	if row.Kind == subagent.RowChild {
		what = status(svc, row)
	}
	text := fmt.Sprintf("%s [%s]", row.ID, what)
	if descendants {
		text += fmt.Sprintf(" parent %s depth %d", row.Parent, row.Depth)
	}
	if row.Label != nil {
		text += " — " + oneLine(*row.Label, maxLabel)
	}
	return text
}

// status is the one table of what a continuable child is doing (amendment P26).
func status(svc *subagent.Service, row *subagent.Row) string {
	a, live := svc.Agents().Get(row.ID)
	switch {
	case live && a.Quiescent():
		return "idle" // it waits for subagents of its own, or is about to be released
	case live, row.Activity == subagent.ActivityRunning:
		return "running" // open or accepted work, here or in the process that holds it
	}
	return "ready" // stored: a message resumes it
}
