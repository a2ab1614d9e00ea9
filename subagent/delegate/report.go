package delegate

import (
	"context"
	_ "embed" // the texts of the tool and of its section
	"errors"
	"fmt"
	"strings"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

//go:embed report.md
var reportText string

//go:embed report_section.md
var reportSection string

// Report returns the contribution that lets continuable children report to their parents
// (seam RT): for Service.AddSetup, whose remove takes it back from all of them. Each child
// gets the tool report in its own scope, which no filter hides, and a prompt section that
// asks for one report before it finishes. how is the deployment's choice of delivery, ""
// being subagent.DeliverNextStep; another value than those of package subagent is an error.
func Report(svc *subagent.Service, how subagent.Delivery) (subagent.SetupFunc, error) {
	if how == "" {
		how = subagent.DeliverNextStep
	}
	if !how.Valid() {
		return nil, fmt.Errorf("report tool: the delivery is %q; it must be %q, %q or %q", how, subagent.DeliverQuiet, subagent.DeliverWakeup, subagent.DeliverNextStep)
	}
	section := prompt.Section{Name: prompt.SectionToolPrefix + ReportTool, Order: orderReport, Text: strings.TrimSpace(reportSection), Literal: true}
	// One compilation for all children.
	def, err := tool.Compile(define(svc, ReportTool, reportText,
		`{"type":"object","properties":{"output":{"type":"string","description":"What the agent that started you shall read, complete in itself."}},"required":["output"],"additionalProperties":false}`,
		func(map[string]string) string { return "report" },
		func(ctx context.Context, caller *agent.Agent, args map[string]string) (reply, error) {
			return report(ctx, svc, caller, args["output"], how)
		},
	))
	if err != nil {
		return nil, fmt.Errorf("report tool: %w", err)
	}
	return func(_ context.Context, child *agent.Agent) (release func() error, err error) {
		removeSection, err := child.Prompts().Add(section)
		if err != nil {
			return nil, fmt.Errorf("report tool: %w", err)
		}
		removeTool, err := child.Tools().RegisterCompiled(def)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("report tool: %w", err), contained("section", removeSection))
		}
		return func() error {
			// Both are tried, whatever becomes of the first (seam RT-11).
			return errors.Join(contained("tool", removeTool), contained("section", removeSection))
		}, nil
	}, nil
}

// contained removes a part of the installation; that it panics is its failure.
func contained(part string, remove func()) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("report tool: removing its %s panicked: %v", part, v)
		}
	}()
	remove()
	return nil
}

func report(ctx context.Context, svc *subagent.Service, child *agent.Agent, output string, how subagent.Delivery) (reply, error) {
	if strings.TrimSpace(output) == "" {
		return reply{}, tool.Errorf(tool.CodeInvalidArgs, "the report is blank: say what the agent that started you shall know")
	}
	id, err := svc.Report(ctx, child, []message.Block{message.Text(output)}, how)
	if err != nil {
		return reply{}, advised("the report was not delivered", err)
	}
	return reply{
		text: fmt.Sprintf("reported as message %s; go on, or finish with your final answer", id),
		meta: append(jsonx.AppendStringField([]byte{'{'}, "messageId", string(id)), '}'),
	}, nil
}
