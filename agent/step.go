package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

func promptOptions(a *Agent, set *tool.Toolset) prompt.AssembleOptions {
	return prompt.AssembleOptions{Scope: a, ToolVisible: func(name string) bool { return set.Lookup(name) != nil }}
}

// modelStep makes the model call of an open step and runs the tools it asks for.
// It returns the ending that the turn would have, or nil when the model wants to
// see results (core L39).
func (t *turn) modelStep() (*session.TurnEnd, error) {
	msg, finish, err := t.call()
	if err != nil {
		return nil, err
	}
	switch finish {
	case llm.FinishMaxTokens:
		return &session.TurnEnd{Kind: session.EndMaxTokens}, nil
	case llm.FinishRefusal:
		return &session.TurnEnd{Kind: session.EndRefusal}, nil
	}
	var calls []message.Block
	for i := range msg.Content {
		if msg.Content[i].Type == message.BlockToolCall {
			calls = append(calls, msg.Content[i])
		}
	}
	if len(calls) == 0 {
		return &session.TurnEnd{Kind: session.EndCompleted}, nil
	}
	conclude, err := t.runTools(calls)
	if err != nil {
		return nil, err
	}
	if conclude {
		return &session.TurnEnd{Kind: session.EndCompleted}, nil
	}
	return nil, nil
}

// call makes attempts until one leaves an assistant message in the log.
func (t *turn) call() (message.Message, llm.FinishKind, error) {
	a := t.agent
	retries, extra := 0, 0
	lastProvider, lastKey := "", ""
	var turn llm.Turn
	for {
		prepared, req, err := t.request()
		if err != nil {
			return message.Message{}, "", err
		}
		if !turn.Of(prepared.Pace) {
			waited := false
			if turn, waited, err = prepared.Pace.Enter(t.ctx()); err != nil {
				return message.Message{}, "", err
			}
			if waited {
				continue // meanwhile the log may have changed, and whose it is
			}
		}
		if prepared.Config.Provider != lastProvider || prepared.Retry.Key != lastKey {
			// A route switch starts counting anew (core M18).
			retries, lastProvider, lastKey = 0, prepared.Config.Provider, prepared.Retry.Key
		}
		msg, fin, err := t.attempt(prepared, req)
		if err == nil {
			prepared.Pace.Answered(turn)
			return msg, fin.Kind, nil
		}
		if cause := context.Cause(t.ctx()); cause != nil {
			return message.Message{}, "", cause
		}
		var le *llm.Error
		if !errors.As(err, &le) {
			return message.Message{}, "", err
		}
		delay, again := prepared.Retry.Next(retries, le.Failure, a.reg.cfg.Random)
		if llm.Crowded(le.Failure) {
			prepared.Pace.Refused(turn, delay)
		}
		turn = llm.Turn{}
		if again {
			retries++
			if err := t.wait(prepared, retries, delay, le.Failure); err != nil {
				return message.Message{}, "", err
			}
			continue
		}
		extra++
		a.each(func(h *Hooks) bool {
			if h.RequestError != nil {
				err := contain("request error hook", func() error {
					again = h.RequestError(t.ctx(), a, le.Failure, extra)
					return nil
				})
				if err != nil {
					a.log().Error("hook failed", "hook", "request error", "error", err)
				}
			}
			return !again
		})
		if !again {
			return message.Message{}, "", err
		}
	}
}

// request builds the next request, logs its header where it changed, and makes
// the log durable before anything leaves (core S14, D23a).
func (t *turn) request() (*llm.Prepared, *llm.Request, error) {
	a := t.agent
	c := a.CallConfig()
	var err error
	a.each(func(h *Hooks) bool {
		if h.Request != nil {
			err = contain("request hook", func() error { return h.Request(t.ctx(), a, &c) })
		}
		return err == nil
	})
	if err != nil {
		return nil, nil, err
	}
	if c.Provider == "" || c.Model == "" {
		return nil, nil, &llm.Error{Failure: message.Failure{Code: llm.CodeInvalidRequest, Message: "no model is chosen: the agent has no provider or no model"}}
	}
	prepared, err := a.reg.cfg.Models.Prepare(c)
	if err != nil {
		return nil, nil, err
	}
	set := a.tools.Toolset()
	drafts, specs, err := t.header(prepared, set)
	if err != nil {
		return nil, nil, err
	}
	if len(drafts) > 0 {
		if _, err := a.session.Append(drafts...); err != nil {
			return nil, nil, err
		}
	}
	a.asked = true
	if err := a.session.CheckOwner(t.ctx()); err != nil {
		return nil, nil, err
	}
	if err := a.session.Flush(t.ctx()); err != nil {
		return nil, nil, err
	}
	if err := context.Cause(t.ctx()); err != nil {
		return nil, nil, err
	}
	hdr := a.session.RequestHeader()
	history, _ := a.session.History()
	req := &llm.Request{Messages: history, System: hdr.System, Tools: specs, SessionID: a.SessionID()}
	prepared.Config.Apply(req)
	return prepared, req, nil
}

