package subagenttest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

type parentAgent = *agent.Agent

// errStop is the cause with which the suite cancels.
var errStop = errors.New("the suite cancelled it")

func cases() []testCase {
	return []testCase{
		{"CAP-01 identity and capabilities are constant", constant},
		{"RUN-01 RUN-02 RUN-04 a completed run", completed},
		{"RUN-06 RUN-07 RUN-13 a child's failure is a result", reasons},
		{"RUN-19 Wait, many times and at once", waitMany},
		{"RUN-19 the end of Wait's ctx changes nothing", waitCancelled},
		{"RUN-09 DSP-01 Close is memoised", closeMemoised},
		{"RUN-09 Close's ctx bounds the wait alone", closeBounded},
		{"DSP-07 Close settles an unsettled run as aborted", closeUnsettled},
		{"CAN-01 cancelled before Start", cancelledBefore},
		{"CAN-02 P04 cancelled at every step of Start", cancelledDuring},
		{"REQ-08 EVT-07 a start that fails leaves nothing", startFails},
		{"CAN-03 cancelled after publication", cancelledAfter},
		{"RUN-16 DSP-02 cancelled after completion", cancelledTooLate},
		{"REG-19 children are independent", independent},
		{"REG-15 unregistering leaves runs alone", unregistered},
		{"REQ-05 the request is not changed", requestKept},
		{"DEP-06 the depth cap is honoured", depthCap},
		{"COMP-12 COMP-13 the tool filter is honoured", toolFilter},
		{"COMP-08 the persona is the child's", persona},
		{"SO-01 RUN-12 the output schema is honoured", outputSchema},
		{"OUT-06 FORK-07 a child that says nothing", noText},
		{"RUN-06 the child's model panics", modelPanics},
		{"RUN-09 CAN-03 a child that ignores its cancel for 2 s", cancelIgnored},
		{"TOOL-11 four children of one turn overlap", overlap},
		{"CAP-09 FORK-01 what a child inherits", inherits},
	}
}

func constant(r *rig) {
	caps := r.Provider.Capabilities()
	inherits := r.Provider.InheritsParentContext()
	r.close(r.start(r.Context(), "hello", Child{Text: "hi"}))
	switch {
	case r.name == "":
		r.Error("the provider has no name (REG-20)")
	case r.Provider.Name() != r.name, r.Provider.Capabilities() != caps, r.Provider.InheritsParentContext() != inherits:
		r.Error("name or capabilities changed")
	}
}

func completed(r *rig) {
	run := r.start(r.Context(), "hello", Child{Text: "hi there"})
	child, local := run.Local()
	switch live, ok := r.Agents.Get(run.ID()); {
	case run.ID() == "":
		r.Error("the run has no id")
	case local != r.Local:
		r.Errorf("Local() = %v, want %v", local, r.Local)
	case !local && ok:
		r.Error("a remote run's id resolves in the agent registry")
	case !local:
	case !ok || live != child || child.ID() != run.ID():
		r.Error("Local() is not the published agent of the run's id (RUN-02)")
	default:
		h := child.Session().Header()
		if h.ParentSession != r.parent.ID() || h.Origin != session.OriginSubagent || h.DelegationDepth != 1 {
			r.Errorf("header = %+v, want parent %s, origin subagent, depth 1", h, r.parent.ID())
		}
	}
	res := r.result(run)
	r.want(res, subagent.StopCompleted, "hi there")
	if res.Diagnostic != "" {
		r.Errorf("a completed result carries the diagnostic %q (RUN-15)", res.Diagnostic)
	}
	if res.Structured != nil {
		r.Error("a structured value without a schema (RUN-12)")
	}
	if n := r.Active(); n != 1 {
		r.Errorf("%d children hold resources before Close, want 1", n)
	}
	if local {
		switch d := child.Session().Descriptor(); {
		case d == nil:
			r.Error("the child's log holds no descriptor of its own (DES-01)")
		case d.Descriptor.Provider != r.name || d.Descriptor.Mode != session.ModeOneShot:
			r.Errorf("descriptor = %+v, want a one-shot of %q (DES-03)", d.Descriptor, r.name)
		}
	}
	r.close(run)
	synctest.Wait()
	edges := r.Lifecycle.Edges()
	if len(edges) != 2 || edges[1].End == nil || edges[0].Start.ID != run.ID() || edges[1].End.StopReason != subagent.StopCompleted {
		r.Errorf("edges = %+v, want one completed pair of run %s", edges, run.ID())
	}
}

