package compact_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/compact"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/fork"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// core D42, seam DES-20, LIST-36: a child's task and persona outlive any number of
// compactions word by word, whether it began with nothing or with its parent's
// conversation; so do its descriptor and its place in the listing, and its parent's
// log is not touched.
func TestChildOutlivesCompactions_D42_LIST36(t *testing.T) {
	const task = "Count the <things> & tell me.\n\nExactly \"42\" of them, please."
	persona := subagent.Persona{Text: "You are a counter of things."}
	for _, provider := range []string{"spawn", "fork"} {
		t.Run(provider, func(t *testing.T) {
			m := &model{window: 12_000, told: 12_000}
			m.answer = func(req *llm.Request) ([]message.Block, error) {
				if !strings.Contains(text(req), task) {
					return say("ok"), nil // the parent
				}
				if n := len(m.requests); n < 60 {
					return []message.Block{calls(fmt.Sprintf("c%d", n), fmt.Sprintf("thing%d", n), 3000)}, nil
				}
				return say("42"), nil
			}
			units, err := projection.NewRegistry(projection.BuiltIn()...)
			if err != nil {
				t.Fatal(err)
			}
			store := memory.New()
			in(t, m, subagenttest.Options{Tools: []tool.Definition{look()}, Store: store, Projections: units}, compact.Config{}, func(t *testing.T, w *world) {
				for _, p := range []subagent.Provider{spawn.New(""), fork.New("")} {
					if _, err := w.Service.Register(p); err != nil {
						t.Fatal(err)
					}
				}
				parent := w.Parent(t)
				w.talk(parent, 3, 4000)
				var before []string
				for e := range parent.Session().Events(0) {
					before = append(before, string(e.AppendEnvelope(nil)))
				}
				label := "count"
				run, err := w.Service.Start(t.Context(), provider, subagent.Request{
					Parent: parent, Label: &label, Prompt: []message.Block{message.Text(task)}, Persona: &persona,
				})
				if err != nil {
					t.Fatal(err)
				}
				res, err := run.Wait(t.Context())
				if err != nil || res.StopReason != subagent.StopCompleted || message.JoinText(res.Output) != "42" {
					t.Fatalf("the child ended %s with %q: %v, %v", res.StopReason, message.JoinText(res.Output), err, w.done)
				}
				child, _ := run.Local()
				s := child.Session()
				w.verify(child)
				if len(w.sums) < 3 || m.refused > 0 {
					t.Fatalf("%d compactions, %d requests too long", len(w.sums), m.refused)
				}
				for i, r := range m.requests {
					if r.SessionID != string(s.ID()) {
						continue
					}
					if r.Purpose == "" && strings.Count(text(&r.Request), task) != 1 {
						t.Errorf("request %d holds the task %d times", i, strings.Count(text(&r.Request), task))
					}
					if !strings.Contains(r.System, persona.Text) {
						t.Errorf("request %d lacks the persona", i)
					}
				}
				for _, activity := range []subagent.Activity{subagent.ActivityRunning, subagent.ActivityInactive} {
					rows, err := w.Service.ListChildren(t.Context(), parent.ID())
					if err != nil || len(rows) != 1 || rows[0].ID != s.ID() || *rows[0].Label != label || rows[0].Mode != session.ModeOneShot || rows[0].HasChildren {
						t.Errorf("the child is listed as %+v, %v", rows, err)
					} else if rows[0].Activity != activity {
						t.Errorf("the child is listed as %s, want %s", rows[0].Activity, activity)
					}
					if err := run.Close(t.Context()); err != nil {
						t.Error(err)
					}
				}
				var after []string
				for e := range parent.Session().Events(0) {
					after = append(after, string(e.AppendEnvelope(nil)))
				}
				if d := cmp.Diff(before, after); d != "" {
					t.Errorf("the parent's log changed:\n%s", d)
				}
			})
		})
	}
}

