package tool_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/tool"
)

type caller struct{ id string }

func (c *caller) SessionID() string { return c.id }
func (c *caller) Root() bool        { return true }

// one returns a scope with one tool, changed by change.
func one(t *testing.T, change func(*tool.Definition)) *tool.Scope {
	t.Helper()
	d := def("x")
	change(&d)
	s := tool.New().Root()
	if _, err := s.Register(d); err != nil {
		t.Fatal(err)
	}
	return s
}

func body(fn func(ctx context.Context, call *tool.Call) (any, error)) func(*tool.Definition) {
	return func(d *tool.Definition) { d.Execute = fn }
}

func TestOrderT12(t *testing.T) {
	var trace []string
	say := func(s string) { trace = append(trace, s) }
	root := tool.New().Root()
	d := def("x")
	d.Execute = func(_ context.Context, call *tool.Call) (any, error) {
		say("body " + string(call.Args))
		return "v", nil
	}
	d.Output = tool.Output{
		Schema: []byte(`{"type":"string"}`),
		Render: func(any) ([]message.Block, error) { say("render"); return []message.Block{message.Text("r")}, nil },
		Meta:   func(any) ([]byte, error) { say("meta"); return []byte(` {"a" : 1} `), nil },
	}
	d.Finalize = func(_ *tool.Call, c []message.Block, isError bool) []message.Block {
		say("finalize")
		return append(c, message.Text("!"))
	}
	if _, err := root.Register(d); err != nil {
		t.Fatal(err)
	}
	s := root.Child()
	add := func(name string, s *tool.Scope) {
		s.AddPreExecute(func(context.Context, *tool.Call) tool.Decision { say(name + " pre"); return tool.Allow() })
		s.AddGuard(func(context.Context, *tool.Call) error { say(name + " guard"); return nil })
		s.AddExecute(func(ctx context.Context, _ *tool.Call, next func(context.Context) (any, error)) (any, error) {
			say(name + " in")
			defer say(name + " out")
			return next(ctx)
		})
		s.AddPostExecute(func(context.Context, *tool.Call, tool.Result) tool.PostDecision {
			say(name + " post")
			return tool.PostDecision{}
		})
		s.AddObserver(func(_ context.Context, _ *tool.Call, r tool.Result) {
			say(name + " saw " + text(r))
			r.Content[0] = message.Text("tampered")
		})
	}
	add("child", s)
	add("root", root)
	r := s.Execute(t.Context(), tool.CallInput{ID: "1", Name: "x", Args: "  "}, tool.ExecOptions{
		BeforeBody: func(context.Context, *tool.Call) error { say("before"); return nil },
	})
	want := []string{
		"root pre", "child pre", "root guard", "child guard", "root in", "child in", "before", "body {}",
		"child out", "root out", "render", "meta", "child post", "root post", "finalize", "root saw r!", "child saw r!",
	}
	if diff := cmp.Diff(want, trace); diff != "" {
		t.Error(diff)
	}
	if text(r) != "r!" || string(r.Meta) != `{"a":1}` || r.Value != "v" || r.IsError {
		t.Errorf("result %+v", r)
	}
}

