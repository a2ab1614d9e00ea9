package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// spilling runs a scenario in a world whose results are bounded to 1000 bytes.
func spilling(t *testing.T, fn func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, true, agent.Config{MaxResultBytes: 1000, MaxSpillBytes: 8000})
		w.register(tool.ReadName, true, func(context.Context, *tool.Call) (any, error) { return "", nil })
		fn(w)
		w.finish()
	})
}

// spills returns the spills of a log in order, and checks of each that it stands
// right before the result of its call, stored in the same batch, and that the result
// names it and stays within the bound.
func (w *world) spills(s *session.Session) (refs []session.SpillRef, texts []string) {
	w.Helper()
	for e := range s.Events(0) {
		p, ok := e.Payload().(*session.ToolSpill)
		if !ok {
			continue
		}
		text, err := p.Text()
		w.ok(err)
		ref := session.SpillRef{Session: p.Session, Seq: e.Seq}
		refs, texts = append(refs, ref), append(texts, text)
		next, _ := s.Event(e.Seq + 1)
		r, ok := next.Payload().(*session.ToolResult)
		if !ok || r.Message.Source.Details().CallID != p.CallID || r.Turn != p.Turn || r.Step != p.Step {
			w.Fatalf("behind the spill at %d stands %s", e.Seq, line(next))
		}
		shown := message.JoinText(r.Message.Content[0].Content)
		head, rest, _ := strings.Cut(shown, "\n[... ")
		if len(shown) > 1000 || !strings.Contains(rest, " at the path "+ref.String()+" ...]\n") || !strings.HasPrefix(text, head) {
			w.Errorf("the model reads %d bytes: %q", len(shown), shown)
		}
	}
	return refs, texts
}

// core D45, S4: each result that is too long has its whole text in front of it,
// under the name that it gives, whoever else appends; what fits has none. Requests
// never hold it (checked of every world: they are rebuilt from the surface).
func TestSpill_D45(t *testing.T) {
	spilling(t, func(w *world) {
		size := map[string]int{"c1": 5000, "c2": 1000, "c3": 1001, "c4": 8001, "c5": 3000}
		whole := func(id string) string { return strings.Repeat(id+"\n", size[id])[:size[id]] }
		batches := map[string]int{}
		var a *agent.Agent
		big := func(_ context.Context, c *tool.Call) (any, error) {
			w.ok(a.Inject(msg("while " + c.ID)))
			if c.ID == "c5" {
				return nil, errors.New(whole(c.ID))
			}
			return whole(c.ID), nil
		}
		w.register("safe", true, big)
		w.register("alone", false, big)
		w.model.script(uses("safe", "safe", "safe", "safe", "alone"))
		a = w.create()
		w.store.gate(func(op string, events []session.Event) error {
			for i, e := range events {
				if e.Type == session.TypeToolSpill && (i+1 == len(events) || events[i+1].Type != session.TypeToolResult) {
					batches["torn"]++
				}
			}
			return nil
		}, nil)
		w.ask(a, "m1")
		w.store.healthy()
		w.same("torn holds", 0, batches["torn"])
		refs, texts := w.spills(a.Session())
		w.same("course", []string{"tool/spill", "result c1", "result c2", "tool/spill", "result c3", "tool/spill", "result c4", "tool/spill", "result c5 TOOL_FAILED"}, lines(a, "tool/spill", "result"))
		w.same("whole texts", []string{whole("c1"), whole("c3"), "Error: " + whole("c5")}, []string{texts[0], texts[1], texts[3]})
		if len(texts[2]) > 8000 || !strings.HasPrefix(whole("c4"), texts[2][:5000]) || !strings.HasSuffix(whole("c4"), texts[2][len(texts[2])-2000:]) || !strings.Contains(texts[2], "no more than 8000 bytes are kept") {
			t.Errorf("of 8001 bytes %d are kept: %.100q", len(texts[2]), texts[2])
		}
		e, _ := a.Session().Event(refs[2].Seq)
		if p, ok := e.Payload().(*session.ToolSpill); !ok || p.Bytes != 8001 || p.Omitted < 1 {
			t.Errorf("it says %+v", p)
		}
		last := w.model.requests[len(w.model.requests)-1].req
		for _, m := range last.Messages {
			if strings.Contains(string(session.AppendMessage(nil, &m)), strings.Repeat("c1\\n", 1000)) {
				t.Error("a request holds a whole text")
			}
		}
	})
}

