package subagenttest

import (
	"context"
	"fmt"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
)

// Six situations tell harnesses apart: the child's model panics (modelPanics); it
// fails (reasons); a cancel is heeded (cancelledAfter); it is ignored for 2 s
// (cancelIgnored); the child ends without text (noText); four children of one turn
// overlap (overlap).

func modelPanics(r *rig) {
	run := r.start(r.Context(), "panic", Child{Text: "so far", Panic: true})
	res := r.result(run)
	if res.StopReason != subagent.StopError || res.Diagnostic == "" || len(res.Diagnostic) > 4096 {
		r.Errorf("result = %+v, want an error with a diagnostic", res)
	}
	if r.PartialText {
		r.want(res, subagent.StopError, "so far")
	}
	r.close(run)
	second := r.start(r.Context(), "hello", Child{Text: "hi"})
	r.want(r.result(second), subagent.StopCompleted, "hi")
	r.close(second)
}

// cancelIgnored: whoever cancels, and by whatever means, Close returns when the
// child is really gone.
func cancelIgnored(r *rig) {
	const deaf = 2 * time.Second
	for _, byClose := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(r.Context())
		run := r.start(ctx, fmt.Sprint("ignore it ", byClose), Child{Text: "so far", Hold: make(chan struct{}), Deaf: deaf})
		synctest.Wait()
		began := time.Now()
		if !byClose {
			cancel(errStop)
			synctest.Wait()
		}
		impatient, stop := context.WithTimeoutCause(r.Context(), deaf/2, errStop)
		if err := run.Close(impatient); err == nil && r.Active() != 0 {
			r.Error("Close returned nil while the child was at work")
		}
		stop()
		r.close(run)
		if took := time.Since(began); took < deaf {
			r.Errorf("Close returned after %s, and the child was at work for %s", took, deaf)
		}
		if n := r.Active(); n != 0 {
			r.Errorf("%d children hold resources after Close", n)
		}
		if res := r.result(run); res.StopReason != subagent.StopAborted {
			r.Errorf("result = %+v, want aborted", res)
		}
		synctest.Wait()
		r.idle()
		cancel(nil)
	}
}

// overlap delegates four times in one message of a model.
func overlap(r *rig) {
	unmount, err := delegate.Mount(r.Service, r.Tools.Root(), delegate.Config{Provider: r.name, ProviderManaged: true}, nil)
	if err != nil {
		r.Fatal(err)
	}
	defer unmount()
	parent := r.Parent(r.T)
	defer func() {
		if err := parent.Dispose(r.Context(), false); err != nil {
			r.Errorf("dispose the parent: %v", err)
		}
	}()
	hold := make(chan struct{})
	var calls scripted.Step
	for i := range 4 {
		prompt := fmt.Sprint("part ", i)
		r.Script(prompt, Child{Text: fmt.Sprint("result ", i), Hold: hold})
		calls = append(calls, scripted.CallLiteral(delegate.DefaultToolName, fmt.Sprintf(`{"description":"a part","prompt":%q}`, prompt)))
	}
	r.Answer("before", scripted.Step{scripted.SayLiteral(parentSaid)})
	r.Answer("all four", calls, scripted.Step{scripted.SayLiteral("done")})
	for _, prompt := range []string{"before", "all four"} {
		if err := parent.Followup(agent.UserText(prompt)); err != nil {
			r.Fatal(err)
		}
	}
	synctest.Wait()
	if n := r.Active(); n != 4 {
		r.Errorf("%d children are at work at the same time, want 4", n)
	}
	close(hold)
	if err := parent.WhenIdle(r.Context()); err != nil {
		r.Fatal(err)
	}
	n := 0
	for e := range parent.Session().Events(0) {
		if p, ok := e.Payload().(*session.ToolResult); ok {
			if got, want := message.JoinText(p.Message.Content[0].Content), fmt.Sprint("result ", n); got != want || p.ErrorCode != "" {
				r.Errorf("result %d is %q (%s), want %q", n, got, p.ErrorCode, want)
			}
			n++
		}
	}
	if n != 4 {
		r.Errorf("%d results, want 4", n)
	}
}

// inherits checks what a local provider says of itself: a child begins with the
// parent's completed turns and nothing behind them, or with nothing.
func inherits(r *rig) {
	if !r.Local {
		return // what another process was told cannot be seen here
	}
	var cut int64
	turn := int64(1)
	if prefix := r.parent.Session().Prefix(); prefix != nil && r.Provider.InheritsParentContext() {
		cut, turn = prefix.Len(), 2
	}
	run := r.start(r.Context(), "hello", Child{Text: "hi"})
	child, _ := run.Local()
	r.want(r.result(run), subagent.StopCompleted, "hi")
	r.close(run)
	log := child.Session()
	if got := log.Header().SeedLength; got != cut {
		r.Errorf("seedLength = %d, want %d", got, cut)
		return
	}
	for e := range log.Events(0) {
		switch {
		case e.Seq < cut:
			if of, _ := r.parent.Session().Event(e.Seq); string(of.AppendEnvelope(nil)) != string(e.AppendEnvelope(nil)) {
				r.Errorf("event %d is no event of the parent's: %s (FORK-05)", e.Seq, e.AppendEnvelope(nil))
			}
			continue
		case e.Type == session.TypeEndSeed && cut == 0:
			r.Error("a child that inherits nothing has the mark of a seed (FORK-03)")
		}
		switch p := e.Payload().(type) {
		case *session.TurnStart:
			if p.Turn != turn {
				r.Errorf("the child's own turn is number %d, want %d (DES-25)", p.Turn, turn)
			}
		case *session.UserMessage:
			if text := message.JoinText(p.Message.Content); text == parentsWork || text == "now" {
				r.Errorf("the child was given %q, which is its parent's (L14)", text)
			}
		}
	}
	if n, open, _ := log.LastTurn(); n != turn || open {
		r.Errorf("the child's last turn is %d (open: %v), want %d", n, open, turn)
	}
}