// CallConfig returns what the agent's next call starts from, before Request hooks see
// it (core L39): the declared options, later what the last call used but for what its
// adapter filled in. A reasoning effort that somebody chose is kept across a resume on
// the same model. It belongs to the agent's activity: only hooks of its turns and
// maintenance jobs may call it.
func (a *Agent) CallConfig() llm.CallConfig {
	last := a.session.RequestHeader()
	if a.asked && last != nil {
		c := llm.CallConfig(last.Config)
		if last.DefaultEffort {
			c.ReasoningEffort = ""
		}
		if last.DefaultMaxTokens {
			c.MaxTokens = 0
		}
		if c.Temperature != nil {
			// The header's own is not a hook's to change.
			f := *c.Temperature
			c.Temperature = &f
		}
		c.Stop = slices.Clone(c.Stop)
		return c
	}
	c := llm.CallConfig{
		Provider: a.options.Provider, Model: a.options.Model, ReasoningEffort: a.options.ReasoningEffort,
		Temperature: a.options.Temperature, MaxTokens: a.options.MaxTokens,
	}
	if c.ReasoningEffort == "" && last != nil && !last.DefaultEffort && last.Config.Provider == c.Provider && last.Config.Model == c.Model {
		c.ReasoningEffort = last.Config.ReasoningEffort
	}
	return c
}

// header returns the drafts of request/header and request/context, as far as
// they differ from what the log says already, and the tools of the request.
func (t *turn) header(prepared *llm.Prepared, set *tool.Toolset) ([]session.Draft, []llm.ToolSpec, error) {
	a := t.agent
	last := a.session.RequestHeader()
	reason := session.HeaderChange
	switch {
	case a.asked:
	case a.resumed:
		reason = session.HeaderResume
	default:
		reason = session.HeaderInitial
	}
	var drafts []session.Draft
	hdr, specs, err := a.reg.header(prepared, set, a.system, reason)
	if err != nil {
		return nil, nil, err
	}
	if !hdr.Equal(last) {
		drafts = append(drafts, session.Draft{Payload: hdr})
	}
	rc := a.session.RequestContext()
	if rc == nil || rc.Provider != prepared.Config.Provider || rc.Model != prepared.Config.Model || rc.ContextWindow != prepared.ContextWindow {
		drafts = append(drafts, session.Draft{Payload: &session.RequestContext{
			Provider: prepared.Config.Provider, Model: prepared.Config.Model, ContextWindow: prepared.ContextWindow,
		}})
	}
	return drafts, specs, nil
}

// attempt streams one answer and, if it is one, appends the assistant message.
// The error is an *llm.Error for a failed call, the cause for a cancelled one.
func (t *turn) attempt(prepared *llm.Prepared, req *llm.Request) (message.Message, llm.Finish, error) {
	a := t.agent
	a.setPartial("")
	var asm llm.Assembler
	var broken, bad error
	for c, err := range prepared.Stream(t.ctx(), req) {
		if err != nil {
			broken = err // not returned here: the results would go to the heap for that
			break
		}
		if err := asm.Add(c); err != nil {
			bad = err
			break
		}
		a.notifyChunk(c)
	}
	if broken != nil {
		return message.Message{}, llm.Finish{}, broken
	}
	fin := asm.Finish()
	var usage *message.Usage
	if u, ok := asm.Usage(); ok {
		usage = &u
	}
	failed := bad
	if failed == nil && (fin.Kind == llm.FinishError || fin.Kind == llm.FinishAborted) {
		e := &llm.Error{}
		if fin.Failure != nil {
			e.Failure = *fin.Failure
		}
		failed = e
	}
	if failed != nil {
		if cause := context.Cause(t.ctx()); cause != nil {
			t.interrupted(&asm, req, usage)
			return message.Message{}, fin, cause
		}
		a.setPartial(asm.Text())
		return message.Message{}, fin, failed
	}
	// An answer that is complete stays one, even if a cancel came meanwhile.
	blocks := asm.Blocks()
	if fin.Kind == llm.FinishRefusal && slices.ContainsFunc(blocks, isCall) {
		// They are not run, and a call without a result would spoil the next request.
		blocks, fin.Replay = slices.DeleteFunc(blocks, isCall), nil
	}
	sanitize(blocks)
	m := t.assistant(req, blocks, fin.Replay)
	seq, err := a.session.Append(session.Draft{Payload: &session.AssistantMessage{Turn: t.number, Step: t.step, Message: m, Usage: usage}})
	if err != nil {
		return message.Message{}, fin, err
	}
	a.reg.observe(Event{Kind: EventMessage, Agent: a, Usage: usage, seq: seq})
	return m, fin, nil
}