// D45, S13: when the log refuses a spill its result is refused with it, and the other
// way round; the call is answered as after any fault, and the next request is legal.
func TestSpillRefused_S13(t *testing.T) {
	for _, refused := range []session.Type{session.TypeToolSpill, session.TypeToolResult} {
		t.Run(string(refused), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, true, agent.Config{MaxResultBytes: 1000})
				once := false
				w.validate = func(e session.Event) error {
					if e.Type == refused && !once {
						once = true
						return errBoom
					}
					return nil
				}
				w.register("big", false, func(context.Context, *tool.Call) (any, error) { return strings.Repeat("x", 2000), nil })
				w.model.script(uses("big"))
				a := w.create()
				w.ask(a, "m1")
				w.same("course", []string{"call c1 big", "result c1 TOOL_OUTCOME_UNKNOWN", "step-end 1.1", "end 1 error UNKNOWN"}, lines(a, "call", "tool/spill", "result", "step-end", "end"))
				w.ask(a, "m2")
				w.finish()
			})
		})
	}
}

// S35, S36: a spill outlives its process like everything else in the log.
func TestSpillAfterRestart(t *testing.T) {
	spilling(t, func(w *world) {
		w.register("big", false, func(context.Context, *tool.Call) (any, error) { return strings.Repeat("é\n", 3000)[:6001], nil })
		w.model.script(uses("big"))
		a := w.create()
		w.ask(a, "m1")
		refs, texts := w.spills(a.Session())
		id := a.ID()
		w.ok(a.Dispose(w.ctx, false))
		h, err := w.reg.Resume(w.ctx, agent.Resume{ID: id, Options: options()})
		w.ok(err)
		again, same := w.spills(h.Agent().Session())
		w.same("names", refs, again)
		w.same("texts", texts, same)
		got, err := w.reg.ReadSpill(w.ctx, h.Agent(), refs[0])
		w.ok(err)
		w.same("read", texts[0], got)
		if _, err := w.reg.ReadSpill(w.ctx, a, refs[0]); err == nil {
			t.Error("an agent that is gone reads")
		}
	})
}

// The model is told of the tool that reads the rest only where it has it, and a log
// keeps no more of cut results than its bound, counted as what it takes in the log:
// what was left out of a text takes nothing, and a byte that JSON escapes takes six
// (design § 4, Bounded).
func TestSpillBounds(t *testing.T) {
	for _, c := range []struct {
		name  string
		text  string
		one   int   // MaxSpillBytes
		all   int64 // MaxSpilledBytes
		kept  int   // of four
		holds int   // the text that each of them has, at most
	}{
		// The encoding of each takes a little more than its text.
		{"plain", strings.Repeat("x", 3000), 0, 7000, 2, 3000},
		{"exactly nothing more", strings.Repeat("x", 3000), 0, 6000, 1, 3000},
		{"each of them is bounded", strings.Repeat("x", 8000), 2000, 7000, 3, 2000},
		{"escaped", strings.Repeat("\x01", 6000), 0, 7000, 0, 0},
		{"escaped, with room", strings.Repeat("\x01", 6000), 0, 80000, 2, 6000},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, true, agent.Config{MaxResultBytes: 1000, MaxSpillBytes: c.one, MaxSpilledBytes: c.all})
				w.register("big", true, func(context.Context, *tool.Call) (any, error) { return c.text, nil })
				w.model.script(uses("big", "big", "big", "big"))
				a := w.create()
				w.ask(a, "m1")
				kept, results, taken := 0, 0, int64(0)
				for e := range a.Session().Events(0) {
					switch p := e.Payload().(type) {
					case *session.ToolSpill:
						kept++
						taken += int64(len(e.Data()))
						text, err := p.Text()
						w.ok(err)
						if len(text) > c.holds || len(text) < c.holds-100 || p.Bytes != int64(len(c.text)) {
							t.Errorf("%d bytes are kept of %d", len(text), p.Bytes)
						}
					case *session.ToolResult:
						results++
						shown := message.JoinText(p.Message.Content[0].Content)
						left := len(c.text) - len(shown) + len(tool.OmittedLine(2000))
						if len(shown) > 1000 || strings.Contains(shown, session.SpillScheme) || !strings.Contains(shown, tool.OmittedLine(left)) {
							t.Errorf("the model reads %d bytes", len(shown))
						}
					}
				}
				w.same("results", 4, results)
				w.same("kept", c.kept, kept)
				w.same("taken", taken, a.Session().Spilled())
				if taken > c.all {
					t.Errorf("%d bytes are taken", taken)
				}
				w.finish()
			})
		})
	}
}