func TestFailuresAreResultsT16(t *testing.T) {
	params := []byte(`{"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string"}},"required":["n"],"additionalProperties":false}`)
	tests := []struct {
		name   string
		change func(*tool.Definition)
		args   string
		code   string
		text   []string
	}{
		{"not JSON", func(d *tool.Definition) {}, `{"n":`, tool.CodeInvalidArgs, []string{"not valid JSON"}},
		{"not lossless JSON", func(d *tool.Definition) {}, `{"n":1,"n":2}`, tool.CodeInvalidArgs, []string{"duplicate key"}},
		{"every schema failure", func(d *tool.Definition) { d.Parameters = params }, `{"s":1,"extra":true}`,
			tool.CodeInvalidArgs, []string{"'n'", "at /s:", "'extra'"}},
		{"error with a code", body(func(context.Context, *tool.Call) (any, error) { return nil, tool.Errorf("MINE", "no luck with %d", 7) }),
			"", "MINE", []string{"Error: no luck with 7"}},
		{"plain error", body(func(context.Context, *tool.Call) (any, error) { return nil, errors.New("broken") }),
			"", tool.CodeToolFailed, []string{"Error: broken"}},
		{"panic", body(func(context.Context, *tool.Call) (any, error) { panic("ouch") }), "", tool.CodeInternal, []string{"tool x panicked: ouch"}},
		{"output breaks its schema", func(d *tool.Definition) { d.Output.Schema = []byte(`{"type":"integer"}`) },
			"", tool.CodeInvalidToolOutput, []string{"contract"}},
		{"render fails", func(d *tool.Definition) {
			d.Output.Render = func(any) ([]message.Block, error) { return nil, errors.New("cannot") }
		}, "", tool.CodeInvalidToolOutput, []string{"cannot"}},
		{"meta is not JSON", func(d *tool.Definition) {
			d.Output.Meta = func(any) ([]byte, error) { return []byte("{"), nil }
		}, "", tool.CodeInvalidToolOutput, []string{"json"}},
		{"value has no JSON", body(func(context.Context, *tool.Call) (any, error) { return func() {}, nil }),
			"", tool.CodeInvalidToolOutput, []string{"contract"}},
		{"finalize panics", func(d *tool.Definition) {
			d.Finalize = func(*tool.Call, []message.Block, bool) []message.Block { panic("late") }
		}, "", tool.CodeInternal, []string{"late"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := run(t, one(t, tt.change), "x", tt.args)
			if !r.IsError || r.Code != tt.code || r.Name == "" || r.Value != nil {
				t.Errorf("result %+v, want code %s", r, tt.code)
			}
			if !strings.HasPrefix(text(r), "Error: ") {
				t.Errorf("text %q", text(r))
			}
			for _, w := range tt.text {
				if !strings.Contains(text(r), w) {
					t.Errorf("text %q lacks %q", text(r), w)
				}
			}
		})
	}
}

