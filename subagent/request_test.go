package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

func ptr[T any](v T) *T { return &v }

const objectSchema = `{"type":"object","properties":{"n":{"type":"integer"}}}`

// fields set the guarded fields of a request in the order in which they are
// checked. All of them are present and as empty as they may be (CAP-03).
var fields = []struct {
	name string
	cap  func(*subagent.Capabilities) *bool
	set  func(*subagent.Request)
}{
	{"outputSchema", func(c *subagent.Capabilities) *bool { return &c.OutputSchema }, func(r *subagent.Request) { r.OutputSchema = []byte(objectSchema) }},
	{"depthLimit", func(c *subagent.Capabilities) *bool { return &c.DepthLimit }, func(r *subagent.Request) { r.MaxDepth = ptr(int64(1)) }},
	{"toolFilter", func(c *subagent.Capabilities) *bool { return &c.ToolFilter }, func(r *subagent.Request) { r.ToolFilter = &session.ToolFilter{Allow: []string{}} }},
	{"persona", func(c *subagent.Capabilities) *bool { return &c.Persona }, func(r *subagent.Request) { r.Persona = &subagent.Persona{} }},
}

// CAP-01…04, CAP-13: all sixteen providers against all sixteen requests.
func TestCapabilities(t *testing.T) {
	for have := range 16 {
		t.Run(fmt.Sprintf("CAP-01 CAP-02 CAP-04 provider %04b", have), func(t *testing.T) {
			in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
				p := &subagenttest.Scripted{}
				for i, f := range fields {
					*f.cap(&p.Caps) = have&(1<<i) != 0
				}
				s.Register(t, p)
				parent := s.Parent(t)
				for need := range 16 {
					req := subagenttest.Request(parent, "x")
					req.Label, req.Model = ptr("label"), subagent.Model{Model: "other"} // CAP-13
					missing := ""
					for i, f := range fields {
						if need&(1<<i) == 0 {
							continue
						}
						f.set(&req)
						if have&(1<<i) == 0 && missing == "" {
							missing = f.name
						}
					}
					synctest.Wait() // the end of the run before was told
					calls, edges := len(p.Starts()), len(s.Lifecycle.Edges())
					run, err := s.Service.Start(t.Context(), "scripted", req)
					if missing == "" {
						if err != nil {
							t.Errorf("request %04b: %v", need, err)
							continue
						}
						subagenttest.Await(t, run)
						continue
					}
					wantCode(t, err, subagent.CodeUnsupportedCapability)
					if err != nil && (!strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), `"scripted"`)) {
						t.Errorf("request %04b: %q names not the provider and %s", need, err, missing)
					}
					if len(p.Starts()) != calls || len(s.Lifecycle.Edges()) != edges {
						t.Errorf("request %04b: the provider was called or an event told", need)
					}
				}
			})
		})
	}
}

// CAP-03: presence counts, not truth.
func TestCAP03Presence(t *testing.T) {
	for name, set := range map[string]func(*subagent.Request){
		"outputSchema": func(r *subagent.Request) { r.OutputSchema = []byte{} },
		"depthLimit":   func(r *subagent.Request) { r.MaxDepth = ptr(int64(0)) },
		"toolFilter":   func(r *subagent.Request) { r.ToolFilter = &session.ToolFilter{} },
		"persona":      func(r *subagent.Request) { r.Persona = &subagent.Persona{} },
	} {
		in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
			s.Register(t, &subagenttest.Scripted{})
			req := subagenttest.Request(s.Parent(t), "x")
			set(&req)
			_, err := s.Service.Start(t.Context(), "scripted", req)
			wantCode(t, err, subagent.CodeUnsupportedCapability)
			if err != nil && !strings.Contains(err.Error(), name) {
				t.Errorf("%q does not name %s", err, name)
			}
		})
	}
}