// The bound is met exactly: what just fits is kept, and a byte less of room keeps none.
func TestSpillBoundIsExact(t *testing.T) {
	taken := func(room int64) (n int64) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, true, agent.Config{MaxResultBytes: 1000, MaxSpilledBytes: room})
			w.register("big", true, func(context.Context, *tool.Call) (any, error) { return strings.Repeat("\x01é\n", 1000), nil })
			w.model.script(uses("big"))
			a := w.create()
			w.ask(a, "m1")
			n = a.Session().Spilled()
			w.finish()
		})
		return n
	}
	one := taken(0)
	if fits, less := taken(one), taken(one-1); one < 10000 || fits != one || less != 0 {
		t.Errorf("a spill of %d bytes takes %d where there is room for it, and %d where there is less", one, fits, less)
	}
}

// design § 4, Authority: who may read whose spills. Every refusal names the spill and
// says nothing of whether there is one.
func TestReadSpill(t *testing.T) {
	spilling(t, func(w *world) {
		w.register("big", false, func(_ context.Context, c *tool.Call) (any, error) {
			return strings.Repeat(c.Caller.SessionID()+"\n", 400), nil
		})
		prompts := map[string]session.SpillRef{}
		spill := func(a *agent.Agent) session.SpillRef {
			t.Helper()
			w.model.script(uses("big"))
			w.ask(a, "m-"+a.SessionID())
			w.ok(a.Session().Flush(w.ctx)) // a fork needs it
			for e := range a.Session().Events(0) {
				if p, ok := e.Payload().(*session.UserMessage); ok && string(p.Message.ID) == "m-"+a.SessionID() {
					prompts[a.SessionID()] = session.SpillRef{Session: a.ID(), Seq: e.Seq}
				}
			}
			refs, _ := w.spills(a.Session())
			return refs[len(refs)-1]
		}
		create := func(owner *agent.Agent, n session.New) *agent.Agent {
			t.Helper()
			if n.ParentSession != "" && n.Root == "" {
				n.Root = owner.Session().Root()
			}
			h, err := w.reg.Create(w.ctx, agent.Create{Owner: owner, Options: options(), Session: n})
			w.ok(err)
			return h.Agent()
		}
		delegated := func(id string, owner *agent.Agent, depth int64, seed *session.Seed) *agent.Agent {
			t.Helper()
			return create(owner, session.New{ID: session.ID(id), ParentSession: owner.ID(), Origin: session.OriginSubagent, DelegationDepth: depth, Seed: seed})
		}
		root := create(nil, session.New{ID: "root"})
		agents := map[string]*agent.Agent{"root": root}
		refs := map[string]session.SpillRef{"root": spill(root)}
		add := func(a *agent.Agent) *agent.Agent {
			agents[a.SessionID()], refs[a.SessionID()] = a, spill(a)
			return a
		}
		fork := &session.Seed{Prefix: root.Session().Prefix()}
		add(delegated("fork", root, 1, fork))
		add(delegated("fork of fork", agents["fork"], 2, &session.Seed{Prefix: agents["fork"].Session().Prefix()}))
		copied := delegated("copy", root, 1, &session.Seed{Events: slices.Collect(root.Session().Events(0))})
		agents["copy"] = copied
		add(delegated("child", root, 1, nil))
		add(delegated("sibling", root, 1, nil))
		add(delegated("grandchild", agents["child"], 2, nil))
		add(create(root, session.New{ID: "branch", ParentSession: "root"})) // not delegated
		add(create(root, session.New{ID: "alien", ParentSession: "root", Root: "else", Origin: session.OriginSubagent, DelegationDepth: 1}))
		add(create(nil, session.New{ID: "other"}))
		for _, gone := range []string{"stored", "stored below"} {
			owner := root
			if gone == "stored below" {
				owner = agents["child"]
			}
			a := add(delegated(gone, owner, 2, nil))
			delete(agents, gone)
			w.ok(a.Dispose(w.ctx, true))
		}
		may := map[string][]string{
			"root":         {"root", "fork", "fork of fork", "child", "sibling", "grandchild", "stored", "stored below"},
			"fork":         {"root", "fork", "fork of fork"},
			"fork of fork": {"root", "fork", "fork of fork"},
			"copy":         {"root"},
			"child":        {"child", "grandchild", "stored below"},
			"sibling":      {"sibling"},
			"grandchild":   {"grandchild"},
			"branch":       {"branch"},
			"alien":        {"alien"},
			"other":        {"other"},
		}
		refused := func(what string, caller tool.Caller, ref session.SpillRef) {
			t.Helper()
			_, err := w.reg.ReadSpill(w.ctx, caller, ref)
			var se *agent.SpillError
			if want := fmt.Sprintf("there is no %s that this agent may read", ref); !errors.As(err, &se) || se.Ref != ref || err.Error() != want {
				t.Errorf("%s: error %v, want %q", what, err, want)
			}
		}
		for reader, a := range agents {
			for writer, ref := range refs {
				if !slices.Contains(may[reader], writer) {
					refused(reader+" reads "+writer, a, ref)
					continue
				}
				got, err := w.reg.ReadSpill(w.ctx, a, ref)
				if err != nil || got != strings.Repeat(writer+"\n", 400) {
					t.Errorf("%s reads %s: %d bytes, %v", reader, writer, len(got), err)
				}
			}
			// The results behind them have the same numbers in many of these logs.
			for writer, ref := range refs {
				ref.Seq++
				if !slices.Contains(may[reader], writer) {
					refused(reader+" reads the result of "+writer, a, ref)
					continue
				}
				got, err := w.reg.ReadSpill(w.ctx, a, ref)
				if err != nil || !strings.HasPrefix(got, writer+"\n"+writer+"\n") {
					t.Errorf("%s reads the result of %s: %.40q, %v", reader, writer, got, err)
				}
			}
			// What was said to them, too.
			for writer, ref := range prompts {
				if !slices.Contains(may[reader], writer) {
					refused(reader+" reads what was said to "+writer, a, ref)
					continue
				}
				if got, err := w.reg.ReadSpill(w.ctx, a, ref); err != nil || got != "text of m-"+writer {
					t.Errorf("%s reads what was said to %s: %.40q, %v", reader, writer, got, err)
				}
			}
			refused(reader+" reads nothing", a, session.SpillRef{Session: "nosuch", Seq: 1})
			refused(reader+" reads an event of its own that is no spill", a, session.SpillRef{Session: a.ID(), Seq: 0})
			refused(reader+" reads past its end", a, session.SpillRef{Session: a.ID(), Seq: 1 << 40})
			refused(reader+" reads what it inherited under its own name", agents["fork"], session.SpillRef{Session: "fork", Seq: refs["root"].Seq})
		}
		for _, as := range []session.ID{"root", "fork", "fork of fork"} {
			if got, err := w.reg.ReadSpill(w.ctx, agents["fork of fork"], session.SpillRef{Session: as, Seq: refs["root"].Seq + 1}); err != nil || !strings.HasPrefix(got, "root\nroot\n") {
				t.Errorf("what was inherited from root reads as that of %s as %.40q, %v", as, got, err)
			}
		}
		for _, ref := range []session.SpillRef{{Session: "stored", Seq: 0}, {Session: "stored", Seq: 1 << 40}, {Session: "child", Seq: 1 << 40}} {
			refused("root reads no spill", root, ref)
		}
		refused("an id is no agent", fakeCaller{"root"}, refs["root"])
		refused("no caller", nil, refs["root"])
	})
}

