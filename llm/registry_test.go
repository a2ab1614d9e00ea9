package llm_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// adapter is an llm.Adapter of two functions.
type adapter struct {
	name   string
	info   llm.ModelInfo
	stream func(ctx context.Context, yield func(llm.Chunk, error) bool)
}

func (a *adapter) Model(string, string) llm.ModelInfo { return a.info }
func (a *adapter) Stream(ctx context.Context, _ *llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		if a.stream != nil {
			a.stream(ctx, yield)
			return
		}
		_ = yield(text(0, a.name), nil) && yield(finish(llm.FinishStop), nil)
	}
}

func TestRegistryRoutes(t *testing.T) { // M10
	var r llm.Registry
	changes := 0
	remove := r.OnChange(func() { changes++; panic("an observer's own problem") })
	one, two := &adapter{name: "one"}, &adapter{name: "two"}
	unregisterOne, err := r.Register(one, "b", "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Register(two, "c", "a"); llm.CodeOf(err) != llm.CodeDuplicateAdapter {
		t.Fatalf("a taken route: %v", err)
	}
	if _, err := r.Register(two, "c", "c"); llm.CodeOf(err) != llm.CodeDuplicateAdapter {
		t.Fatalf("a route named twice: %v", err)
	}
	for _, routes := range [][]string{nil, {""}} {
		if _, err := r.Register(two, routes...); err == nil {
			t.Fatalf("Register(%q) succeeded", routes)
		}
	}
	if diff := cmp.Diff([]string{"a", "b"}, r.Providers()); diff != "" {
		t.Fatalf("providers after refusals (-want +got):\n%s", diff)
	}
	unregisterTwo, err := r.Replace(two, "b", "c")
	if err != nil {
		t.Fatal(err)
	}
	unregisterOne()
	unregisterOne()
	if diff := cmp.Diff([]string{"b", "c"}, r.Providers()); diff != "" {
		t.Fatalf("the first holder gave back what it no longer held (-want +got):\n%s", diff)
	}
	unregisterTwo()
	if changes != 4 {
		t.Errorf("%d changes observed, want 4", changes)
	}
	remove()
	if _, err := r.Register(one, "a"); err != nil || changes != 4 {
		t.Errorf("after remove: %d changes, %v", changes, err)
	}
}

func TestRegistryConcurrentUse(t *testing.T) {
	var r llm.Registry
	defer r.OnChange(func() { r.Providers() })()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			route := fmt.Sprint("r", i)
			for range 50 {
				unregister, err := r.Register(&adapter{name: route}, route)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := r.Prepare(llm.CallConfig{Provider: route, Model: "m"}); err != nil {
					t.Error(err)
				}
				unregister()
			}
		})
	}
	wg.Wait()
	if got := r.Providers(); len(got) != 0 {
		t.Errorf("left over: %q", got)
	}
}

func TestPrepare(t *testing.T) { // M11, M13
	info := llm.ModelInfo{ContextWindow: 1000, DefaultMaxTokens: 100, Efforts: []string{"low", "high"}, DefaultEffort: "low"}
	tests := []struct {
		name     string
		info     llm.ModelInfo
		config   llm.CallConfig
		want     llm.CallConfig
		defaults llm.Defaults
		code     string
	}{
		{name: "defaults are filled and marked", info: info, config: llm.CallConfig{Provider: "p", Model: "m"},
			want: llm.CallConfig{Provider: "p", Model: "m", ReasoningEffort: "low", MaxTokens: 100}, defaults: llm.Defaults{ReasoningEffort: true, MaxTokens: true}},
		{name: "explicit values stay", info: info, config: llm.CallConfig{Provider: "p", Model: "m", ReasoningEffort: "high", MaxTokens: 7},
			want: llm.CallConfig{Provider: "p", Model: "m", ReasoningEffort: "high", MaxTokens: 7}},
		{name: "off is always an effort", info: info, config: llm.CallConfig{Provider: "p", Model: "m", ReasoningEffort: "off", MaxTokens: 7},
			want: llm.CallConfig{Provider: "p", Model: "m", ReasoningEffort: "off", MaxTokens: 7}},
		{name: "nothing known, nothing refused", config: llm.CallConfig{Provider: "p", Model: "m", ReasoningEffort: "whatever"},
			want: llm.CallConfig{Provider: "p", Model: "m", ReasoningEffort: "whatever"}},
		{name: "unsupported effort", info: info, config: llm.CallConfig{Provider: "p", Model: "m", ReasoningEffort: "huge"}, code: llm.CodeUnsupportedEffort},
		{name: "unknown route", config: llm.CallConfig{Provider: "q", Model: "m"}, code: llm.CodeNoAdapter},
		{name: "no provider", config: llm.CallConfig{Model: "m"}, code: llm.CodeInvalidRequest},
		{name: "no model", config: llm.CallConfig{Provider: "p"}, code: llm.CodeInvalidRequest},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := llm.Registry{RetryFor: func(string) llm.Policy { return llm.Policy{Key: "mine"} }}
			if _, err := r.Register(&adapter{info: tt.info}, "p"); err != nil {
				t.Fatal(err)
			}
			p, err := r.Prepare(tt.config)
			if llm.CodeOf(err) != tt.code || (err != nil) != (tt.code != "") {
				t.Fatalf("error %v, want code %q", err, tt.code)
			}
			if err != nil {
				return
			}
			if diff := cmp.Diff(tt.want, p.Config); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
			if p.Defaults != tt.defaults || p.ContextWindow != tt.info.ContextWindow || p.Retry.Key != "mine" {
				t.Errorf("defaults %+v, window %d, policy %+v", p.Defaults, p.ContextWindow, p.Retry)
			}
		})
	}
}