func reasons(r *rig) {
	for _, reason := range r.Reasons {
		prompt := "end as " + string(reason)
		run := r.start(r.Context(), prompt, Child{Text: "so far", End: reason})
		res := r.result(run)
		if res.StopReason != reason {
			r.Errorf("stop reason = %q, want %q", res.StopReason, reason)
		}
		if got := message.JoinText(res.Output); r.PartialText && got != "so far" {
			r.Errorf("%s: output = %q, want what it said (OUT-08)", reason, got)
		}
		if len(res.Diagnostic) > 4096 {
			r.Errorf("%s: the diagnostic has %d bytes", reason, len(res.Diagnostic))
		}
		r.close(run)
	}
}

func waitMany(r *rig) {
	hold := make(chan struct{})
	run := r.start(r.Context(), "hello", Child{Text: "hi", Hold: hold})
	results := make([]subagent.Result, 8)
	var g sync.WaitGroup
	for i := range results[:4] {
		g.Go(func() { results[i] = r.result(run) })
	}
	synctest.Wait()
	close(hold)
	g.Wait()
	results[4] = r.result(run)
	for i := range 2 {
		g.Go(func() { r.close(run) })
		g.Go(func() { results[5+i] = r.result(run) })
	}
	g.Wait()
	results[7] = r.result(run)
	for i, res := range results {
		if !reflect.DeepEqual(res, results[0]) {
			r.Errorf("result %d = %+v, the first was %+v", i, res, results[0])
		}
	}
	r.want(results[0], subagent.StopCompleted, "hi")
	ended, cancel := context.WithCancelCause(r.Context())
	cancel(errStop)
	if res, err := run.Wait(ended); err != nil || !reflect.DeepEqual(res, results[0]) {
		r.Errorf("a settled run's Wait with an ended ctx = %+v, %v, want the result", res, err)
	}
}

func waitCancelled(r *rig) {
	hold := make(chan struct{})
	run := r.start(r.Context(), "hello", Child{Text: "hi", Hold: hold})
	ctx, cancel := context.WithCancelCause(r.Context())
	done := make(chan error)
	go func() {
		_, err := run.Wait(ctx)
		done <- err
	}()
	synctest.Wait()
	cancel(errStop)
	if err := <-done; !errors.Is(err, errStop) {
		r.Errorf("Wait = %v, want the cause of its ctx", err)
	}
	close(hold)
	r.want(r.result(run), subagent.StopCompleted, "hi")
	r.close(run)
}

func closeMemoised(r *rig) {
	run := r.start(r.Context(), "hello", Child{Text: "hi"})
	r.result(run)
	var g sync.WaitGroup
	for range 4 {
		g.Go(func() {
			r.close(run)
			if n := r.Active(); n != 0 {
				r.Errorf("%d children hold resources after Close", n)
			}
		})
	}
	g.Wait()
	ended, cancel := context.WithCancelCause(r.Context())
	cancel(errStop)
	if err := run.Close(ended); err != nil {
		r.Errorf("Close after Close, with an ended ctx = %v, want the first one's outcome", err)
	}
}

func closeBounded(r *rig) {
	run := r.start(r.Context(), "hello", Child{Text: "hi", Hold: make(chan struct{})})
	ctx, cancel := context.WithCancelCause(r.Context())
	cancel(errStop)
	if err := run.Close(ctx); err != nil && !errors.Is(err, errStop) {
		r.Errorf("Close = %v, want nil or the cause of its ctx", err)
	}
	r.close(run)
	if n := r.Active(); n != 0 {
		r.Errorf("%d children hold resources after Close", n)
	}
}

func closeUnsettled(r *rig) {
	run := r.start(r.Context(), "hello", Child{Text: "so far", Hold: make(chan struct{})})
	synctest.Wait()
	r.close(run)
	res := r.result(run)
	if res.StopReason != subagent.StopAborted || res.Diagnostic != "" {
		r.Errorf("result = %+v, want aborted without a diagnostic", res)
	}
	if r.PartialText {
		r.want(res, subagent.StopAborted, "so far")
	}
}

func cancelledBefore(r *rig) {
	ctx, cancel := context.WithCancelCause(r.Context())
	cancel(errStop)
	r.Script("hello", Child{Text: "hi"})
	if _, err := r.Service.Start(ctx, r.name, Request(r.parent, "hello")); !errors.Is(err, errStop) {
		r.Errorf("Service.Start = %v, want the cause", err)
	}
	req := Request(r.parent, "hello")
	d, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeOneShot, Provider: r.name})
	if err != nil {
		r.Fatal(err)
	}
	if _, err := r.Provider.Start(ctx, &subagent.ResolvedRequest{Request: req, Descriptor: d}); !errors.Is(err, errStop) {
		r.Errorf("Provider.Start = %v, want the cause", err)
	}
	if len(r.Lifecycle.Edges()) != 0 {
		r.Errorf("edges = %+v, want none (EVT-07)", r.Lifecycle.Edges())
	}
}

