package subagenttest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// remote makes the scripted provider a subject.
func remote(caps subagent.Capabilities) subagenttest.Factory {
	return func(testing.TB, *subagenttest.System) subagenttest.Subject {
		var mu sync.Mutex
		children := map[string]subagenttest.Child{}
		p := &subagenttest.Scripted{Caps: caps, Play: func(req *subagent.ResolvedRequest) subagenttest.Play {
			mu.Lock()
			defer mu.Unlock()
			c := children[message.JoinText(req.Prompt)]
			var said []message.Block
			if c.Text != "" {
				said = []message.Block{message.Text(c.Text)}
			}
			play := subagenttest.Play{Result: subagent.Result{Output: said, StopReason: c.End}, Partial: said, Hold: c.Hold, Deaf: c.Deaf}
			if c.Panic {
				play.Panic = "out of order"
			}
			// It stands for a child whose provider has looked at what it hands in.
			switch {
			case req.Schema == nil:
			case strings.Contains(c.Structured, `"n":"`) || c.Structured == "":
				play.Result.StopReason = subagent.StopError
			default:
				play.Result.Structured = []byte(c.Structured)
			}
			return play
		}}
		return subagenttest.Subject{
			Provider: p, Active: p.Active, PartialText: true,
			Script: func(prompt string, c subagenttest.Child) {
				mu.Lock()
				defer mu.Unlock()
				children[prompt] = c
			},
			Reasons: []subagent.StopReason{subagent.StopError, subagent.StopMaxTokens, subagent.StopRefusal, "overrun"},
		}
	}
}

func TestScripted(t *testing.T) {
	t.Run("no capability", func(t *testing.T) { subagenttest.Run(t, remote(subagent.Capabilities{})) })
	t.Run("all capabilities", func(t *testing.T) {
		subagenttest.Run(t, remote(subagent.Capabilities{OutputSchema: true, DepthLimit: true, ToolFilter: true, Persona: true}))
	})
}

func start(t *testing.T, s *subagenttest.System, ctx context.Context, schema string) (subagent.Run, error) {
	req := subagenttest.Request(s.Parent(t), "x")
	if schema != "" {
		req.OutputSchema = []byte(schema)
	}
	return s.Service.Start(ctx, "double", req)
}

// FIX-01…03: the double's reply, its structured value, its name and its going.
func TestFIX01Double(t *testing.T) {
	const schema = `{"type":"object"}`
	for _, c := range []struct {
		name   string
		schema string
		play   *subagenttest.Play
		want   subagent.Result
	}{
		{"FIX-01 the default", "", nil, subagent.Result{StopReason: "completed", Output: []message.Block{message.Text("done")}}},
		{"FIX-02 a default value", schema, nil, subagent.Result{StopReason: "completed", Output: []message.Block{message.Text("done")}, Structured: []byte("{}")}},
		{"FIX-02 a given value", schema, &subagenttest.Play{Result: subagent.Result{Structured: []byte(`{"n":1}`)}}, subagent.Result{StopReason: "completed", Output: []message.Block{}, Structured: []byte(`{"n":1}`)}},
		{"FIX-03 a given reason", schema, &subagenttest.Play{Result: subagent.Result{StopReason: "overrun"}}, subagent.Result{StopReason: "overrun", Output: []message.Block{}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := subagenttest.NewSystem(t, subagenttest.Options{})
				p := &subagenttest.Scripted{ProviderName: "double", Caps: subagent.Capabilities{OutputSchema: true}}
				if c.play != nil {
					p.Play = func(*subagent.ResolvedRequest) subagenttest.Play { return *c.play }
				}
				remove := s.Register(t, p)
				run, err := start(t, s, t.Context(), c.schema)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(c.want, subagenttest.Await(t, run)); diff != "" {
					t.Errorf("result:\n%s", diff)
				}
				remove()
				if _, err := start(t, s, t.Context(), ""); !errors.Is(err, subagent.ErrNoProvider) {
					t.Errorf("Start after the removal = %v", err)
				}
			})
		})
	}
}

// FIX-04: cancelled before and during the publication.
func TestFIX04Rejects(t *testing.T) {
	stop := errors.New("stop")
	for _, during := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := subagenttest.NewSystem(t, subagenttest.Options{})
			p := &subagenttest.Scripted{ProviderName: "double"}
			ctx, cancel := context.WithCancelCause(t.Context())
			if during {
				p.Publishing = func(context.Context) error { cancel(stop); return nil }
			} else {
				cancel(stop)
			}
			s.Register(t, p)
			if _, err := start(t, s, ctx, ""); !errors.Is(err, stop) || p.Active() != 0 {
				t.Errorf("Start = %v with %d active, want the cause and none", err, p.Active())
			}
		})
	}
}

// breaches collects what the companion reports.
type breaches struct {
	testing.TB
	got []string
}

func (b *breaches) Errorf(format string, args ...any) {
	b.got = append(b.got, fmt.Sprintf(format, args...))
}

// liar hands out runs that contradict the registry.
type liar struct {
	*subagenttest.Scripted
	id    session.ID
	local bool
	over  chan struct{}
}

func (l *liar) Start(context.Context, *subagent.ResolvedRequest) (subagent.Run, error) {
	return l, nil
}
func (l *liar) ID() session.ID              { return l.id }
func (l *liar) Local() (*agent.Agent, bool) { return nil, l.local }
func (l *liar) Wait(context.Context) (subagent.Result, error) {
	<-l.over
	return subagent.Result{StopReason: subagent.StopCompleted}, nil
}
func (l *liar) Close(context.Context) error { return nil }

// The companion itself finds what it is there to find.
func TestLifecycleBreaches(t *testing.T) {
	s := subagenttest.NewSystem(t, subagenttest.Options{Unwatched: true})
	svc, err := subagent.New(t.Context(), subagent.Config{Agents: s.Agents})
	if err != nil {
		t.Fatal(err)
	}
	b := &breaches{TB: t}
	l := subagenttest.Watch(b, svc)
	parent := s.Parent(t)
	p := &liar{Scripted: &subagenttest.Scripted{ProviderName: "liar"}, id: "nobody", local: true, over: make(chan struct{})}
	if _, err := svc.Register(p); err != nil {
		t.Fatal(err)
	}
	startLiar := func() {
		if _, err := svc.Start(t.Context(), "liar", subagenttest.Request(parent, "x")); err != nil {
			t.Fatal(err)
		}
	}
	startLiar() // local without a child
	p.local = false
	startLiar() // a second run of the same child
	p.id = parent.ID()
	startLiar() // remote, with the id of a live agent, which is no child of its parent
	l.Settled() // none of them ended
	close(p.over)
	if err := svc.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"no agent nobody was published", "two runs at once", "is not local", "was never closed", "was never closed", "was never closed"}
	for i, w := range want {
		if i >= len(b.got) || !strings.Contains(b.got[i], w) {
			t.Fatalf("breaches = %q, want %q", b.got, want)
		}
	}
	if len(b.got) != len(want) {
		t.Errorf("breaches = %q", b.got)
	}
}
