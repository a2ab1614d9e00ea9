package subagent_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// in runs a test in a bubble with a system.
func in(t *testing.T, o subagenttest.Options, fn func(t *testing.T, s *subagenttest.System)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fn(t, subagenttest.NewSystem(t, o)) })
}

func wantCode(t *testing.T, err error, code subagent.Code) {
	t.Helper()
	var se *subagent.Error
	if !errors.As(err, &se) || se.Code != code || !errors.Is(err, &subagent.Error{Code: code}) {
		t.Errorf("error = %v, want code %s", err, code)
	}
}

// REG-01, REG-02, REG-03, REG-07, REG-21, REG-23.
func TestRegister(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		a, b := &subagenttest.Scripted{ProviderName: "a"}, &subagenttest.Scripted{ProviderName: "b"}
		if p, ok := s.Service.Provider("a"); ok || p != nil {
			t.Errorf("REG-03: an unknown name resolves to %v", p)
		}
		removeB := s.Register(t, b)
		removeA := s.Register(t, a)
		if got, ok := s.Service.Provider("a"); !ok || got != subagent.Provider(a) {
			t.Error("REG-01: the lookup does not return the registered object")
		}
		names := s.Service.Providers()
		if diff := cmp.Diff([]string{"b", "a"}, names); diff != "" {
			t.Errorf("REG-02: names, want those in order of registration:\n%s", diff)
		}
		names[0] = "changed"
		if s.Service.Providers()[0] != "b" {
			t.Error("REG-02: the list is not detached")
		}
		removeB()
		replacement := s.Register(t, b)
		removeB() // the second time, it must not hit the new registration
		if _, ok := s.Service.Provider("b"); !ok {
			t.Error("REG-21: a second removal took a later registration away")
		}
		replacement()
		removeA()
		if len(s.Service.Providers()) != 0 {
			t.Error("REG-07: providers are left")
		}
	})
}

// REG-05, REG-20.
func TestRegisterRefused(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		first := &subagenttest.Scripted{ProviderName: "p"}
		s.Register(t, first)
		_, err := s.Service.Register(&subagenttest.Scripted{ProviderName: "p"})
		wantCode(t, err, subagent.CodeDuplicateProvider)
		if got, _ := s.Service.Provider("p"); got != subagent.Provider(first) {
			t.Error("the first registration was replaced")
		}
		_, err = s.Service.Register(unnamed{first})
		wantCode(t, err, subagent.CodeInvalidRequest)
		_, err = s.Service.Register(nil)
		wantCode(t, err, subagent.CodeInvalidRequest)
	})
}

type unnamed struct{ *subagenttest.Scripted }

func (unnamed) Name() string { return "" }

// renamed reports another name once it is registered (REG-06).
type renamed struct {
	*subagenttest.Scripted
	name string
}

func (r *renamed) Name() string { return r.name }

func TestREG06KeyIsTheNameAtRegistration(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		p := &renamed{Scripted: &subagenttest.Scripted{}, name: "before"}
		remove := s.Register(t, p)
		p.name = "after"
		if _, ok := s.Service.Provider("after"); ok {
			t.Error("the new name resolves")
		}
		remove()
		if _, ok := s.Service.Provider("before"); ok {
			t.Error("the removal missed the name at registration")
		}
	})
}

// REG-09…13: what hooks are told, and when.
func TestRegisterHooks(t *testing.T) {
	var log bytes.Buffer
	in(t, subagenttest.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, s *subagenttest.System) {
		var told []string
		note := func(who string) subagent.Hooks {
			return subagent.Hooks{
				ProviderAdded: func(p subagent.Provider) error {
					got, ok := s.Service.Provider(p.Name())
					if !ok || got != p {
						t.Error("REG-09: told before it resolves, or told another object")
					}
					told = append(told, who+" +"+p.Name())
					return nil
				},
				ProviderRemoved: func(name string) {
					if _, ok := s.Service.Provider(name); ok {
						t.Error("REG-12: told while it resolves")
					}
					told = append(told, who+" -"+name)
				},
			}
		}
		s.Service.AddHooks(note("one"), nil)
		s.Service.AddHooks(subagent.Hooks{ProviderRemoved: func(string) { panic("one") }}, nil)
		s.Service.AddHooks(subagent.Hooks{ProviderRemoved: func(string) { panic(unprintable{}) }}, nil)
		removeTwo := s.Service.AddHooks(note("two"), nil)
		s.Service.AddHooks(note("of a parent"), s.Parent(t)) // sees no providers
		remove := s.Register(t, &subagenttest.Scripted{ProviderName: "p"})
		remove()
		removeTwo()
		removeTwo()
		s.Register(t, &subagenttest.Scripted{ProviderName: "q"})
		want := []string{"one +p", "two +p", "one -p", "two -p", "one +q"}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("told:\n%s", diff)
		}
		if n := strings.Count(log.String(), "subagent hook failed"); n != 2 {
			t.Errorf("REG-13: %d failures were logged, want 2:\n%s", n, log.String())
		}
	})
}

// unprintable is a panic value that cannot be rendered.
type unprintable struct{}

func (unprintable) String() string { panic("no text") }

