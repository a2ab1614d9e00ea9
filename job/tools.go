package job

import (
	"context"
	_ "embed" // the texts of the tools
	"fmt"
	"strings"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/tool"
)

// The names of the tools.
const (
	OutputTool = "job_output"
	ListTool   = "job_list"
	KillTool   = "job_kill"
)

//go:embed output.md
var outputText string

//go:embed list.md
var listText string

//go:embed kill.md
var killText string

// reply is what a tool returns: the text for the model, and the job for others.
type reply struct {
	text string
	info Info // zero for none
}

// Tools returns the tools through which a model follows its own jobs. None changes
// anything outside of what the agent itself began.
func Tools(r *Registry) []tool.Definition {
	const id = `"job_id":{"type":"string","minLength":1,"description":"As it was returned when the job was started."}`
	return []tool.Definition{
		r.define(OutputTool, outputText, `{"type":"object","properties":{`+id+`},"required":["job_id"],"additionalProperties":false}`, r.output),
		r.define(ListTool, listText, `{"type":"object","properties":{},"additionalProperties":false}`, r.list),
		r.define(KillTool, killText, `{"type":"object","properties":{`+id+`,`+
			`"reason":{"type":"string","description":"Why, in a few words."}},"required":["job_id"],"additionalProperties":false}`, r.end),
	}
}

type args struct{ id, reason string }

func parse(data []byte) (a args, err error) {
	err = jsonx.ReadObject(data, func(key string, raw []byte) (err error) {
		switch key {
		case "job_id":
			a.id, err = jsonx.String(raw)
		case "reason":
			a.reason, err = jsonx.String(raw)
		}
		return err
	})
	return a, err
}

func (r *Registry) define(name, text, schema string, body func(*agent.Agent, args) (reply, error)) tool.Definition {
	return tool.Definition{
		Name: name, Description: strings.TrimSpace(text), Parameters: []byte(schema),
		ReadOnly: true, ConcurrencySafe: func([]byte) bool { return true },
		Describe: func(data []byte) string {
			a, err := parse(data)
			if err != nil {
				return ""
			}
			return strings.TrimSpace(name + " " + oneLine(a.id, maxLabel))
		},
		Output: tool.Output{Render: render, Meta: meta},
		Execute: func(_ context.Context, call *tool.Call) (any, error) {
			owner, ok := r.cfg.Agents.Live(call.Caller)
			if !ok {
				return nil, tool.Errorf(tool.CodeDenied, "%s needs a live agent that calls it, and this call has none", name)
			}
			a, err := parse(call.Args)
			if err != nil {
				return nil, &tool.Error{Code: tool.CodeInvalidArgs, Err: err}
			}
			return body(owner, a)
		},
	}
}

func render(value any) ([]message.Block, error) {
	out, ok := value.(reply)
	if !ok {
		return nil, fmt.Errorf("unexpected value %T", value)
	}
	return []message.Block{message.Text(out.text)}, nil
}

func meta(value any) ([]byte, error) {
	out, ok := value.(reply)
	if !ok {
		return nil, fmt.Errorf("unexpected value %T", value)
	}
	if out.info.ID == "" {
		return nil, nil
	}
	buf := jsonx.AppendStringField([]byte{'{'}, "jobId", out.info.ID)
	return append(jsonx.AppendStringField(buf, "state", string(out.info.State)), '}'), nil
}

// line is one job in a list.
func (i *Info) line() string {
	line := i.ID + ": " + string(i.State)
	if i.Label != "" {
		line += " (" + i.Label + ")"
	}
	return line
}

// output: before the end there is the state alone; afterwards every read says the
// same (seam BG-13).
func (r *Registry) output(owner *agent.Agent, a args) (reply, error) {
	i, err := r.Get(owner, a.id)
	switch {
	case err != nil:
		return reply{}, err
	case !i.State.Ended():
		return reply{i.line() + "\nThere is nothing to read before it is over. You are told when it is; until then do other work, or end your turn.", i}, nil
	case strings.TrimSpace(i.Text) == "":
		return reply{i.line() + "\nIt ended without saying anything.", i}, nil
	}
	return reply{i.line() + "\n" + i.Text, i}, nil
}

func (r *Registry) list(owner *agent.Agent, _ args) (reply, error) {
	var lines []string
	for _, i := range r.List(owner) {
		lines = append(lines, i.line())
	}
	if lines == nil {
		return reply{text: "You have no background jobs."}, nil
	}
	return reply{text: strings.Join(lines, "\n")}, nil
}

func (r *Registry) end(owner *agent.Agent, a args) (reply, error) {
	i, err := r.Kill(owner, a.id, a.reason)
	switch {
	case err != nil:
		return reply{}, err
	case i.State.Ended():
		return reply{i.line() + "\nIt was over already; nothing was changed.", i}, nil
	}
	return reply{i.line() + "\nIt is being stopped. You are told when it is over.", i}, nil
}