// assistant makes the message of an answer, with what its adapter needs back, or nil.
func (t *turn) assistant(req *llm.Request, blocks []message.Block, replay *llm.Replay) message.Message {
	source := message.SourceDetails{Provider: req.Provider, Model: req.Model}
	if replay != nil {
		source.ReplayState = replay.Encode()
	}
	return message.Message{
		ID: NewMessageID(), Role: message.RoleAssistant, Content: blocks, Source: message.NewSource(message.SourceModel, source),
	}
}

// interrupted appends what a person could see of a cancelled answer (core L28).
// The turn ends as cancelled whether that succeeds or not.
func (t *turn) interrupted(asm *llm.Assembler, req *llm.Request, usage *message.Usage) {
	a := t.agent
	blocks := asm.Interrupted()
	if len(blocks) == 0 {
		a.setPartial(asm.Text())
		return
	}
	sanitize(blocks)
	_, err := a.session.Append(session.Draft{Payload: &session.AssistantMessage{
		Turn: t.number, Step: t.step, Message: t.assistant(req, blocks, nil), Usage: usage, Interrupted: true,
	}})
	if err != nil {
		a.setPartial(asm.Text())
		a.log().Error("the partial answer of a cancelled call could not be logged", "error", err)
	}
}

func isCall(b message.Block) bool { return b.Type == message.BlockToolCall }

func (a *Agent) setPartial(text string) {
	a.mu.Lock()
	a.partial = text
	a.mu.Unlock()
}

// sanitize makes what a model said fit for the log: valid UTF-8, and call ids
// that are there and unique within the message.
func sanitize(blocks []message.Block) {
	clean := func(s *string) {
		*s = strings.ToValidUTF8(*s, "\uFFFD")
	}
	seen := map[string]bool{}
	next := map[string]int{} // the number that the next call of the same id gets
	for i := range blocks {
		b := &blocks[i]
		clean(&b.Text)
		if b.Type != message.BlockToolCall {
			continue
		}
		clean(&b.ID)
		clean(&b.Name)
		clean(&b.Arguments)
		if b.ID == "" {
			b.ID = "call"
		}
		id := b.ID
		for n := max(next[id], 2); seen[b.ID]; n++ {
			b.ID = fmt.Sprintf("%s-%d", id, n)
			next[id] = n + 1
		}
		seen[b.ID] = true
		if b.Name == "" {
			b.Name = "unnamed"
		}
	}
}

// wait logs a retry, waits, and logs that the wait is over (core M19).
func (t *turn) wait(p *llm.Prepared, retry int, delay time.Duration, f message.Failure) error {
	a := t.agent
	f = sane(f)
	limit, bounded := p.Retry.Limit()
	id := uuid.NewString()
	seq, err := a.session.Append(session.Draft{Payload: &session.Retry{
		RetryID: id, Turn: t.number, Step: t.step, Provider: p.Config.Provider, Always: !bounded,
		PolicyKey: p.Retry.Key, Attempt: int64(retry), MaxRetries: int64(limit), DelayMS: delay.Milliseconds(), Failure: f,
	}})
	if err != nil {
		return err
	}
	a.reg.observe(Event{Kind: EventRetry, Agent: a, Retry: &f, seq: seq})
	if err := llm.Sleep(t.ctx(), delay); err != nil {
		return err
	}
	_, err = a.session.Append(session.Draft{Payload: &session.RetryStarted{RetryID: id, Turn: t.number, Step: t.step, Attempt: int64(retry)}})
	return err
}

// random is the jitter's source where the configuration names none.
func random() float64 { return rand.Float64() }