// What a person said in the turn that is under way is not left to a summary, whichever
// part of the turn it was said in; what was said in earlier turns is.
func TestOpenTurnIsKept_D39(t *testing.T) {
	m := &model{window: 8_000, told: 8_000}
	var a *agent.Agent
	m.answer = func(req *llm.Request) ([]message.Block, error) {
		n := len(m.requests)
		if n == 5 {
			if err := a.Steer(agent.UserText("and mind the gap")); err != nil {
				return nil, err
			}
		}
		if n > 1 && n < 30 {
			return []message.Block{calls(fmt.Sprintf("c%d", n), "thing", 2500)}, nil
		}
		return say("ok"), nil
	}
	in(t, m, subagenttest.Options{Tools: []tool.Definition{look()}}, compact.Config{}, func(t *testing.T, w *world) {
		a = w.Parent(t)
		w.prompt(a, "something else")
		w.prompt(a, "take the train")
		if e := end(a); e.Kind != session.EndCompleted || len(w.sums) < 3 {
			t.Fatalf("ended %s after %d compactions", e.Kind, len(w.sums))
		}
		body := text(&m.requests[len(m.requests)-1].Request)
		for said, want := range map[string]int{"take the train": 1, "and mind the gap": 1, "something else": 0} {
			if n := strings.Count(body, said); n != want {
				t.Errorf("%q stands %d times in the last request, want %d", said, n, want)
			}
		}
		if strings.Index(body, "take the train") > strings.Index(body, "and mind the gap") {
			t.Error("what was said first comes last")
		}
	})
}

// core P6: a runtime context that a compaction took from the surface is sent again with
// the very step that follows.
func TestContextIsSentAgain_P6(t *testing.T) {
	m := &model{window: 8_000, told: 8_000, answer: func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }}
	in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
		if _, err := w.Prompts.Root().AddContext(prompt.Context{Name: "weather", Text: "It rains."}); err != nil {
			t.Fatal(err)
		}
		a := w.Parent(t)
		w.talk(a, 12, 4000)
		if len(w.sums) < 2 {
			t.Fatalf("%d compactions", len(w.sums))
		}
		for i, r := range m.requests {
			if n := strings.Count(text(&r.Request), "It rains."); r.Purpose == "" && n != 1 {
				t.Errorf("request %d tells the weather %d times", i, n)
			}
		}
		w.verify(a)
	})
}

// A conversation that is longer than the window, because it was held with another model
// for instance, is summed up in several parts, and the model reads all of it.
func TestLongerThanTheWindow(t *testing.T) {
	m := &model{window: 200_000, told: 200_000, answer: func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }}
	in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.talk(a, 30, 4000)
		m.window, m.told = 12_000, 12_000
		w.prompt(a, "go on")
		if e := end(a); e.Kind != session.EndCompleted || m.refused > 0 {
			t.Fatalf("ended %s, %d requests were too long", e.Kind, m.refused)
		}
		var read strings.Builder
		parts := 0
		for _, r := range m.requests {
			if r.Purpose == llm.PurposeCompaction {
				parts++
				read.WriteString(text(&r.Request))
			}
		}
		if parts < 3 {
			t.Errorf("%d parts", parts)
		}
		last := text(&m.requests[len(m.requests)-1].Request)
		for i := range 30 {
			if name := fmt.Sprintf("said%d ", i); !strings.Contains(read.String(), name) && !strings.Contains(last, name) {
				t.Errorf("%s was neither summed up nor kept", name)
			}
		}
		w.verify(a)
	})
}