func TestDefaultRendering(t *testing.T) {
	tests := []struct {
		name  string
		value any
		want  []message.Block
	}{
		{"nil", nil, []message.Block{}},
		{"string", "a<b>", []message.Block{message.Text("a<b>")}},
		{"blocks", []message.Block{message.Text("1"), message.Text("2")}, []message.Block{message.Text("1"), message.Text("2")}},
		{"anything else", map[string]any{"k": "<&>"}, []message.Block{message.Text(`{"k":"<&>"}`)}},
		{"not UTF-8", "a\xffb", []message.Block{message.Text("a\uFFFDb")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := run(t, one(t, body(func(context.Context, *tool.Call) (any, error) { return tt.value, nil })), "x", "")
			if diff := cmp.Diff(tt.want, r.Content); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestInterceptorsOnlyJudgeT10T13T14(t *testing.T) {
	var got string
	s := one(t, body(func(_ context.Context, c *tool.Call) (any, error) { got = string(c.Args); return "ok", nil }))
	s.AddPreExecute(func(_ context.Context, c *tool.Call) tool.Decision {
		copy(c.Args, `{"a":9}`)
		return tool.Allow()
	})
	if r := run(t, s, "x", `{"a":1}`); r.IsError || got != `{"a":1}` {
		t.Errorf("body saw %s, result %+v", got, r)
	}

	got = ""
	remove := s.AddGuard(func(context.Context, *tool.Call) error { return errors.New("captured already") })
	if r := run(t, s, "x", ""); r.Code != tool.CodeDenied || text(r) != "Error: not allowed: captured already" || got != "" {
		t.Errorf("guard: %+v, body saw %q", r, got)
	}
	remove()
	remove()
	deny := s.AddPreExecute(func(context.Context, *tool.Call) tool.Decision { return tool.Deny("policy") })
	s.AddPreExecute(func(context.Context, *tool.Call) tool.Decision { t.Error("asked after a deny"); return tool.Allow() })
	if r := run(t, s, "x", ""); text(r) != "Error: not allowed: policy" {
		t.Errorf("deny: %+v", r)
	}
	deny()

	for name, add := range map[string]func(*tool.Scope){
		"pre":   func(s *tool.Scope) { s.AddPreExecute(func(context.Context, *tool.Call) tool.Decision { panic(1) }) },
		"guard": func(s *tool.Scope) { s.AddGuard(func(context.Context, *tool.Call) error { panic(1) }) },
	} {
		s := one(t, body(func(context.Context, *tool.Call) (any, error) { t.Error("ran"); return nil, nil }))
		add(s)
		var fault error
		r := s.Execute(t.Context(), tool.CallInput{Name: "x"}, tool.ExecOptions{OnFault: func(err error) { fault = err }})
		if !r.IsError || r.Code != tool.CodeInternal {
			t.Errorf("panic in %s: %+v", name, r)
		}
		if pe, ok := errors.AsType[*tool.PanicError](fault); !ok || len(pe.Stack) == 0 {
			t.Errorf("panic in %s was not reported: %v", name, fault)
		}
	}
}

func TestPostExecuteT15(t *testing.T) {
	deferring := body(func(_ context.Context, c *tool.Call) (any, error) {
		c.DeferContext(message.Message{ID: "m1"})
		c.ConcludeTurn()
		return "ok", nil
	})
	extra := message.Message{ID: "m2"}
	tests := []struct {
		name   string
		post   tool.PostDecision
		change func(*tool.Definition)
		want   tool.Result
	}{
		{"accept", tool.PostDecision{}, nil,
			tool.Result{Content: []message.Block{message.Text("ok")}, Value: "ok", Contexts: []message.Message{{ID: "m1"}}, Conclude: true}},
		{"replace content, add context", tool.PostDecision{Content: []message.Block{message.Text("new")}, Contexts: []message.Message{extra}}, nil,
			tool.Result{Content: []message.Block{message.Text("new")}, Value: "ok", Contexts: []message.Message{{ID: "m1"}, extra}, Conclude: true}},
		{"replace value", tool.PostDecision{Value: "v2", HasValue: true}, nil,
			tool.Result{Content: []message.Block{message.Text("v2")}, Value: "v2", Contexts: []message.Message{{ID: "m1"}}, Conclude: true}},
		{"replaced value is validated", tool.PostDecision{Value: 7, HasValue: true},
			func(d *tool.Definition) { d.Output.Schema = []byte(`{"const":"ok"}`) },
			tool.Result{IsError: true, Code: tool.CodeInvalidToolOutput, Name: tool.NameToolError}},
		{"block", tool.Block("try again"), nil,
			tool.Result{Content: []message.Block{message.Text("Error: try again")}, IsError: true, Code: tool.CodeDenied, Name: tool.NameToolError}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := one(t, func(d *tool.Definition) {
				deferring(d)
				if tt.change != nil {
					tt.change(d)
				}
			})
			s.AddPostExecute(func(context.Context, *tool.Call, tool.Result) tool.PostDecision { return tt.post })
			r := run(t, s, "x", "")
			if tt.want.Content == nil {
				r.Content = nil
			}
			if diff := cmp.Diff(tt.want, r); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("not for a body that never started", func(t *testing.T) {
		s := one(t, deferring)
		s.AddPostExecute(func(context.Context, *tool.Call, tool.Result) tool.PostDecision {
			t.Error("asked")
			return tool.PostDecision{}
		})
		r := s.Execute(t.Context(), tool.CallInput{Name: "x"}, tool.ExecOptions{
			BeforeBody: func(context.Context, *tool.Call) error { return errors.New("lease lost") },
		})
		if r.Code != tool.CodeNotStarted || !strings.Contains(text(r), "lease lost") {
			t.Errorf("result %+v", r)
		}
	})
}

func TestCancelT17(t *testing.T) {
	start := func(ctx context.Context, s *tool.Scope) (*tool.Pending, *tool.Result) {
		return s.Prepare(ctx, tool.CallInput{ID: "1", Name: "x"}, tool.ExecOptions{})
	}
	t.Run("before the snapshot", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, r := start(ctx, one(t, body(nil2)))
		if r == nil || r.Code != tool.CodeAbortedBeforeDispatch || r.Name != tool.NameAbortError {
			t.Errorf("result %+v", r)
		}
	})
	t.Run("prepared but never started", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p, r := start(ctx, one(t, body(func(context.Context, *tool.Call) (any, error) { t.Error("ran"); return nil, nil })))
		if r != nil {
			t.Fatalf("refused: %+v", r)
		}
		cancel()
		if r := p.Run(ctx); r.Code != tool.CodeAbortedBeforeDispatch {
			t.Errorf("result %+v", r)
		}
		if r := p.Run(t.Context()); r.Code != tool.CodeInternal {
			t.Errorf("second run: %+v", r)
		}
	})
	for _, tt := range []struct {
		name string
		err  error
		code string
	}{
		{"displaces a success", nil, tool.CodeAborted},
		{"own error stays", errors.New("disk full"), tool.CodeToolFailed},
		{"own coded error stays", tool.Errorf("MINE", "disk full"), "MINE"},
		{"the cancellation itself", context.Canceled, tool.CodeAborted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			s := one(t, body(func(ctx context.Context, c *tool.Call) (any, error) {
				c.ConcludeTurn()
				cancel()
				<-ctx.Done()
				return "done", tt.err
			}))
			p, r := start(ctx, s)
			if r != nil {
				t.Fatalf("refused: %+v", r)
			}
			if r := p.Run(ctx); r.Code != tt.code || r.Conclude || r.Value != nil {
				t.Errorf("result %+v, want code %s", r, tt.code)
			}
		})
	}
	t.Run("during post-execute", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := one(t, body(nil2))
		s.AddPostExecute(func(context.Context, *tool.Call, tool.Result) tool.PostDecision {
			cancel()
			return tool.PostDecision{}
		})
		var seen []string
		s.AddObserver(func(_ context.Context, _ *tool.Call, r tool.Result) { seen = append(seen, r.Code) })
		r := s.Execute(ctx, tool.CallInput{Name: "x"}, tool.ExecOptions{})
		if r.Code != tool.CodeAborted || !slices.Equal(seen, []string{tool.CodeAborted}) {
			t.Errorf("result %+v, observers saw %v", r, seen)
		}
	})
}

func nil2(context.Context, *tool.Call) (any, error) { return "ok", nil }

func TestExecuteHooksT12(t *testing.T) {
	type key struct{}
	t.Run("substituted context is fused with the caller's", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("user")
		s := one(t, body(func(ctx context.Context, _ *tool.Call) (any, error) {
			if ctx.Value(key{}) != "mine" {
				t.Error("the substituted context is lost")
			}
			cancel(why)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), why) {
				t.Errorf("cause %v", context.Cause(ctx))
			}
			return nil, ctx.Err()
		}))
		s.AddExecute(func(ctx context.Context, _ *tool.Call, next func(context.Context) (any, error)) (any, error) {
			return next(context.WithValue(context.WithoutCancel(ctx), key{}, "mine"))
		})
		if r := s.Execute(ctx, tool.CallInput{Name: "x"}, tool.ExecOptions{}); r.Code != tool.CodeAborted {
			t.Errorf("result %+v", r)
		}
	})
	t.Run("a body that a hook abandons is awaited", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ended := false
			s := one(t, body(func(context.Context, *tool.Call) (any, error) {
				time.Sleep(time.Minute)
				ended = true
				return "late", nil
			}))
			s.AddExecute(func(ctx context.Context, _ *tool.Call, next func(context.Context) (any, error)) (any, error) {
				begun := make(chan struct{})
				go func() {
					close(begun)
					_, _ = next(ctx)
				}()
				<-begun
				synctest.Wait()
				return "early", nil
			})
			r := run(t, s, "x", "")
			if !ended || text(r) != "early" {
				t.Errorf("ended %v, result %+v", ended, r)
			}
		})
	})
	t.Run("the body runs at most once", func(t *testing.T) {
		n := 0
		s := one(t, body(func(context.Context, *tool.Call) (any, error) { n++; return "ok", nil }))
		var second error
		s.AddExecute(func(ctx context.Context, _ *tool.Call, next func(context.Context) (any, error)) (any, error) {
			v, err := next(ctx)
			_, second = next(ctx)
			return v, err
		})
		if r := run(t, s, "x", ""); n != 1 || second == nil || r.IsError {
			t.Errorf("ran %d times, second: %v, result %+v", n, second, r)
		}
	})
	t.Run("panic", func(t *testing.T) {
		s := one(t, body(nil2))
		s.AddExecute(func(context.Context, *tool.Call, func(context.Context) (any, error)) (any, error) { panic("no") })
		if r := run(t, s, "x", ""); r.Code != tool.CodeInternal {
			t.Errorf("result %+v", r)
		}
	})
}

