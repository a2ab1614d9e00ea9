package scenario_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// parseWhen scripts what is answered to a prompt: by models, one line for each call,
// or by a child of a remote provider, in one line.
func parseWhen(a *args) action {
	switch {
	case a.peek("asked"):
		return parseAsked(a, false)
	case a.peek("told"):
		return parseAsked(a, true)
	}
	name := a.word("asked or a provider")
	a.literal("is")
	a.literal("asked")
	prompt := a.text("a text")
	var play func(w *world) subagenttest.Play
	a.lines(func(l *args) {
		if play != nil {
			l.fail("a remote child answers in one line")
		}
		play = parsePlay(l)
	})
	return func(w *world) {
		p := w.providers[name]
		if p == nil || p.remote == nil {
			w.fatal("no remote provider is named %q", name)
		}
		p.plays[prompt] = play(w)
	}
}

// parseAsked parses what a model answers to a prompt, or to what a child tells.
func parseAsked(a *args, told bool) action {
	prompt := anything
	switch {
	case told:
		prompt = anyChild
		a.literal("by")
		a.literal("a")
		a.literal("child")
	case a.peek("anything"):
		a.literal("else")
	default:
		prompt = a.text("a text")
	}
	var steps []func(w *world) scripted.Step
	a.lines(func(l *args) {
		var parts []func(w *world) scripted.Part
		for l.more() {
			parts = append(parts, parsePart(l))
		}
		steps = append(steps, func(w *world) (step scripted.Step) {
			for _, p := range parts {
				step = append(step, p(w))
			}
			return step
		})
	})
	return func(w *world) {
		var made []scripted.Step
		for _, s := range steps {
			made = append(made, s(w))
		}
		// A call too many fails, instead of going on for ever.
		made = append(made, scripted.Step{scripted.Fail("STORY", fmt.Sprintf("the story has no line for call %d of %q", len(steps)+1, prompt))})
		w.mu.Lock()
		defer w.mu.Unlock()
		w.answers[prompt] = made
	}
}

// anything and anyChild stand for prompts that no line names, and for what children tell.
const (
	anything = "anything else"
	anyChild = "told by a child"
)

// answer is what the model of the story says.
func (w *world) answer(_ context.Context, req *llm.Request) (scripted.Step, error) {
	prompt, turn := scripted.PromptText(req), scripted.Turn(req)
	for i := len(turn) - 1; i >= 0; i-- {
		if k := turn[i].Source.Kind; k == message.SourceSubagentSettled || k == message.SourceSubagentReport {
			prompt, turn = anyChild, turn[i+1:]
			break
		}
	}
	if req.Purpose != llm.PurposeStep {
		prompt, turn = anything, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	steps := w.answers[prompt]
	switch {
	case len(steps) > 0:
	case prompt == anyChild:
		return scripted.Step{scripted.SayLiteral("Noted.")}, nil
	case len(w.answers[anything]) > 0:
		steps = w.answers[anything]
	default:
		return nil, fmt.Errorf("no answer was given for the prompt %q", prompt)
	}
	n := 0
	for _, m := range turn {
		if m.Role == message.RoleAssistant {
			n++
		}
	}
	return steps[min(n, len(steps)-1)], nil
}

// parsePart reads one part of what a model answers.
func parsePart(l *args) func(w *world) scripted.Part {
	always := func(p scripted.Part) func(*world) scripted.Part {
		return func(*world) scripted.Part { return p }
	}
	switch word := l.word("a part of an answer"); word {
	case "say":
		return always(scripted.Say(l.text("a text")))
	case "think":
		return always(scripted.Reason(l.text("a text")))
	case "call":
		tool := l.word("a tool")
		if l.more() && l.tokens[l.at].kind == textToken {
			return always(scripted.CallLiteral(tool, l.text("arguments")))
		}
		args := l.json("arguments")
		return func(w *world) scripted.Part {
			return scripted.CallFunc(tool, func(*llm.Request) (string, error) { return w.fill(args), nil })
		}
	case "hold":
		l.literal("at")
		gate := l.word("a gate")
		return func(w *world) scripted.Part { return subagenttest.Hold(w.gate(gate)) }
	case "hang":
		return always(scripted.Hang())
	case "fail":
		code := l.word("a code")
		return always(scripted.Fail(code, l.text("a text")))
	case "refuse":
		return always(scripted.Refuse(l.text("a text")))
	case "panic":
		return always(scripted.Panic(l.text("a text")))
	case "cut":
		return always(scripted.MaxTokens())
	case "break":
		return always(scripted.Raw(llm.Chunk{Kind: llm.ChunkTextDelta, Index: 7, Text: "?"}))
	case "stop":
		return always(scripted.Empty())
	default:
		l.fail("%q is no part of an answer", word)
		return always(scripted.Part{})
	}
}

// parsePlay reads how a remote child behaves.
func parsePlay(l *args) func(w *world) subagenttest.Play {
	var play subagenttest.Play
	var gate string
	for l.more() {
		switch word := l.word("a part of an answer"); word {
		case "say":
			b := text(l.text("a text"))
			play.Result.Output, play.Partial = b, b
		case "end":
			play.Result.StopReason = subagent.StopReason(l.word("a stop reason"))
		case "diagnose":
			play.Result.Diagnostic = l.text("a text")
		case "capture":
			play.Result.Structured = []byte(l.json("a value"))
		case "hold":
			l.literal("at")
			gate = l.word("a gate")
		case "lose":
			play.Err = &llm.Error{Failure: message.Failure{Code: l.word("a code"), Message: l.text("a text")}}
		case "stick":
			play.CloseErr = errors.New(l.text("a text"))
		default:
			l.fail("%q is nothing that a remote child does", word)
		}
	}
	return func(w *world) subagenttest.Play {
		p := play
		if gate != "" {
			p.Hold = w.gate(gate)
		}
		return p
	}
}