// REQ-01…04, REQ-15, CAP-05, P03: what is refused, and which fault is told first.
// Each row has every fault of the rows below it too.
func TestREQ01Order(t *testing.T) {
	in(t, subagenttest.Options{MaxDepth: ptr(int64(0)), MaxChildren: 1}, func(t *testing.T, s *subagenttest.System) {
		p := &subagenttest.Scripted{Caps: subagent.Capabilities{OutputSchema: true, DepthLimit: true, ToolFilter: true, Persona: true}}
		s.Register(t, p)
		s.Register(t, &subagenttest.Scripted{ProviderName: "poor"})
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stop")
		cancel(stop)
		req := subagent.Request{
			MaxDepth: ptr(int64(-1)), OutputSchema: []byte(`{"type":"array"}`), ToolFilter: &session.ToolFilter{}, Label: ptr("bad \xff"),
		}
		parent := s.Parent(t)
		steps := []struct {
			name     string
			provider string
			repair   func()
			check    func(error)
		}{
			{"REQ-15 the parent", "unknown", nil, func(err error) { wantCode(t, err, subagent.CodeInvalidRequest) }},
			{"CAP-05 the provider", "unknown", func() { req.Parent = parent }, func(err error) { wantCode(t, err, subagent.CodeNoProvider) }},
			{"capabilities", "poor", nil, func(err error) { wantCode(t, err, subagent.CodeUnsupportedCapability) }},
			{"REQ-02 the cap's domain", "scripted", nil, func(err error) {
				var de *subagent.DepthTypeError
				if !errors.As(err, &de) || de.Value != -1 {
					t.Errorf("error = %v, want a DepthTypeError", err)
				}
			}},
			{"REQ-03 the schema", "scripted", func() { req.MaxDepth = ptr(int64(1)) }, func(err error) { wantCode(t, err, subagent.CodeUnsupportedSchema) }},
			{"COMP-13 the filter", "scripted", func() { req.OutputSchema = []byte(objectSchema) }, func(err error) { wantCode(t, err, subagent.CodeInvalidRequest) }},
			{"the prompt", "scripted", func() { req.ToolFilter.Deny = []string{} }, func(err error) { wantCode(t, err, subagent.CodeInvalidRequest) }},
			{"DES-10 the descriptor", "scripted", func() { req.Prompt = text("x") }, func(err error) { wantCode(t, err, subagent.CodeInvalidRequest) }},
			{"CAN-01 the ctx", "scripted", func() { req.Label = nil }, func(err error) {
				if !errors.Is(err, stop) {
					t.Errorf("error = %v, want the cause", err)
				}
			}},
			{"P35 the deployment's depth", "scripted", func() { ctx = t.Context() }, func(err error) { wantCode(t, err, subagent.CodeLimitReached) }},
		}
		for _, step := range steps {
			t.Log(step.name)
			if step.repair != nil {
				step.repair()
			}
			_, err := s.Service.Start(ctx, step.provider, req)
			step.check(err)
		}
		if len(p.Starts()) != 0 || len(s.Lifecycle.Edges()) != 0 {
			t.Error("the provider was called, or an event told")
		}
	})
}

// REQ-02, P35: the domain of the cap. What is no integer cannot be said in Go.
func TestREQ02CapDomain(t *testing.T) {
	const maxSafe = 1<<53 - 1
	for _, c := range []struct {
		limit *int64
		ok    bool
	}{{nil, true}, {ptr(int64(0)), true}, {ptr(int64(1)), true}, {ptr(int64(maxSafe)), true}, {ptr(int64(-1)), false}, {ptr(int64(maxSafe + 1)), false}, {ptr(int64(math.MinInt64)), false}, {ptr(int64(math.MaxInt64)), false}} {
		in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
			// The provider takes the cap and leaves it alone.
			s.Register(t, &capped{&subagenttest.Scripted{}})
			req := subagenttest.Request(s.Parent(t), "x")
			req.MaxDepth = c.limit
			run, err := s.Service.Start(t.Context(), "scripted", req)
			if (err == nil) != c.ok {
				t.Errorf("cap %v: %v, want ok %v", c.limit, err, c.ok)
			}
			if err == nil {
				subagenttest.Await(t, run)
			}
			_, err = subagent.New(t.Context(), subagent.Config{Agents: s.Agents, MaxDepth: c.limit})
			if (err == nil) != c.ok {
				t.Errorf("deployment bound %v: %v, want ok %v", c.limit, err, c.ok)
			}
		})
	}
}

type capped struct{ *subagenttest.Scripted }