func TestTimeoutT20(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name string
			err  func(ctx context.Context) error
			code string
		}{
			{"cooperative", func(ctx context.Context) error { return ctx.Err() }, tool.CodeTimeout},
			{"success comes too late", func(context.Context) error { return nil }, tool.CodeTimeout},
			{"own error stays", func(context.Context) error { return errors.New("mine") }, tool.CodeToolFailed},
		} {
			s := one(t, func(d *tool.Definition) {
				d.Timeout = 2 * time.Second
				d.Execute = func(ctx context.Context, _ *tool.Call) (any, error) {
					<-ctx.Done()
					return "late", tt.err(ctx)
				}
			})
			begin := time.Now()
			r := run(t, s, "x", "")
			if r.Code != tt.code || time.Since(begin) != 2*time.Second {
				t.Errorf("%s: after %v: %+v", tt.name, time.Since(begin), r)
			}
		}
	})
}

func TestConcludeAndContextsT18T19(t *testing.T) {
	var leaked *tool.Call
	s := one(t, body(func(_ context.Context, c *tool.Call) (any, error) {
		leaked = c
		c.DeferContext(message.Message{ID: "a"})
		c.DeferContext(message.Message{ID: "b"})
		c.ConcludeTurn()
		c.SetMeta([]byte(`{"settled": "id"}`))
		return nil, errors.New("failed")
	}))
	r := run(t, s, "x", "")
	if r.Conclude || r.Contexts != nil || string(r.Meta) != `{"settled":"id"}` {
		t.Errorf("failed call: %+v", r)
	}
	leaked.ConcludeTurn() // must not race or take effect
}