// A store that fails is told as that, with the spill's name.
func TestReadSpillFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, true, agent.Config{MaxResultBytes: 1000})
		w.register(tool.ReadName, true, func(context.Context, *tool.Call) (any, error) { return "", nil })
		w.register("big", false, func(context.Context, *tool.Call) (any, error) { return strings.Repeat("x", 2000), nil })
		root := w.create()
		child := w.child(root)
		w.model.script(uses("big"))
		w.ask(child, "m1")
		refs, _ := w.spills(child.Session())
		w.ok(child.Dispose(w.ctx, true))
		w.store.reads = func() error { return errBoom }
		_, err := w.reg.ReadSpill(w.ctx, root, refs[0])
		var se *agent.SpillError
		if !errors.As(err, &se) || se.Ref != refs[0] || se.Err == nil || !strings.Contains(err.Error(), refs[0].String()) {
			t.Errorf("error %v", err)
		}
		w.store.reads = nil
		w.finish()
	})
}

// A bound that is none is refused, and what a model may write into a log has one that
// the stores can take.
func TestBoundsRefused(t *testing.T) {
	w := newWorld(t, false, agent.Config{})
	for says, cfg := range map[string]agent.Config{
		"MaxSpillBytes must not be negative, and is -1":                                            {MaxSpillBytes: -1},
		fmt.Sprintf("MaxSpillBytes must be at most %d, and is %d", tool.MaxSpill, tool.MaxSpill+1): {MaxSpillBytes: tool.MaxSpill + 1},
		"MaxSpilledBytes must not be negative, and is -1":                                          {MaxSpilledBytes: -1},
		"MaxParallelTools must not be negative, and is -2":                                         {MaxParallelTools: -2},
		"MaxLive must not be negative, and is -1":                                                  {MaxLive: -1},
		"ApprovalTimeout must not be negative, and is -1s":                                         {ApprovalTimeout: -time.Second},
	} {
		cfg.Sessions, cfg.Models, cfg.Tools, cfg.Prompts = w.sessions, w.models, w.tools, w.prompts
		if _, err := agent.NewRegistry(t.Context(), cfg); err == nil || err.Error() != "agent registry: "+says {
			t.Errorf("error %v, want %q", err, says)
		}
	}
	w.finish()
}

