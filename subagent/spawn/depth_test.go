package spawn_test

import (
	"errors"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

const maxSafe = 1<<53 - 1

// DEP-01…09, P35, ERR-03: the depth of a child from what is known of its parent.
func TestDepth(t *testing.T) {
	for _, c := range []struct {
		name   string
		header int64
		option *int64
		limit  *int64
		want   int64 // the child's depth; 0: refused
		err    any   // a pointer to the type of the refusal
	}{
		{name: "DEP-01 a top-level parent", want: 1},
		{name: "DEP-02 the header counts", header: 2, want: 3},
		{name: "DEP-04 the option deepens", option: ptr(int64(4)), want: 5},
		{name: "DEP-04 the option never lowers", header: 2, option: ptr(int64(1)), want: 3},
		{name: "DEP-06 a cap is inclusive", header: 1, limit: ptr(int64(2)), want: 2},
		{name: "DEP-06 a cap of 0", limit: ptr(int64(0)), err: new(*subagent.DepthError)},
		{name: "DEP-06 beyond the cap", header: 2, limit: ptr(int64(2)), err: new(*subagent.DepthError)},
		{name: "DEP-07 a negative option", option: ptr(int64(-1)), err: new(*subagent.DepthTypeError)},
		{name: "DEP-07 an unsafe option", option: ptr(int64(maxSafe + 1)), limit: ptr(int64(9)), err: new(*subagent.DepthTypeError)},
		{name: "DEP-08 no deeper depth exists", header: maxSafe, err: new(*subagent.DepthRangeError)},
		{name: "DEP-08 no deeper depth exists, by option", option: ptr(int64(maxSafe)), err: new(*subagent.DepthRangeError)},
		{name: "the deepest there is", header: maxSafe - 1, want: maxSafe},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
				o := subagenttest.ParentOptions()
				o.Depth = c.option
				parent := s.NewAgent(t, agent.Create{Session: session.New{DelegationDepth: c.header}, Options: o})
				s.Sessions.AddHooks(session.Hooks{Created: func(l *session.Session) error {
					if c.want == 0 {
						t.Error("DEP-09: a session was announced")
					}
					return nil
				}})
				s.Answer("hello", say("hi"))
				req := subagenttest.Request(parent, "hello")
				req.MaxDepth = c.limit
				run, err := s.Service.Start(t.Context(), "spawn", req)
				if c.want == 0 {
					if err == nil || !errors.As(err, c.err) {
						t.Errorf("Start = %v (%T), want a %T", err, err, c.err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				a := child(t, run)
				if h, o := a.Session().Header().DelegationDepth, a.Options().Depth; h != c.want || o == nil || *o != c.want {
					t.Errorf("DEP-03: header %d, option %v, want %d in both", h, o, c.want)
				}
				subagenttest.Await(t, run)
			})
		})
	}
}

func TestERR03DepthError(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		parent := s.NewAgent(t, agent.Create{Session: session.New{DelegationDepth: 5}, Options: subagenttest.ParentOptions()})
		req := subagenttest.Request(parent, "hello")
		req.MaxDepth = ptr(int64(3))
		_, err := s.Service.Start(t.Context(), "spawn", req)
		var de *subagent.DepthError
		if !errors.As(err, &de) || de.Depth != 6 || de.Cap != 3 {
			t.Errorf("Start = %v, want depth 6 and cap 3", err)
		}
	})
}

// DEP-05, DEP-11: a resumed agent counts from its header, whatever its options say.
func TestDEP05Resumed(t *testing.T) {
	store := memory.New()
	in(t, subagenttest.Options{Store: store}, func(t *testing.T, s *subagenttest.System) {
		h, err := s.Agents.Create(t.Context(), agent.Create{Session: session.New{DelegationDepth: 1}, Options: subagenttest.ParentOptions()})
		if err != nil {
			t.Fatal(err)
		}
		s.Answer("hello", say("hi"))
		if err := h.Agent().Followup(agent.UserText("hello")); err != nil {
			t.Fatal(err)
		}
		if err := h.Agent().WhenIdle(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		h, err = s.Agents.Resume(t.Context(), agent.Resume{ID: h.Agent().ID(), Options: subagenttest.ParentOptions()})
		if err != nil {
			t.Fatal(err)
		}
		req := subagenttest.Request(h.Agent(), "hello")
		req.MaxDepth = ptr(int64(1))
		var de *subagent.DepthError
		if _, err := s.Service.Start(t.Context(), "spawn", req); !errors.As(err, &de) || de.Depth != 2 {
			t.Errorf("Start = %v, want depth 2 refused", err)
		}
	})
}