// P41: a meta that vouches for what the model reads is there exactly if the model reads what
// the body returned; any other meta is there all the same, but behind a block.
func TestOutcomeMeta(t *testing.T) {
	const vouches = `{"outcome":1}`
	post := func(d tool.PostDecision) func(*tool.Scope) {
		return func(s *tool.Scope) {
			s.AddPostExecute(func(context.Context, *tool.Call, tool.Result) tool.PostDecision { return d })
		}
	}
	around := func(fn func(v any, err error) (any, error)) func(*tool.Scope) {
		return func(s *tool.Scope) {
			s.AddExecute(func(ctx context.Context, _ *tool.Call, next func(context.Context) (any, error)) (any, error) {
				return fn(next(ctx))
			})
		}
	}
	blocks := []message.Block{message.Text("b")}
	failure := errors.New("failed")
	for _, c := range []struct {
		name  string
		value any
		err   error
		hook  func(*tool.Scope)
		kept  bool
		plain bool // what SetMeta gave is kept
	}{
		{"a value", "v", nil, nil, true, true},
		{"blocks", blocks, nil, nil, true, true},
		{"an error", nil, failure, nil, true, true},
		{"a wrapper that passes it on", "v", nil, around(func(v any, err error) (any, error) { return v, err }), true, true},
		{"a wrapper that passes the error on", nil, failure, around(func(v any, err error) (any, error) { return v, err }), true, true},
		{"a wrapper that passes blocks on", blocks, nil, around(func(v any, err error) (any, error) { return v, err }), false, true},
		{"a wrapper with another value", "v", nil, around(func(any, error) (any, error) { return "w", nil }), false, true},
		{"a wrapper that fails", "v", nil, around(func(any, error) (any, error) { return nil, failure }), false, true},
		{"a wrapper that makes good", nil, failure, around(func(any, error) (any, error) { return "w", nil }), false, true},
		{"a value that breaks the contract", 1, nil, nil, false, true},
		{"another text", "v", nil, post(tool.PostDecision{Content: blocks}), false, true},
		{"another text of an error", nil, failure, post(tool.PostDecision{Content: blocks}), false, true},
		{"another value", "v", nil, post(tool.PostDecision{Value: "w", HasValue: true}), false, false},
		{"blocked", "v", nil, post(tool.Block("no")), false, false},
	} {
		for plain, set := range map[bool]func(*tool.Call, []byte){true: (*tool.Call).SetMeta, false: (*tool.Call).SetOutcomeMeta} {
			s := one(t, func(d *tool.Definition) {
				d.Execute = func(_ context.Context, call *tool.Call) (any, error) {
					set(call, []byte(vouches))
					return c.value, c.err
				}
				d.Output.Schema = []byte(`{"type":["string","array"]}`)
			})
			if c.hook != nil {
				c.hook(s)
			}
			r := s.Execute(t.Context(), tool.CallInput{ID: "c", Name: "x"}, tool.ExecOptions{})
			want := c.kept
			if plain {
				want = c.plain
			}
			if got := string(r.Meta) == vouches; got != want {
				t.Errorf("%s, plain %v: meta = %q, text %q", c.name, plain, r.Meta, message.JoinText(r.Content))
			}
		}
	}
}