// A log may claim a descent that goes in a circle; who looks for an ancestor in it
// comes to an end, and finds none.
func TestReadSpillCircle(t *testing.T) {
	for _, circle := range [][]session.New{
		{{ID: "x", ParentSession: "y", DelegationDepth: 1}, {ID: "y", ParentSession: "x", DelegationDepth: 1}},
		{{ID: "x", ParentSession: "x", DelegationDepth: 1}},
		{{ID: "x", ParentSession: "y", DelegationDepth: 2}, {ID: "y", ParentSession: "z", DelegationDepth: 1}, {ID: "z", ParentSession: "x", DelegationDepth: 3}},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, true, agent.Config{MaxResultBytes: 1000})
			w.register(tool.ReadName, true, func(context.Context, *tool.Call) (any, error) { return "", nil })
			w.register("big", false, func(context.Context, *tool.Call) (any, error) { return strings.Repeat("x", 2000), nil })
			root := w.create()
			var ref session.SpillRef
			for i, n := range circle {
				n.Root, n.Origin = root.ID(), session.OriginSubagent
				h, err := w.reg.Create(w.ctx, agent.Create{Owner: root, Options: options(), Session: n})
				w.ok(err)
				w.model.script(uses("big"))
				w.ask(h.Agent(), fmt.Sprint("m", i))
				if i == 0 {
					refs, _ := w.spills(h.Agent().Session())
					ref = refs[0]
				}
				w.ok(h.Agent().Dispose(w.ctx, true))
			}
			looks := 0
			w.store.inspects = func() error {
				if looks++; looks > 10 {
					return errBoom
				}
				return nil
			}
			_, err := w.reg.ReadSpill(w.ctx, root, ref)
			var se *agent.SpillError
			if !errors.As(err, &se) || se.Err != nil {
				t.Errorf("error %v after %d looks", err, looks)
			}
			w.store.inspects = nil
			w.finish()
		})
	}
}