// cancelledDuring lets the ctx end at the nth look that anybody takes at it, for
// every n until a run completes without having looked so often.
func cancelledDuring(r *rig) {
	rejected, aborted, total := 0, 0, 0
	for n := 1; ; n++ {
		prompt := fmt.Sprint("attempt ", n)
		r.Script(prompt, Child{Text: "hi"})
		ctx := NewTripwire(r.Context(), n, errStop)
		run, err := r.Service.Start(ctx, r.name, Request(r.parent, prompt))
		if err != nil {
			if !errors.Is(err, errStop) {
				r.Errorf("at look %d: Start = %v, want the cause", n, err)
			}
			rejected++
			synctest.Wait()
			r.idle()
			continue
		}
		res := r.result(run)
		r.close(run)
		synctest.Wait()
		r.idle()
		switch {
		case res.StopReason == subagent.StopAborted:
			aborted++
		case res.StopReason != subagent.StopCompleted:
			r.Errorf("at look %d: result = %+v, want completed or aborted", n, res)
		}
		if !ctx.Tripped() {
			total = n
			break
		}
		if n > 1000 {
			r.Fatal("the ctx is looked at without end")
		}
	}
	if rejected == 0 {
		r.Error("no start was rejected: the provider never looks at its ctx")
	}
	r.Logf("%d looks at the ctx: %d starts rejected, %d runs aborted", total-1, rejected, aborted)
}

// startFails has the child's session refused when it is announced, which is the last
// thing that can fail in a start of this process. What a remote provider can fail at
// is its own.
func startFails(r *rig) {
	if !r.Local {
		return
	}
	refusal := errors.New("the suite refused the child")
	remove := r.Sessions.AddHooks(session.Hooks{Created: func(*session.Session) error { return refusal }})
	live := len(r.Agents.List())
	r.Script("hello", Child{Text: "hi"})
	if _, err := r.Service.Start(r.Context(), r.name, Request(r.parent, "hello")); !errors.Is(err, refusal) {
		r.Errorf("Start = %v, want the refusal", err)
	}
	r.idle()
	if n := len(r.Agents.List()); n != live || len(r.Lifecycle.Edges()) != 0 {
		r.Errorf("%d agents live, %d before; edges = %+v, want none", n, live, r.Lifecycle.Edges())
	}
	remove()
	run := r.Start(r.T, r.Context(), r.name, Request(r.parent, "hello"))
	r.want(r.result(run), subagent.StopCompleted, "hi")
	r.close(run)
}

func cancelledAfter(r *rig) {
	ctx, cancel := context.WithCancelCause(r.Context())
	run := r.start(ctx, "hello", Child{Text: "so far", Hold: make(chan struct{})})
	synctest.Wait()
	began := time.Now()
	cancel(errStop)
	res := r.result(run)
	if took := time.Since(began); took > time.Second {
		r.Errorf("a child that heeds its cancel took %s to end", took)
	}
	if res.StopReason != subagent.StopAborted || res.Diagnostic != "" {
		r.Errorf("result = %+v, want aborted without a diagnostic (RUN-15)", res)
	}
	if r.PartialText {
		r.want(res, subagent.StopAborted, "so far")
	}
	r.close(run)
}

func cancelledTooLate(r *rig) {
	ctx, cancel := context.WithCancelCause(r.Context())
	run := r.start(ctx, "hello", Child{Text: "hi"})
	synctest.Wait() // it is done, and nobody but the service has looked
	cancel(errStop)
	synctest.Wait()
	r.close(run)
	r.want(r.result(run), subagent.StopCompleted, "hi")
}

func independent(r *rig) {
	ctx, cancel := context.WithCancelCause(r.Context())
	hold := make(chan struct{})
	first := r.start(ctx, "first", Child{Text: "one", Hold: make(chan struct{})})
	second := r.start(r.Context(), "second", Child{Text: "two", Hold: hold})
	third := r.start(r.Context(), "third", Child{Text: "three", Hold: hold})
	synctest.Wait()
	if n := r.Active(); n != 3 {
		r.Errorf("%d children hold resources, want 3", n)
	}
	if slices.Contains([]session.ID{second.ID(), third.ID()}, first.ID()) || second.ID() == third.ID() {
		r.Error("ids are not unique")
	}
	cancel(errStop)
	r.close(first)
	r.close(third)
	close(hold)
	r.want(r.result(second), subagent.StopCompleted, "two")
	if res := r.result(third); res.StopReason != subagent.StopAborted {
		r.Errorf("the closed one ended as %q", res.StopReason)
	}
	r.close(second)
}