func TestPrepareContainsAPanickingAdapter(t *testing.T) { // M12
	var r llm.Registry
	if _, err := r.Register(panickyModel{}, "p"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Prepare(llm.CallConfig{Provider: "p", Model: "m"}); llm.CodeOf(err) != llm.CodeUnknown {
		t.Errorf("error %v", err)
	}
}

type panickyModel struct{}

func (panickyModel) Model(string, string) llm.ModelInfo { panic("no models today") }
func (panickyModel) Stream(context.Context, *llm.Request) iter.Seq2[llm.Chunk, error] {
	return nil
}

func prepare(t *testing.T, r *llm.Registry, a llm.Adapter) *llm.Prepared {
	t.Helper()
	if _, err := r.Replace(a, "p"); err != nil {
		t.Fatal(err)
	}
	p, err := r.Prepare(llm.CallConfig{Provider: "p", Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var request = &llm.Request{Provider: "p", Model: "m"}

func TestPreparedCallBindsItsAdapter(t *testing.T) { // M11
	var r llm.Registry
	p := prepare(t, &r, &adapter{name: "first"})
	prepare(t, &r, &adapter{name: "second"})
	var a llm.Assembler
	for c, err := range p.Stream(t.Context(), request) {
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Add(c); err != nil {
			t.Fatal(err)
		}
	}
	if got := a.Text(); got != "first" {
		t.Errorf("answered by %q", got)
	}
	for range 2 {
		n := 0
		for _, err := range p.Stream(t.Context(), request) {
			n++
			if llm.CodeOf(err) != llm.CodeInvalidPreparedCall {
				t.Errorf("second use: %v", err)
			}
		}
		if n != 1 {
			t.Errorf("second use yields %d times", n)
		}
	}
	for _, err := range prepare(t, &r, &adapter{}).Stream(t.Context(), &llm.Request{Provider: "p", Model: "another"}) {
		if llm.CodeOf(err) != llm.CodeInvalidPreparedCall {
			t.Errorf("another model: %v", err)
		}
	}
}

// M12, I10: whatever the adapter does, the consumer sees one finish, and it is last.
func TestPreparedStreamEndings(t *testing.T) {
	cause := errors.New("the user pressed stop")
	type yielder = func(llm.Chunk, error) bool
	tests := []struct {
		name   string
		stream func(ctx context.Context, cancel context.CancelCauseFunc, yield yielder)
		kind   llm.FinishKind
		code   string
		text   string
		strict bool
	}{
		{name: "an ordinary answer", kind: llm.FinishStop, stream: func(_ context.Context, _ context.CancelCauseFunc, yield yielder) {
			_ = yield(text(0, "a"), nil) && yield(finish(llm.FinishStop), nil)
		}},
		{name: "no finish is a stop (M7)", kind: llm.FinishStop, stream: func(_ context.Context, _ context.CancelCauseFunc, yield yielder) {
			yield(text(0, "a"), nil)
		}},
		{name: "chunks after the finish are lost", kind: llm.FinishMaxTokens, stream: func(_ context.Context, _ context.CancelCauseFunc, yield yielder) {
			yield(finish(llm.FinishMaxTokens), nil)
			yield(finish(llm.FinishStop), nil)
			yield(text(0, "x"), nil)
		}},
		{name: "an error", kind: llm.FinishError, code: llm.CodeUnknown, text: "boom", stream: func(_ context.Context, _ context.CancelCauseFunc, yield yielder) {
			_ = yield(text(0, "a"), nil) && yield(llm.Chunk{}, errors.New("boom"))
		}},
		{name: "a typed error", kind: llm.FinishError, code: llm.CodeServer, text: "down: boom", stream: func(_ context.Context, _ context.CancelCauseFunc, yield yielder) {
			yield(llm.Chunk{}, fmt.Errorf("down: %w", &llm.Error{Failure: message.Failure{Code: llm.CodeServer}, Err: errors.New("boom")}))
		}},
		{name: "a panic", kind: llm.FinishError, code: llm.CodeUnknown, text: `the adapter of route "p" panicked: ouch`, stream: func(_ context.Context, _ context.CancelCauseFunc, yield yielder) {
			yield(text(0, "a"), nil)
			panic("ouch")
		}},
		{name: "a panic after the finish", kind: llm.FinishError, code: llm.CodeUnknown, text: `the adapter of route "p" panicked: late`, stream: func(_ context.Context, _ context.CancelCauseFunc, yield yielder) {
			yield(finish(llm.FinishStop), nil)
			panic("late")
		}},
		{name: "a finish without content", kind: llm.FinishError, code: llm.CodeUnknown, text: "the adapter sent a finish chunk without a finish",
			stream: func(_ context.Context, _ context.CancelCauseFunc, yield yielder) {
				yield(llm.Chunk{Kind: llm.ChunkFinish}, nil)
			}},
		{name: "a failure without reason", kind: llm.FinishError, code: llm.CodeUnknown, text: "the adapter ended as error and gave no reason",
			stream: func(_ context.Context, _ context.CancelCauseFunc, yield yielder) { yield(finish(llm.FinishError), nil) }},
		{name: "cancelled, the adapter reports its read error", kind: llm.FinishAborted, code: llm.CodeAborted, text: cause.Error(),
			stream: func(ctx context.Context, cancel context.CancelCauseFunc, yield yielder) {
				cancel(cause)
				yield(llm.Chunk{}, ctx.Err())
			}},
		{name: "cancelled, the adapter just ends", kind: llm.FinishAborted, code: llm.CodeAborted, text: cause.Error(),
			stream: func(_ context.Context, cancel context.CancelCauseFunc, _ yielder) { cancel(cause) }},
		{name: "cancelled, the adapter does not listen", kind: llm.FinishAborted, code: llm.CodeAborted, text: cause.Error(),
			stream: func(_ context.Context, cancel context.CancelCauseFunc, yield yielder) {
				cancel(cause)
				for yield(text(0, "more"), nil) {
				}
			}},
		{name: "cancelled after the answer was complete", kind: llm.FinishStop, stream: func(_ context.Context, cancel context.CancelCauseFunc, yield yielder) {
			yield(finish(llm.FinishStop), nil)
			cancel(cause)
		}},
		{name: "strict: a delta without start", kind: llm.FinishError, code: llm.CodeStreamGrammar, strict: true,
			text:   "stream grammar: text-delta for block 0, which was not started",
			stream: func(_ context.Context, _ context.CancelCauseFunc, yield yielder) { yield(text(0, "a"), nil) }},
		{name: "strict: no finish", kind: llm.FinishError, code: llm.CodeStreamGrammar, strict: true, text: "stream grammar: the stream ended without a finish",
			stream: func(context.Context, context.CancelCauseFunc, yielder) {}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			r := llm.Registry{Strict: tt.strict}
			p := prepare(t, &r, &adapter{stream: func(ctx context.Context, yield func(llm.Chunk, error) bool) { tt.stream(ctx, cancel, yield) }})
			var got *llm.Finish
			for c, err := range p.Stream(ctx, request) {
				if err != nil {
					t.Fatal(err)
				}
				if got != nil {
					t.Fatalf("%s after the finish", c.Kind)
				}
				if c.Kind == llm.ChunkFinish {
					got = c.Finish
				}
			}
			want := &llm.Finish{Kind: tt.kind}
			if tt.code != "" {
				want.Failure = &message.Failure{Code: tt.code, Message: tt.text}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("finish (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPreparedStreamOfAnEndedContext(t *testing.T) {
	var r llm.Registry
	p := prepare(t, &r, &adapter{stream: func(context.Context, func(llm.Chunk, error) bool) { t.Error("the adapter was called") }})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("too late"))
	for c, err := range p.Stream(ctx, request) {
		if err != nil {
			t.Errorf("error %v", err)
		}
		if c.Finish == nil || c.Finish.Kind != llm.FinishAborted || c.Finish.Failure.Message != "too late" {
			t.Errorf("chunk %+v", c)
		}
	}
}

func TestPreparedStreamLetsTheConsumerGo(t *testing.T) { // M12, M15
	var r llm.Registry
	ended := 0
	forever := &adapter{stream: func(_ context.Context, yield func(llm.Chunk, error) bool) {
		defer func() { ended++ }()
		for yield(text(0, "a"), nil) {
		}
	}}
	for _, err := range prepare(t, &r, forever).Stream(t.Context(), request) {
		if err != nil {
			t.Errorf("error %v", err)
		}
		break
	}
	func() {
		defer func() {
			if v := recover(); v != "consumer" {
				t.Errorf("recovered %v", v)
			}
		}()
		for _, err := range prepare(t, &r, forever).Stream(t.Context(), request) {
			if err != nil {
				t.Errorf("error %v", err)
			}
			panic("consumer")
		}
	}()
	if ended != 2 {
		t.Errorf("%d of 2 adapters ended", ended)
	}
}

func TestReplayRoundTrip(t *testing.T) { // M8
	for _, r := range []*llm.Replay{
		nil,
		{Response: []byte(`{"id":"<a&b>"}`)},
		{Blocks: [][]byte{[]byte(`"x"`), nil, []byte(`{"n": 1.50}`)}},
		{Response: []byte(`1`), Blocks: [][]byte{}},
	} {
		got, err := llm.DecodeReplay(r.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, got); diff != "" {
			t.Errorf("replay %s (-want +got):\n%s", r.Encode(), diff)
		}
	}
	if _, err := llm.DecodeReplay([]byte(`[1]`)); err == nil {
		t.Error("an array was taken for a replay state")
	}
}