// core D41: every failure has its code, closes its bracket, leaves the conversation as
// it was, and stands in nobody's way.
func TestErrors_D41(t *testing.T) {
	broken := errors.New("broken")
	for _, tc := range []struct {
		name  string
		code  compact.Code
		spoil func(w *world, a *agent.Agent, m *model) (ctx context.Context, mend func())
		open  bool // a bracket was opened
	}{
		{"busy", compact.CodeBusy, func(w *world, a *agent.Agent, m *model) (context.Context, func()) {
			hold, held := make(chan struct{}), make(chan struct{})
			go func() {
				_ = a.RunMaintenance(context.Background(), func(context.Context) error { close(held); <-hold; return nil })
			}()
			<-held
			return nil, func() { close(hold); synctest.Wait() }
		}, false},
		{"cancelled", compact.CodeCancelled, func(w *world, _ *agent.Agent, m *model) (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(context.Background())
			m.summary = func(int, *llm.Request) ([]message.Block, error) {
				cancel(broken)
				synctest.Wait()
				return nil, ctx.Err()
			}
			return ctx, func() {}
		}, true},
		{"changed", compact.CodeChanged, func(w *world, a *agent.Agent, m *model) (context.Context, func()) {
			m.summary = func(int, *llm.Request) ([]message.Block, error) {
				nodes, _ := a.Session().Surface()
				_, err := a.Session().Append(session.Draft{
					Payload: &session.UserMessage{Message: agent.UserText("rewritten")}, Sources: []int64{nodes[0].Seq},
					Op: session.SurfaceOp{Kind: session.OpReplace, Start: nodes[0].Seq, End: nodes[0].Seq},
				})
				return say("too late"), err
			}
			return nil, func() {}
		}, true},
		{"the model fails", compact.CodeSummary, func(w *world, _ *agent.Agent, m *model) (context.Context, func()) {
			m.summary = func(int, *llm.Request) ([]message.Block, error) {
				return nil, &llm.Error{Failure: message.Failure{Code: llm.CodeAuth, Message: "no key"}}
			}
			return nil, func() {}
		}, true},
		{"the model says nothing", compact.CodeSummary, func(w *world, _ *agent.Agent, m *model) (context.Context, func()) {
			m.summary = func(int, *llm.Request) ([]message.Block, error) { return say(" \n"), nil }
			return nil, func() {}
		}, true},
		{"the model calls a tool", compact.CodeSummary, func(w *world, _ *agent.Agent, m *model) (context.Context, func()) {
			m.summary = func(int, *llm.Request) ([]message.Block, error) { return []message.Block{calls("x", "y", 1)}, nil }
			return nil, func() {}
		}, true},
		{"the log refuses", compact.CodeCommit, func(w *world, _ *agent.Agent, m *model) (context.Context, func()) {
			return context.WithValue(context.Background(), refuse{}, session.TypeCompactionSummary), func() {}
		}, true},
		{"the store fails", compact.CodePersistence, func(w *world, _ *agent.Agent, m *model) (context.Context, func()) {
			return context.WithValue(context.Background(), refuse{}, session.Type("store")), func() {}
		}, true},
		{"nothing to leave out", compact.CodeNothing, nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &model{window: 20_000, told: 20_000, answer: func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }}
			veto := &vetoes{}
			store := &failing{Store: memory.New()}
			o := subagenttest.Options{Store: store, Validators: []session.Validator{veto.check}}
			in(t, m, o, compact.Config{Manual: true}, func(t *testing.T, w *world) {
				a := w.Parent(t)
				if tc.spoil != nil {
					w.talk(a, 6, 4000)
				}
				if err := a.Session().Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				head := a.Session().Head()
				ctx, mend := context.Context(nil), func() {}
				if tc.spoil != nil {
					ctx, mend = tc.spoil(w, a, m)
				}
				if ctx == nil {
					ctx = context.Background()
				}
				switch typ, _ := ctx.Value(refuse{}).(session.Type); typ {
				case "":
				case "store":
					store.err = broken
				default:
					veto.typ = typ
				}
				before, gen := a.Session().Surface()
				_, err := w.c.Compact(ctx, a)
				var cerr *compact.Error
				if !errors.As(err, &cerr) || cerr.Code != tc.code {
					t.Fatalf("error %v, want code %s", err, tc.code)
				}
				if tc.code == compact.CodeCancelled && !errors.Is(err, broken) {
					t.Errorf("error %v does not say why", err)
				}
				mend()
				veto.typ, store.err = "", nil
				after, now := a.Session().Surface()
				if tc.code != compact.CodeChanged && (gen != now || len(before) != len(after)) {
					t.Errorf("the conversation has %d messages, and had %d", len(after), len(before))
				}
				var end *session.CompactionEnd
				for e := range a.Session().Events(head) {
					if p, ok := e.Payload().(*session.CompactionEnd); ok {
						end = p
					}
				}
				if tc.open != (end != nil) || end != nil && end.Error != cerr.Error() {
					t.Errorf("the bracket ended with %+v, want the error %q", end, cerr)
				}
				if tc.spoil == nil {
					return
				}
				m.summary = func(int, *llm.Request) ([]message.Block, error) { return say("in short"), nil }
				if _, err := w.c.Compact(t.Context(), a); err != nil {
					t.Errorf("the next one fails: %v", err)
				}
				w.prompt(a, "go on")
				if last := text(&m.requests[len(m.requests)-1].Request); !strings.Contains(last, "in short") {
					t.Error("the next one changed nothing")
				}
				w.verify(a)
			})
		})
	}
}

type refuse struct{}

// vetoes refuses events of one type.
type vetoes struct{ typ session.Type }

func (v *vetoes) check(_ *session.Header, e session.Event) error {
	if e.Type == v.typ {
		return errors.New("vetoed")
	}
	return nil
}

// failing is a store whose writes fail while err is set.
type failing struct {
	session.Store
	err error
}

type failingWriter struct {
	session.Writer
	s *failing
}

func (s *failing) Create(ctx context.Context, h session.Header, m session.Meta, first []session.Event, cells []session.Checkpoint) (session.Writer, error) {
	w, err := s.Store.Create(ctx, h, m, first, cells)
	return &failingWriter{w, s}, err
}

func (w *failingWriter) Append(ctx context.Context, head int64, events []session.Event, cells []session.Checkpoint) error {
	if w.s.err != nil {
		return w.s.err
	}
	return w.Writer.Append(ctx, head, events, cells)
}