func (capped) Capabilities() subagent.Capabilities { return subagent.Capabilities{DepthLimit: true} }

// REQ-03, REQ-04.
func TestREQ03Schema(t *testing.T) {
	for schema, ok := range map[string]bool{
		objectSchema: true, `{"type":"object"}`: true,
		``: false, `null`: false, `true`: false, `{"type":"array"}`: false, `{}`: false, `{"type":"object","x":NaN}`: false,
		`{"type":"object","properties":{"a":{"$ref":"file:///etc/passwd"}}}`: false,
	} {
		in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
			p := &subagenttest.Scripted{Caps: subagent.Capabilities{OutputSchema: true}}
			s.Register(t, p)
			req := subagenttest.Request(s.Parent(t), "x")
			req.OutputSchema = []byte(schema)
			run, err := s.Service.Start(t.Context(), "scripted", req)
			if ok {
				if err != nil {
					t.Fatalf("%s: %v", schema, err)
				}
				if res := subagenttest.Await(t, run); res.Structured == nil {
					t.Error("FIX-02: no structured value")
				}
				return
			}
			wantCode(t, err, subagent.CodeUnsupportedSchema)
			if len(p.Starts()) != 0 {
				t.Error("the provider was called")
			}
		})
	}
}

// REQ-05, REQ-06, REQ-13, REQ-14, SO-28, DES-06, DES-11: what the provider gets.
func TestResolvedRequest(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		hold := make(chan struct{})
		p := &subagenttest.Scripted{
			Caps: subagent.Capabilities{OutputSchema: true, DepthLimit: true, ToolFilter: true, Persona: true},
			Play: func(*subagent.ResolvedRequest) subagenttest.Play { return subagenttest.Play{Hold: hold} },
		}
		s.Register(t, p)
		parent := s.Parent(t)
		build := func() subagent.Request {
			return subagent.Request{
				Parent: parent, Label: ptr("label"), OutputSchema: []byte(objectSchema), MaxDepth: ptr(int64(2)),
				Prompt:     []message.Block{message.Text("one"), {Type: "x-new", Raw: []byte(`{"type":"x-new"}`)}, message.ToolResult("c", text("two"), false)},
				ToolFilter: &session.ToolFilter{Allow: []string{}, Deny: []string{"a"}}, Persona: &subagent.Persona{Text: "p"},
				Model: subagent.Model{Model: "m"},
			}
		}
		req := build()
		run := s.Start(t, t.Context(), "scripted", req)
		// The caller reuses everything that it gave.
		*req.Label, *req.MaxDepth, *req.Persona = "other", 9, subagent.Persona{Text: "other", Literal: true}
		req.OutputSchema[0], req.Prompt[0], req.Prompt[1].Raw[2], req.Prompt[2].Content[0] = 'X', message.Text("other"), 'X', message.Text("other")
		req.ToolFilter.Deny[0], req.ToolFilter.Allow = "other", nil
		got := p.Starts()[0]
		byPointer := cmp.Comparer(func(a, b *agent.Agent) bool { return a == b })
		if diff := cmp.Diff(build(), got.Request, byPointer); diff != "" {
			t.Errorf("the provider sees what the caller changed afterwards:\n%s", diff)
		}
		d := got.Descriptor.Descriptor
		if diff := cmp.Diff(session.Descriptor{Version: 2, Mode: session.ModeOneShot, Provider: "scripted", Label: ptr("label")}, d); diff != "" {
			t.Errorf("descriptor:\n%s", diff)
		}
		close(hold)
		subagenttest.Await(t, run)

		subagenttest.Await(t, s.Start(t, t.Context(), "scripted", subagenttest.Request(parent, "x")))
		d = p.Starts()[1].Descriptor.Descriptor
		if got, want := string(d.AppendJSON(nil)), `{"version":2,"mode":"one-shot","provider":"scripted"}`; got != want {
			t.Errorf("DES-06: descriptor = %s, want %s", got, want)
		}
	})
}

