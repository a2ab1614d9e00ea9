package delegate

import (
	"context"
	_ "embed" // the texts of the tools
	"fmt"
	"strings"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

// The names of the tools for subagents that exist.
const (
	SendTool      = "send_message"
	InterruptTool = "interrupt_agent"
	ListTool      = "list_agents"
	ReportTool    = "report"
)

//go:embed send_message.md
var sendText string

//go:embed send_notice.md
var sendNotice string

//go:embed interrupt_agent.md
var interruptText string

// reply is what a tool returns: the text for the model, and JSON for others.
type reply struct {
	text string
	meta []byte
}

func (reply) output() tool.Output {
	return tool.Output{
		Render: func(v any) ([]message.Block, error) { return []message.Block{message.Text(v.(reply).text)}, nil },
		Meta:   func(v any) ([]byte, error) { return v.(reply).meta, nil },
	}
}

// define makes a tool for agents out of its body, which gets the exact live agent that
// calls.
func define(svc *subagent.Service, name, text, schema string, describe func(args map[string]string) string, body func(context.Context, *agent.Agent, map[string]string) (reply, error)) tool.Definition {
	return tool.Definition{
		Name: name, Description: strings.TrimSpace(text), Parameters: []byte(schema), Output: reply{}.output(),
		// It changes nothing but the conversations of agents, which are judged call by call.
		ReadOnly: true,
		Describe: func(data []byte) string {
			args, err := stringsOf(data)
			if err != nil {
				return ""
			}
			return describe(args)
		},
		Execute: func(ctx context.Context, call *tool.Call) (any, error) {
			caller, ok := svc.Agents().Live(call.Caller)
			if !ok {
				return nil, tool.Errorf(tool.CodeDenied, "%s needs a live agent that calls it, and this call has none", name)
			}
			args, err := stringsOf(call.Args)
			if err != nil {
				return nil, &tool.Error{Code: tool.CodeInvalidArgs, Err: err}
			}
			r, err := body(ctx, caller, args)
			if err != nil {
				return nil, err
			}
			return r, nil
		},
	}
}

// stringsOf reads arguments that are all strings, as the schemas here have it.
func stringsOf(data []byte) (map[string]string, error) {
	args := map[string]string{}
	err := jsonx.ReadObject(data, func(key string, raw []byte) (err error) {
		args[key], err = jsonx.String(raw)
		return err
	})
	return args, err
}

// Control returns the tools through which an agent deals with its continuable children,
// whatever started them: send_message (seam MSG) and, with an interrupter, interrupt_agent
// (seam IA). They are registered once, for all agents; who may do what to whom is decided
// by the service for the exact live agent that calls.
func Control(svc *subagent.Service, interrupter *subagent.Interrupter) []tool.Definition {
	text := strings.TrimSpace(sendText)
	if svc.Notices() {
		text += " " + strings.TrimSpace(sendNotice)
	}
	defs := []tool.Definition{define(svc, SendTool, text,
		`{"type":"object","properties":{`+
			`"subagent_id":{"type":"string","minLength":1,"description":"The id that you got when the subagent was started."},`+
			`"message":{"type":"string","description":"What it shall do or know next, complete in itself."}`+
			`},"required":["subagent_id","message"],"additionalProperties":false}`,
		func(args map[string]string) string { return "message to " + oneLine(args["subagent_id"], maxID) },
		func(ctx context.Context, caller *agent.Agent, args map[string]string) (reply, error) {
			return send(ctx, svc, caller, args)
		},
	)}
	if interrupter == nil {
		return defs
	}
	return append(defs, define(svc, InterruptTool, interruptText,
		`{"type":"object","properties":{`+
			`"agent_id":{"type":"string","minLength":1,"description":"The id of a subagent of yours, or of one below it."}`+
			`},"required":["agent_id"],"additionalProperties":false}`,
		func(args map[string]string) string { return "interrupt " + oneLine(args["agent_id"], maxID) },
		func(_ context.Context, caller *agent.Agent, args map[string]string) (reply, error) {
			return interrupt(interrupter, caller, session.ID(args["agent_id"]))
		},
	))
}

// send is send_message (seam MSG-03, MSG-04, MSG-08).
func send(ctx context.Context, svc *subagent.Service, caller *agent.Agent, args map[string]string) (reply, error) {
	child, text := session.ID(args["subagent_id"]), args["message"]
	if strings.TrimSpace(text) == "" {
		return reply{}, tool.Errorf(tool.CodeInvalidArgs, "the message is blank: say what the subagent shall do")
	}
	id, err := svc.Followup(ctx, caller, child, []message.Block{message.Text(text)}, message.NewSource(
		message.SourceCoordinator, message.SourceDetails{Form: message.FormRelay, SenderSessionID: caller.SessionID()}))
	if err != nil {
		return reply{}, addressed(caller, "the message was not delivered", err)
	}
	r := reply{text: fmt.Sprintf("message %s is queued as the next turn of subagent %s", id, child)}
	r.meta = jsonx.AppendStringField([]byte{'{'}, "messageId", string(id))
	r.meta = append(jsonx.AppendStringField(r.meta, "subagentId", string(child)), '}')
	return r, nil
}

// interrupt is interrupt_agent (seam IA-02, IA-03).
func interrupt(i *subagent.Interrupter, caller *agent.Agent, target session.ID) (reply, error) {
	if err := i.Interrupt(caller, target); err != nil {
		return reply{}, addressed(caller, "nothing was interrupted", err)
	}
	return reply{
		text: fmt.Sprintf("an interrupt of subagent %s was requested; if it is in a turn, that turn ends soon", target),
		meta: append(jsonx.AppendStringField([]byte{'{'}, "agentId", string(target)), '}'),
	}, nil
}

// maxID and maxLabel bound what a line shows of a text that a model wrote, in bytes.
const (
	maxID    = 64
	maxLabel = 120
)

// oneLine folds white space and clips a text.
func oneLine(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
