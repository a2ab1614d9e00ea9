package delegate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

type args struct {
	description, prompt string
	background          *bool // nil: it does not say
}

func parse(data []byte) (a args, err error) {
	err = jsonx.ReadObject(data, func(key string, raw []byte) (err error) {
		switch key {
		case "description":
			a.description, err = jsonx.String(raw)
		case "prompt":
			a.prompt, err = jsonx.String(raw)
		case "run_in_background":
			background := string(raw) == "true" // the schema admits a boolean
			a.background = &background
		}
		return err
	})
	return a, err
}

// inBackground reports whether a call returns before its subagent is done.
func (c *Config) inBackground(a args) bool {
	if a.background == nil {
		return c.Continuable && c.Background
	}
	return *a.background
}

func (c *Config) describe(data []byte) string {
	a, err := parse(data)
	if err != nil {
		return ""
	}
	if c.inBackground(a) {
		return a.description + " (in the background)"
	}
	return a.description
}

// execute is one delegation. The ctx of a foreground call is the run's (seam
// TOOL-20); the run is closed exactly once, whatever becomes of it (seam TOOL-17).
func (m *mount) execute(ctx context.Context, call *tool.Call) (any, error) {
	parent, ok := m.svc.Agents().Live(call.Caller)
	if !ok {
		return nil, tool.Errorf(tool.CodeDenied, "a delegation needs a live agent that calls it, and this call has none")
	}
	a, err := parse(call.Args)
	if err != nil {
		return nil, &tool.Error{Code: tool.CodeInvalidArgs, Err: err}
	}
	if strings.TrimSpace(a.prompt) == "" {
		return nil, tool.Errorf(tool.CodeInvalidArgs, "the prompt is blank")
	}
	if m.cfg.Continuable {
		return m.continuable(ctx, call, parent, a)
	}
	req := subagent.Request{
		Label: &a.description, Prompt: []message.Block{message.Text(a.prompt)}, Parent: parent,
		Model: m.cfg.Model, ToolFilter: m.cfg.ToolFilter, Persona: m.cfg.Persona, MaxDepth: m.cfg.MaxDepth, OutputSchema: m.cfg.OutputSchema,
	}
	if m.cfg.inBackground(a) {
		return m.background(call, req)
	}
	run, err := m.svc.Start(ctx, m.cfg.Provider, req)
	if err != nil {
		return nil, startError(err)
	}
	res, err, closeErr := m.svc.Conclude(ctx, run)
	res = m.held(res)
	call.SetMeta(meta(run, res))
	return finish(res, err, closeErr)
}

// held keeps a provider to its word: no text passes for the JSON that was asked for.
func (m *mount) held(res subagent.Result) subagent.Result {
	if m.cfg.OutputSchema != nil && res.StopReason == subagent.StopCompleted && res.Structured == nil {
		res.StopReason, res.Diagnostic = subagent.StopError, "there is no output in the form that was asked for"
	}
	return res
}

// finish maps how a run ended to the tool's result (seam TOOL-13…19). A failure of
// the result and a failure of the release are both told, and either makes the call
// fail. The order is fixed: what happened, the provider's word on it, the failed
// release, and last what there is of an answer. A captured value is the answer, and
// what the child said beside it is not told; without success it is told as what it is.
func finish(res subagent.Result, waitErr, closeErr error) (any, error) {
	out := message.JoinText(res.Output)
	blank := strings.TrimSpace(out) == ""
	if waitErr == nil && closeErr == nil && res.StopReason == subagent.StopCompleted {
		switch {
		case res.Structured != nil:
			return string(res.Structured), nil
		case blank:
			return "The subagent finished without saying anything.", nil
		}
		return out, nil
	}
	code := tool.CodeToolFailed
	var lines []string
	heading := "Partial output:"
	switch {
	case waitErr != nil:
		lines = append(lines, "the subagent's result was lost: "+waitErr.Error())
	case res.StopReason == subagent.StopCompleted:
		heading = "Output:"
	default:
		lines = append(lines, headline("the subagent", res.StopReason))
		if res.StopReason == subagent.StopAborted {
			code = tool.CodeAborted
		}
	}
	if res.Diagnostic != "" {
		lines = append(lines, "Diagnostic: "+res.Diagnostic)
	}
	if closeErr != nil {
		lines = append(lines, "the subagent could not be released: "+closeErr.Error())
	}
	if !blank {
		lines = append(lines, heading, out)
	}
	if res.Structured != nil {
		lines = append(lines, "Output that it had handed in by then:", string(res.Structured))
	}
	return nil, &tool.Error{Code: code, Err: errors.Join(waitErr, closeErr), Msg: strings.Join(lines, "\n")}
}

func headline(who string, reason subagent.StopReason) string {
	switch reason {
	case subagent.StopAborted:
		return who + " was cancelled"
	case subagent.StopError:
		return who + " failed"
	case subagent.StopMaxTokens:
		return who + " hit its token limit before it was done"
	case subagent.StopRefusal:
		return who + " declined the task"
	}
	return fmt.Sprintf("%s ended abnormally (%s)", who, reason)
}

// meta is what other readers than the model learn from the result event.
func meta(run subagent.Run, res subagent.Result) []byte {
	buf := jsonx.AppendStringField([]byte{'{'}, "kind", "foreground")
	buf = jsonx.AppendStringField(buf, "runId", string(run.ID()))
	if res.StopReason != "" {
		buf = jsonx.AppendStringField(buf, "stopReason", string(res.StopReason))
	}
	return append(buf, '}')
}