// REQ-08, EVT-07: a failed start is passed on as it is, with no event.
func TestREQ08StartFails(t *testing.T) {
	failed := errors.New("no transport")
	for name, publishing := range map[string]func(context.Context) error{
		"error": func(context.Context) error { return failed },
		"panic": func(context.Context) error { panic(failed.Error()) },
	} {
		in(t, subagenttest.Options{MaxChildren: 1}, func(t *testing.T, s *subagenttest.System) {
			s.Register(t, &subagenttest.Scripted{Publishing: publishing})
			parent := s.Parent(t)
			for range 2 { // a failed start takes no place
				_, err := s.Service.Start(t.Context(), "scripted", subagenttest.Request(parent, "x"))
				if name == "error" && err != failed { //nolint:errorlint // the very error is passed on
					t.Errorf("Start = %v, want the provider's error unchanged", err)
				}
				if err == nil || !strings.Contains(err.Error(), failed.Error()) {
					t.Errorf("Start = %v", err)
				}
			}
			if len(s.Lifecycle.Edges()) != 0 {
				t.Error("an event was told")
			}
		})
	}
}

// A provider that returns neither a run nor an error broke its contract.
func TestNoRun(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, absent{&subagenttest.Scripted{}})
		if _, err := s.Service.Start(t.Context(), "scripted", subagenttest.Request(s.Parent(t), "x")); err == nil {
			t.Error("Start succeeded without a run")
		}
	})
}

type absent struct{ *subagenttest.Scripted }

func (absent) Start(context.Context, *subagent.ResolvedRequest) (subagent.Run, error) {
	return nil, nil
}

// ERR-01, ERR-02: every code, its spelling, and deciding by it.
func TestERR02Codes(t *testing.T) {
	codes := strings.Fields(`DUPLICATE_PROVIDER NO_PROVIDER UNSUPPORTED_CAPABILITY CONTINUATION_UNAVAILABLE PERSISTENCE_UNAVAILABLE
		DUPLICATE_CHILD NOT_RESUMABLE UNAUTHORIZED ACTIVATION_CLOSING DRAINING PARENT_UNAVAILABLE ACTIVATION_TEARDOWN_FAILED
		ACTIVATION_SETUP_REVOKED ACTIVATION_SETUP_RELEASE_FAILED CANCELLED SUBAGENT_CONTROL_PROJECTIONS_UNAVAILABLE
		SUBAGENT_CONTROL_SESSION_STORE_UNAVAILABLE OWNED_ELSEWHERE OWNERSHIP_CONFLICT`)
	have := []subagent.Code{
		subagent.CodeDuplicateProvider, subagent.CodeNoProvider, subagent.CodeUnsupportedCapability, subagent.CodeContinuationUnavailable,
		subagent.CodePersistenceUnavailable, subagent.CodeDuplicateChild, subagent.CodeNotResumable, subagent.CodeUnauthorized,
		subagent.CodeActivationClosing, subagent.CodeDraining, subagent.CodeParentUnavailable, subagent.CodeActivationTeardownFailed,
		subagent.CodeActivationSetupRevoked, subagent.CodeActivationReleaseFailed, subagent.CodeCancelled, subagent.CodeProjectionsUnavailable,
		subagent.CodeSessionStoreUnavailable, subagent.CodeOwnedElsewhere, subagent.CodeOwnershipConflict,
	}
	for i, code := range have {
		if string(code) != codes[i] {
			t.Errorf("code %d is %s, want %s", i, code, codes[i])
		}
	}
	cause := errors.New("cause")
	for _, c := range []struct {
		err  *subagent.Error
		want string
	}{
		{&subagent.Error{Code: subagent.CodeNoProvider}, "NO_PROVIDER"},
		{&subagent.Error{Code: subagent.CodeNoProvider, Msg: "what"}, "what"},
		{&subagent.Error{Code: subagent.CodeNoProvider, Err: cause}, "cause"},
		{&subagent.Error{Code: subagent.CodeNoProvider, Msg: "what", Err: cause}, "what: cause"},
	} {
		wrapped := fmt.Errorf("outer: %w", c.err)
		if c.err.Error() != c.want || !errors.Is(wrapped, subagent.ErrNoProvider) || errors.Is(wrapped, subagent.ErrDraining) || errors.Is(wrapped, cause) != (c.err.Err != nil) {
			t.Errorf("%q: text, code or cause do not come through", c.err)
		}
	}
}