func unregistered(r *rig) {
	hold := make(chan struct{})
	run := r.start(r.Context(), "hello", Child{Text: "hi", Hold: hold})
	r.unregister()
	if _, err := r.Service.Start(r.Context(), r.name, Request(r.parent, "hello")); !errors.Is(err, subagent.ErrNoProvider) {
		r.Errorf("Start after the removal = %v, want NO_PROVIDER", err)
	}
	close(hold)
	r.want(r.result(run), subagent.StopCompleted, "hi")
	r.close(run)
}

func requestKept(r *rig) {
	build := func() subagent.Request {
		label := "a label"
		req := Request(r.parent, "hello")
		req.Label = &label
		return req
	}
	req := build()
	r.Script("hello", Child{Text: "hi"})
	run := r.Start(r.T, r.Context(), r.name, req)
	r.want(r.result(run), subagent.StopCompleted, "hi")
	r.close(run)
	if !reflect.DeepEqual(req, build()) {
		r.Errorf("the request became %+v", req)
	}
}

func depthCap(r *rig) {
	r.Script("hello", Child{Text: "hi"})
	req := Request(r.parent, "hello")
	limit := int64(0)
	req.MaxDepth = &limit
	_, err := r.Service.Start(r.Context(), r.name, req)
	if !r.Provider.Capabilities().DepthLimit {
		if !errors.Is(err, subagent.ErrUnsupportedCapability) {
			r.Errorf("Start = %v, want UNSUPPORTED_CAPABILITY", err)
		}
		return
	}
	var depth *subagent.DepthError
	if !errors.As(err, &depth) || depth.Depth != 1 || depth.Cap != 0 {
		r.Errorf("Start with a cap of 0 = %v, want a DepthError with depth 1 and cap 0", err)
	}
	limit = 1
	run := r.Start(r.T, r.Context(), r.name, req)
	r.want(r.result(run), subagent.StopCompleted, "hi")
	r.close(run)
}

func toolFilter(r *rig) {
	if !r.Provider.Capabilities().ToolFilter {
		return // the service's own suite covers the refusal
	}
	r.Script("hello", Child{Text: "hi"})
	req := Request(r.parent, "hello")
	req.ToolFilter = &session.ToolFilter{Allow: []string{}}
	run := r.Start(r.T, r.Context(), r.name, req)
	r.want(r.result(run), subagent.StopCompleted, "hi")
	r.close(run)
	if !r.Local {
		return
	}
	for _, name := range []string{"suite_one", "suite_two"} {
		_, err := r.Tools.Root().Register(tool.Definition{
			Name: name, Description: "It is there.", Parameters: []byte(`{"type":"object"}`),
			Execute: func(context.Context, *tool.Call) (any, error) { return "", nil },
		})
		if err != nil {
			r.Fatal(err)
		}
	}
	for want, filter := range map[string]*session.ToolFilter{
		"suite_one": {Allow: []string{"suite_one"}}, "suite_two": {Deny: []string{"suite_one"}}, "suite_one suite_two": nil,
	} {
		req.ToolFilter = filter
		run := r.Start(r.T, r.Context(), r.name, req)
		child, _ := run.Local()
		var got []string
		for _, spec := range child.Tools().Specs() {
			got = append(got, spec.Name)
		}
		if strings.Join(got, " ") != want {
			r.Errorf("with the filter %+v the child has the tools %q, want %s", filter, got, want)
		}
		r.result(run)
		r.close(run)
	}
	req.ToolFilter = &session.ToolFilter{Deny: []string{"no_such_tool"}}
	if _, err := r.Service.Start(r.Context(), r.name, req); err == nil {
		r.Error("a filter that names an unknown tool was accepted")
	}
}

func persona(r *rig) {
	if !r.Provider.Capabilities().Persona {
		return // the service's own suite covers the refusal
	}
	const text = "You are what the suite wants you to be."
	for _, has := range []bool{true, false} {
		r.Script("hello", Child{Text: "hi"})
		req := Request(r.parent, "hello")
		if has {
			req.Persona = &subagent.Persona{Text: text}
		}
		run := r.Start(r.T, r.Context(), r.name, req)
		child, local := run.Local()
		r.want(r.result(run), subagent.StopCompleted, "hi")
		if local && strings.Contains(child.Session().RequestHeader().System, text) != has {
			r.Errorf("persona given: %v; the child's system prompt is %q", has, child.Session().RequestHeader().System)
		}
		r.close(run)
	}
}

func noText(r *rig) {
	run := r.start(r.Context(), "say nothing", Child{})
	res := r.result(run)
	r.close(run)
	if got := message.JoinText(res.Output); got != "" {
		r.Errorf("a child that said nothing has the output %q (OUT-06)", got)
	}
}
