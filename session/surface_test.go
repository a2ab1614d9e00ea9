package session_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// oracle is the surface as the rules describe it, recomputed at every look.
type oracle struct {
	nodes []oracleNode
	gen   int64
}

type oracleNode struct {
	seq  int64
	text string
	none bool // an assistant message without content
}

func (o *oracle) position(seq int64) int {
	return slices.IndexFunc(o.nodes, func(n oracleNode) bool { return n.seq == seq })
}

// legal says whether a replacement obeys S17 and S18.
func (o *oracle) legal(seq, start, end int64, sources []int64) bool {
	a, b := o.position(start), o.position(end)
	if a < 0 || b < 0 || a > b {
		return false
	}
	for _, n := range o.nodes[a : b+1] {
		if !slices.Contains(sources, n.seq) {
			return false
		}
	}
	return o.legalSources(seq, sources)
}

func (o *oracle) legalSources(seq int64, sources []int64) bool {
	for i, s := range sources {
		if s < 0 || s >= seq || slices.Contains(sources[:i], s) {
			return false
		}
	}
	return sources == nil || len(sources) > 0
}

func (o *oracle) apply(op session.SurfaceOp, n oracleNode) {
	if op.Kind != session.OpReplace {
		o.nodes = append(o.nodes, n)
		return
	}
	a, b := o.position(op.Start), o.position(op.End)
	o.nodes = slices.Concat(o.nodes[:a], []oracleNode{n}, o.nodes[b+1:])
	o.gen++
}

func (o *oracle) texts() []string {
	var out []string
	for _, n := range o.nodes {
		if !n.none {
			out = append(out, n.text)
		}
	}
	return out
}

// core S16–S19: any sequence of appends and replacements, legal or not, one by
// one or in one hold, leaves the surface that the rules describe; snapshots that
// were handed out stay as they were; what is read back and what a Prefix carries
// derive the same messages.
func TestSurfaceMatchesOracle_S19(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSession(t)
		o := &oracle{}
		mustAppend(t, s, script(t, "T1 S1.1")...)
		type snapshot struct {
			msgs []message.Message
			want []string
		}
		var snapshots []snapshot
		id := 0
		drawDraft := func(seq int64, o *oracle) (session.Draft, oracleNode, bool) {
			id++
			n := oracleNode{seq: seq, text: fmt.Sprintf("t%d", id)}
			var d session.Draft
			if rapid.Bool().Draw(rt, "assistant") {
				p := reply(1, 1, fmt.Sprint(id))
				if n.none = rapid.Bool().Draw(rt, "empty"); !n.none {
					p.Message.Content = []message.Block{message.Text(n.text)}
				}
				d.Payload = p
			} else {
				d.Payload = say(fmt.Sprint(id), n.text)
			}
			legal := true
			if len(o.nodes) > 0 && rapid.Bool().Draw(rt, "replace") {
				pick := func(label string) int64 {
					if rapid.IntRange(0, 9).Draw(rt, label+" odd") == 0 {
						return rapid.Int64Range(0, seq+1).Draw(rt, label)
					}
					return o.nodes[rapid.IntRange(0, len(o.nodes)-1).Draw(rt, label)].seq
				}
				d.Op = session.SurfaceOp{Kind: session.OpReplace, Start: pick("start"), End: pick("end")}
				a, b := o.position(d.Op.Start), o.position(d.Op.End)
				if a >= 0 && a <= b {
					for _, n := range o.nodes[a : b+1] {
						d.Sources = append(d.Sources, n.seq)
					}
				}
				switch rapid.IntRange(0, 9).Draw(rt, "sources") {
				case 0:
					d.Sources = nil
				case 1:
					d.Sources = append(d.Sources, rapid.Int64Range(0, seq).Draw(rt, "source"))
				case 2:
					if len(d.Sources) > 1 {
						d.Sources = d.Sources[1:]
					}
				case 3:
					slices.Reverse(d.Sources)
				}
				legal = o.legal(seq, d.Op.Start, d.Op.End, d.Sources)
			}
			return d, n, legal
		}
		for range rapid.IntRange(1, 30).Draw(rt, "holds") {
			trial := &oracle{nodes: slices.Clone(o.nodes), gen: o.gen}
			var hold []session.Draft
			legal := true
			for range rapid.IntRange(1, 3).Draw(rt, "drafts") {
				d, n, ok := drawDraft(s.Head()+int64(len(hold)), trial)
				hold = append(hold, d)
				if !ok {
					legal = false
					break
				}
				trial.apply(d.Op, n)
			}
			_, err := s.Append(hold...)
			var broken *session.InvariantError
			if legal != (err == nil) || err != nil && (!errors.As(err, &broken) || broken.Rule != "I6") {
				rt.Fatalf("legal %v, but the log says %v", legal, err)
			}
			if legal {
				o = trial
			}
			msgs, gen := s.History()
			var got []string
			for _, m := range msgs {
				got = append(got, message.JoinText(m.Content))
			}
			if diff := cmp.Diff(o.texts(), got); diff != "" || gen != o.gen {
				rt.Fatalf("generation %d, want %d; history (-oracle +log):\n%s", gen, o.gen, diff)
			}
			snapshots = append(snapshots, snapshot{msgs, got})
		}
		for _, snap := range snapshots {
			for i, m := range snap.msgs {
				if message.JoinText(m.Content) != snap.want[i] {
					rt.Fatal("a history that was handed out changed")
				}
			}
		}
		back, err := newRegistry(t, session.Config{}).Restore(recordOf(s, s.Head()), sequence(rawEvents(t, s)))
		if err != nil {
			rt.Fatal(err)
		}
		mustAppend(t, s, script(t, "s1.1 t1")...)
		reg := newRegistry(t, session.Config{})
		child := prepare(t, reg, session.New{Seed: &session.Seed{Prefix: s.Prefix()}})
		copied := prepare(t, reg, session.New{Seed: &session.Seed{Events: rawEvents(t, s)}})
		mustAppend(t, s, say("late", "late"))
		for name, other := range map[string]*session.Session{"read back": back, "seeded with a prefix": child, "seeded with events": copied} {
			msgs, _ := other.History()
			var got []string
			for _, m := range msgs {
				got = append(got, message.JoinText(m.Content))
			}
			if diff := cmp.Diff(o.texts(), got); diff != "" {
				rt.Fatalf("%s (-oracle +log):\n%s", name, diff)
			}
		}
	})
}

// core S17: start may be the larger number, since positions are compared.
func TestReplaceByPosition_S17(t *testing.T) {
	s := newSession(t)
	mustAppend(t, s, script(t, "u u u")...)
	replace := func(p session.Payload, start, end int64, sources ...int64) error {
		_, err := s.Append(session.Draft{Payload: p, Op: session.SurfaceOp{Kind: session.OpReplace, Start: start, End: end}, Sources: sources})
		return err
	}
	if err := replace(say("x", "x"), 0, 0, 0); err != nil { // seq 3 stands first now
		t.Fatal(err)
	}
	if err := replace(say("y", "y"), 3, 1, 3, 1); err != nil {
		t.Fatalf("start 3 stands before end 1: %v", err)
	}
	if err := replace(say("z", "z"), 2, 4, 2, 4); err == nil {
		t.Fatal("start 2 stands behind end 4")
	}
	msgs, gen := s.History()
	if got := strings.Join(texts(msgs), " "); got != "y:y m2:text m2" || gen != 2 {
		t.Errorf("history %q, generation %d", got, gen)
	}
}