// REG-10, REG-11: a failing hook undoes the registration through the ordinary path.
func TestRegisterVeto(t *testing.T) {
	veto := errors.New("not this one")
	for name, fail := range map[string]func() error{
		"error": func() error { return veto },
		"panic": func() error { panic(veto.Error()) },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
				var removed []string
				s.Service.AddHooks(subagent.Hooks{ProviderRemoved: func(n string) { removed = append(removed, n) }}, nil)
				removeVeto := s.Service.AddHooks(subagent.Hooks{ProviderAdded: func(subagent.Provider) error { return fail() }}, nil)
				_, err := s.Service.Register(&subagenttest.Scripted{})
				if err == nil || !strings.Contains(err.Error(), veto.Error()) || name == "error" && !errors.Is(err, veto) {
					t.Errorf("Register = %v, want the veto", err)
				}
				if _, ok := s.Service.Provider("scripted"); ok {
					t.Error("the provider is still registered")
				}
				if diff := cmp.Diff([]string{"scripted"}, removed); diff != "" {
					t.Errorf("REG-11: removals told:\n%s", diff)
				}
				removeVeto()
				s.Register(t, &subagenttest.Scripted{})
			})
		})
	}
}

// REG-04, REG-14, REG-15 for several providers at once.
func TestDispatchByName(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		a, b := &subagenttest.Scripted{ProviderName: "a"}, &subagenttest.Scripted{ProviderName: "b"}
		removeA := s.Register(t, a)
		s.Register(t, b)
		parent := s.Parent(t)
		subagenttest.Await(t, s.Start(t, t.Context(), "b", subagenttest.Request(parent, "x")))
		if len(a.Starts()) != 0 || len(b.Starts()) != 1 {
			t.Errorf("starts: a %d, b %d, want 0 and 1", len(a.Starts()), len(b.Starts()))
		}
		run := s.Start(t, t.Context(), "a", subagenttest.Request(parent, "x"))
		removeA()
		_, err := s.Service.Start(t.Context(), "a", subagenttest.Request(parent, "x"))
		wantCode(t, err, subagent.CodeNoProvider)
		if len(a.Starts()) != 1 {
			t.Error("REG-14: a removed provider was called")
		}
		if res := subagenttest.Await(t, run); res.StopReason != subagent.StopCompleted {
			t.Errorf("REG-15: the run ended as %q", res.StopReason)
		}
	})
}

// REG-16: a start that loses the race with the removal creates nothing.
func TestREG16StartLosesTheRace(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		remove := s.Register(t, spawn.New(""))
		parent := s.Parent(t)
		s.Agents.AddHooks(agent.Hooks{Created: func(*agent.Agent) error { t.Error("an agent was announced"); return nil }})
		s.Sessions.AddHooks(session.Hooks{Created: func(*session.Session) error { t.Error("a session was announced"); return nil }})
		remove()
		_, err := s.Service.Start(t.Context(), "spawn", subagenttest.Request(parent, "x"))
		wantCode(t, err, subagent.CodeNoProvider)
	})
}

// REG-17, CAN-16: the operations there are. A new one needs a decision.
func TestREG17NoResume(t *testing.T) {
	var _ interface {
		Name() string
		Capabilities() subagent.Capabilities
		InheritsParentContext() bool
		Start(context.Context, *subagent.ResolvedRequest) (subagent.Run, error)
	} = subagent.Provider(nil)
	for _, v := range []any{(*subagent.Service)(nil), (*spawn.Provider)(nil)} {
		if _, ok := v.(interface{ Resume() }); ok {
			t.Errorf("%T can resume", v)
		}
	}
}

// REG-18: what a provider hands out is passed on as it is.
func TestREG18Unwrapped(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		inner := &subagenttest.Scripted{}
		p := &recorder{Scripted: inner}
		s.Register(t, p)
		run := s.Start(t, t.Context(), "scripted", subagenttest.Request(s.Parent(t), "x"))
		if run != p.run {
			t.Error("REQ-07: Start returned another object than the provider did")
		}
		subagenttest.Await(t, run)
	})
}

type recorder struct {
	*subagenttest.Scripted
	run subagent.Run
}

func (r *recorder) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	run, err := r.Scripted.Start(ctx, req)
	r.run = run
	return run, err
}

// REG-08, REG-22: names are configurable, with a default.
func TestREG22SpawnName(t *testing.T) {
	if got := spawn.New("").Name(); got != "spawn" {
		t.Errorf("the default name is %q", got)
	}
	if got := spawn.New("other").Name(); got != "other" {
		t.Errorf("name = %q", got)
	}
}

// The registry under concurrent use: every registration is paired with one removal.
func TestRegisterConcurrently(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		var g sync.WaitGroup
		parent := s.Parent(t)
		for range 8 {
			g.Go(func() {
				for range 20 {
					remove, err := s.Service.Register(&subagenttest.Scripted{})
					if err != nil {
						if !errors.Is(err, subagent.ErrDuplicateProvider) {
							t.Error(err)
						}
						continue
					}
					if run, err := s.Service.Start(t.Context(), "scripted", subagenttest.Request(parent, "x")); err == nil {
						if err := run.Close(t.Context()); err != nil {
							t.Error(err)
						}
					}
					remove()
				}
			})
		}
		g.Wait()
		if names := s.Service.Providers(); len(names) != 0 {
			t.Errorf("providers are left: %v", names)
		}
	})
}

func text(s string) []message.Block { return []message.Block{message.Text(s)} }