// P41, T17, T20: nor does it come with an end that displaced what the body returned.
func TestOutcomeMetaDisplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		end := cancel
		s := one(t, func(d *tool.Definition) {
			d.Timeout = time.Second
			d.Execute = func(ctx context.Context, call *tool.Call) (any, error) {
				call.SetOutcomeMeta([]byte(`{"outcome":1}`))
				end()
				<-ctx.Done()
				return "v", nil
			}
		})
		if r := s.Execute(ctx, tool.CallInput{ID: "c", Name: "x"}, tool.ExecOptions{}); r.Code != tool.CodeAborted || r.Meta != nil {
			t.Errorf("cancelled: %s, meta %s", r.Code, r.Meta)
		}
		end = func() {}
		if r := s.Execute(t.Context(), tool.CallInput{ID: "c", Name: "x"}, tool.ExecOptions{}); r.Code != tool.CodeTimeout || r.Meta != nil {
			t.Errorf("late: %s, meta %s", r.Code, r.Meta)
		}
	})
}

func TestObserversAreContainedT21(t *testing.T) {
	s := one(t, body(nil2))
	s.AddObserver(func(context.Context, *tool.Call, tool.Result) { panic("observer") })
	var codes []string
	s.AddObserver(func(_ context.Context, _ *tool.Call, r tool.Result) { codes = append(codes, r.Code) })
	var faults []error
	opts := tool.ExecOptions{OnFault: func(err error) { faults = append(faults, err); panic("handler") }}
	if r := s.Execute(t.Context(), tool.CallInput{Name: "x"}, opts); r.IsError {
		t.Errorf("result %+v", r)
	}
	if r := s.Execute(t.Context(), tool.CallInput{Name: "y"}, opts); r.Code != tool.CodeUnknownTool {
		t.Errorf("result %+v", r)
	}
	if !slices.Equal(codes, []string{"", tool.CodeUnknownTool}) || len(faults) != 2 {
		t.Errorf("codes %v, faults %v", codes, faults)
	}
}

func TestPreparedCallKeepsItsToolT33(t *testing.T) {
	root := tool.New().Root()
	s := root.Child()
	unregister, err := s.Register(def("x"))
	if err != nil {
		t.Fatal(err)
	}
	p, refused := s.Prepare(t.Context(), tool.CallInput{Name: "x"}, tool.ExecOptions{})
	if refused != nil {
		t.Fatalf("refused: %+v", refused)
	}
	s.AddGuard(func(context.Context, *tool.Call) error { return errors.New("too late") })
	unregister()
	s.Close()
	if r := p.Run(t.Context()); text(r) != "x" {
		t.Errorf("result %+v", r)
	}
}

func TestConcurrencySafe(t *testing.T) {
	for _, tt := range []struct {
		name string
		fn   func([]byte) bool
		want bool
	}{
		{"nil is never", nil, false},
		{"by arguments", func(a []byte) bool { return string(a) == "{}" }, true},
		{"panic is no", func([]byte) bool { panic(1) }, false},
	} {
		s := one(t, func(d *tool.Definition) { d.ConcurrencySafe = tt.fn })
		p, refused := s.Prepare(t.Context(), tool.CallInput{Name: "x"}, tool.ExecOptions{})
		if refused != nil {
			t.Fatal(refused)
		}
		if got := p.ConcurrencySafe(); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

func BenchmarkExecute(b *testing.B) {
	s := tool.New().Root()
	d := def("x")
	d.Parameters = []byte(`{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}`)
	if _, err := s.Register(d); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if r := s.Execute(b.Context(), tool.CallInput{Name: "x", Args: `{"path":"go.mod"}`}, tool.ExecOptions{}); r.IsError {
			b.Fatal(r)
		}
	}
}
