package owners_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/offshoot-dev/offshoot/subagent/internal/owners"
)

type graph = owners.Graph[string]

func enter(t *testing.T, g *graph, key string, path ...string) {
	t.Helper()
	if err := g.Enter(key, path); err != nil {
		t.Fatalf("enter %s below %v: %v", key, path, err)
	}
}

func refused(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func residency(t *testing.T, g *graph, key string, quiescent bool, want owners.Residency) {
	t.Helper()
	if got := g.Residency(key, quiescent); got != want {
		t.Errorf("%s is %v, want %v", key, got, want)
	}
}

// seam OWN-01…05, OWN-07: one Activation a key; a parent with one owns what is made
// below it, as a set, and waits until it is released; a parent without one is in no set.
func TestOwnership_OWN01_OWN07(t *testing.T) {
	var g graph
	enter(t, &g, "a", "root")
	enter(t, &g, "b", "a", "root")
	refused(t, "a second Activation", g.Enter("b", []string{"a", "root"}), owners.ErrPresent)
	for range 2 {
		if err := g.Deliver("b", []string{"a", "root"}); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff([]string{"b"}, g.Owned("a")); d != "" {
		t.Errorf("a owns:\n%s", d)
	}
	residency(t, &g, "a", true, owners.Waiting)
	residency(t, &g, "a", false, owners.Running)
	residency(t, &g, "root", true, owners.Settled)
	if _, _, _, err := g.Release("a"); !errors.Is(err, owners.ErrOwns) {
		t.Errorf("a is released before its child: %v", err)
	}
	owner, owned, emptied, err := g.Release("b")
	if owner != "a" || !owned || !emptied || err != nil {
		t.Errorf("b is released from %q, %v, %v: %v", owner, owned, emptied, err)
	}
	residency(t, &g, "a", true, owners.Settled)
	if owner, owned, _, err := g.Release("a"); owned || err != nil {
		t.Errorf("a is released from %q: %v", owner, err)
	}
	if _, _, _, err := g.Release("a"); !errors.Is(err, owners.ErrAbsent) || g.Len() != 0 {
		t.Errorf("a is released twice: %v; %d are left", err, g.Len())
	}
}

// seam OWN-08, OWN-09, SCOPE-11, INT-09, INT-11: what stands below an agent without an
// Activation is owned by nobody, and is still below everybody above it.
func TestLineage_OWN08_OWN09(t *testing.T) {
	var g graph
	enter(t, &g, "a", "root")
	enter(t, &g, "c", "one-shot", "a", "root")
	enter(t, &g, "other", "elsewhere")
	residency(t, &g, "a", true, owners.Settled)
	if d := cmp.Diff([]string{"a", "c"}, g.Below("root")); d != "" {
		t.Errorf("below the root:\n%s", d)
	}
	if d := cmp.Diff([]string{"c"}, g.Below("a")); d != "" {
		t.Errorf("below a:\n%s", d)
	}
	if _, _, _, err := g.Release("a"); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"c"}, g.Below("root", "a")); d != "" {
		t.Errorf("below the root without a:\n%s", d)
	}
	for ancestor, want := range map[string]bool{"one-shot": true, "a": true, "root": true, "c": false, "elsewhere": false} {
		if got := g.Descends("c", ancestor); got != want {
			t.Errorf("c is below %s: %v", ancestor, got)
		}
	}
	if path, ok := g.Path("c"); !ok || !slices.Equal(path, []string{"one-shot", "a", "root"}) {
		t.Errorf("c is below %v, %v", path, ok)
	}
	if _, ok := g.Path("a"); ok {
		t.Error("a still has a path")
	}
}

// Paths are the caller's own, and what is owned comes in the order in which it entered.
func TestPathsAreCopied(t *testing.T) {
	var g graph
	enter(t, &g, "a", "root")
	var want []string
	for i := range 9 {
		path := []string{"a", "root"}
		key := fmt.Sprint("child", i)
		enter(t, &g, key, path...)
		path[0] = "spoiled"
		if i%2 == 0 {
			path = []string{"a", "root"}
			if err := g.Deliver(key, path); err != nil {
				t.Fatal(err)
			}
			path[1] = "spoiled"
		}
		if p, _ := g.Path(key); !slices.Equal(p, []string{"a", "root"}) {
			t.Errorf("%s is below %v", key, p)
		}
		want = append(want, key)
	}
	if d := cmp.Diff(want, g.Owned("a")); d != "" {
		t.Errorf("a owns:\n%s", d)
	}
}

// A child that was resumed while its parent was not live is owned by nobody; when the
// parent comes and gives it work it is that parent's, and so is what is below it, though
// it entered first (seam OWN-02, AUTH-12).
func TestParentComesLater_OWN02(t *testing.T) {
	var g graph
	enter(t, &g, "c")
	enter(t, &g, "d", "c")
	enter(t, &g, "a", "root")
	if err := g.Deliver("c", nil); err != nil {
		t.Fatal(err)
	}
	residency(t, &g, "a", true, owners.Settled)
	if err := g.Deliver("c", []string{"a", "root"}); err != nil {
		t.Fatal(err)
	}
	residency(t, &g, "a", true, owners.Waiting)
	if d := cmp.Diff([]string{"a", "c", "d"}, g.Below("root")); d != "" {
		t.Errorf("below the root, ancestors first:\n%s", d)
	}
	refused(t, "below what is below it", g.Deliver("a", []string{"d", "c"}), owners.ErrCircle)
	refused(t, "below itself", g.Enter("e", []string{"e"}), owners.ErrCircle)
	g.Shut("root")
	refused(t, "work for d", g.Deliver("d", []string{"c"}), owners.ErrDraining)
	refused(t, "a child of d", g.Enter("e", []string{"d"}), owners.ErrDraining)
	// The root was replaced: the new one is another key.
	g.Reopen("root")
	if err := g.Deliver("c", []string{"root-2"}); err != nil {
		t.Fatal(err)
	}
	residency(t, &g, "a", true, owners.Settled)
	if g.Descends("d", "root") || !g.Descends("d", "root-2") {
		t.Error("d is not below the root that its parent has now")
	}
}

// seam DRAIN-01, DRAIN-07, SCOPE-01…08, RB-12, CONT-20: where something is closing or
// drained nothing begins and nothing is delivered; beside it everything goes on.
func TestAdmission_DRAIN01_SCOPE08(t *testing.T) {
	var g graph
	enter(t, &g, "a", "root")
	enter(t, &g, "b", "a", "root")
	enter(t, &g, "x", "elsewhere")
	if !g.Close("b") || g.Close("b") || g.Close("nobody") || !g.Closing("b") || g.Closing("a") {
		t.Error("a disposal does not begin exactly once")
	}
	refused(t, "deliver to what closes", g.Deliver("b", []string{"a", "root"}), owners.ErrClosing)
	refused(t, "a child of what closes", g.Enter("c", []string{"b", "a", "root"}), owners.ErrClosing)
	refused(t, "deliver to nobody", g.Deliver("nobody", []string{"a"}), owners.ErrAbsent)

	g.Shut("a")
	refused(t, "a child below a", g.Enter("c", []string{"one-shot", "a", "root"}), owners.ErrDraining)
	enter(t, &g, "sibling", "root") // a is the one that is retained, its siblings go on
	if err := g.Deliver("a", []string{"root"}); err != nil {
		t.Errorf("a itself: %v", err)
	}
	g.Reopen("a")
	enter(t, &g, "c", "one-shot", "a", "root")

	g.ShutAll()
	refused(t, "a start anywhere", g.Enter("y", []string{"elsewhere"}), owners.ErrDraining)
	refused(t, "a start without a path", g.Enter("y", nil), owners.ErrDraining)
	refused(t, "work anywhere", g.Deliver("x", []string{"elsewhere"}), owners.ErrDraining)
	refused(t, "work without a live parent", g.Deliver("x", nil), owners.ErrDraining)
	if d := cmp.Diff([]string{"a", "b", "x", "sibling", "c"}, g.Below()); d != "" {
		t.Errorf("all that there are:\n%s", d)
	}
}

// seam SEL-02, SET-08: what ends with all that is below it lets nothing begin there, also
// below an agent without an Activation; what ends alone does.
func TestSeal(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		var g graph
		enter(t, &g, "a", "root")
		enter(t, &g, "c", "one-shot", "a", "root")
		end := g.Close
		var want error
		if sealed {
			end, want = g.Seal, owners.ErrClosing
		}
		if !end("a") || end("a") || end("nobody") {
			t.Error("a disposal does not begin exactly once")
		}
		refused(t, "a child of it", g.Enter("b", []string{"a", "root"}), owners.ErrClosing)
		refused(t, "below the one-shot child", g.Enter("d", []string{"one-shot", "a", "root"}), want)
		refused(t, "work below it", g.Deliver("c", []string{"one-shot", "a", "root"}), want)
		enter(t, &g, "sibling", "root")
		if _, _, _, err := g.Release("a"); err != nil {
			t.Fatal(err)
		}
		enter(t, &g, "e", "one-shot", "a", "root")
	}
}

// naive does the same from nothing but what happened.
type naive struct {
	path    map[string][]string
	owner   map[string]string // "" is nobody
	closing map[string]bool
	shut    map[string]bool
	over    bool
}

// below is the transitive closure, computed anew.
func (n *naive) below(key, ancestor string) bool {
	reach := map[string]bool{}
	for _, p := range n.path[key] {
		reach[p] = true
	}
	for range len(n.path) + 1 {
		for k := range reach {
			for _, p := range n.path[k] {
				reach[p] = true
			}
		}
	}
	return reach[ancestor]
}

func (n *naive) admits(path []string) error {
	if n.over {
		return owners.ErrDraining
	}
	probe := &naive{path: map[string][]string{"?": path}}
	for k, p := range n.path {
		probe.path[k] = p
	}
	for k := range n.shut {
		if probe.below("?", k) {
			return owners.ErrDraining
		}
	}
	if len(path) > 0 && n.closing[path[0]] {
		return owners.ErrClosing
	}
	return nil
}

func (n *naive) owned(key string) (list []string) {
	for k, o := range n.owner {
		if o == key {
			list = append(list, k)
		}
	}
	slices.Sort(list)
	return list
}

// seam I16: whatever happens in whatever order, the graph says what a naive account of
// the same events says; it never goes in a circle, no Activation leaves before what it
// owns, and an ancestor is always told before what is below it.
func TestGraphMatchesOracle_I16(t *testing.T) {
	keys := []string{"a", "b", "c", "d", "e", "f"}
	all := append([]string{"root", "other", "one-shot"}, keys...)
	rapid.Check(t, func(rt *rapid.T) {
		var g graph
		n := &naive{path: map[string][]string{}, owner: map[string]string{}, closing: map[string]bool{}, shut: map[string]bool{}}
		has := func(k string) bool { _, ok := n.path[k]; return ok }
		same := func(what string, got, want error) {
			if !errors.Is(got, want) || (got == nil) != (want == nil) {
				rt.Fatalf("%s: %v, want %v", what, got, want)
			}
		}
		own := func(key string, path []string) {
			n.path[key] = path
			n.owner[key] = ""
			if len(path) > 0 && has(path[0]) {
				n.owner[key] = path[0]
			}
		}
		circle := func(key string, path []string) bool {
			probe := &naive{path: map[string][]string{"?": path}}
			for k, p := range n.path {
				probe.path[k] = p
			}
			return probe.below("?", key)
		}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			key := rapid.SampledFrom(keys).Draw(rt, "key")
			path := rapid.SliceOfNDistinct(rapid.SampledFrom(all), 0, 3, rapid.ID).Draw(rt, "path")
			switch rapid.SampledFrom([]string{"enter", "enter", "deliver", "close", "release", "release", "shut", "reopen", "over"}).Draw(rt, "step") {
			case "enter":
				want := n.admits(path)
				switch {
				case has(key):
					want = owners.ErrPresent
				case want == nil && circle(key, path):
					want = owners.ErrCircle
				}
				same("enter "+key, g.Enter(key, path), want)
				if want == nil {
					own(key, path)
				}
			case "deliver":
				var want error
				switch {
				case !has(key):
					want = owners.ErrAbsent
				case n.closing[key]:
					want = owners.ErrClosing
				case len(path) == 0:
					want = n.admits(n.path[key])
				default:
					if want = n.admits(path); want == nil && circle(key, path) {
						want = owners.ErrCircle
					}
				}
				same("deliver "+key, g.Deliver(key, path), want)
				if want == nil && len(path) > 0 {
					own(key, path)
				}
			case "close":
				if got := g.Close(key); got != (has(key) && !n.closing[key]) {
					rt.Fatalf("close %s: %v", key, got)
				}
				n.closing[key] = n.closing[key] || has(key)
			case "release":
				owner, owned, emptied, err := g.Release(key)
				switch {
				case !has(key):
					same("release "+key, err, owners.ErrAbsent)
				case len(n.owned(key)) > 0:
					same("release "+key, err, owners.ErrOwns)
				default:
					same("release "+key, err, nil)
					want := ""
					if p := n.path[key]; len(p) > 0 && has(p[0]) {
						want = p[0]
					}
					delete(n.path, key)
					delete(n.owner, key)
					delete(n.closing, key)
					if owned != (want != "") || owner != want || emptied != (want != "" && len(n.owned(want)) == 0) {
						rt.Fatalf("release %s: %q, %v, %v, want %q", key, owner, owned, emptied, want)
					}
				}
			case "shut":
				k := rapid.SampledFrom(all).Draw(rt, "root")
				g.Shut(k)
				n.shut[k] = true
			case "reopen":
				k := rapid.SampledFrom(all).Draw(rt, "root")
				g.Reopen(k)
				delete(n.shut, k)
			case "over":
				if rapid.IntRange(0, 9).Draw(rt, "really") == 0 {
					g.ShutAll()
					n.over = true
				}
			}
			compare(rt, &g, n, all)
		}
	})
}

func compare(rt *rapid.T, g *graph, n *naive, all []string) {
	if g.Len() != len(n.path) {
		rt.Fatalf("%d Activations, want %d", g.Len(), len(n.path))
	}
	for _, k := range all {
		owned := g.Owned(k)
		slices.Sort(owned)
		if !slices.Equal(owned, n.owned(k)) {
			rt.Fatalf("%s owns %v, want %v", k, owned, n.owned(k))
		}
		_, there := n.path[k]
		for _, quiescent := range []bool{true, false} {
			want := owners.Settled
			switch {
			case !there:
			case !quiescent:
				want = owners.Running
			case len(owned) > 0:
				want = owners.Waiting
			}
			if got := g.Residency(k, quiescent); got != want {
				rt.Fatalf("%s is %v, want %v", k, got, want)
			}
		}
		if n.below(k, k) {
			rt.Fatalf("%s is below itself: %v", k, n.path)
		}
		var want []string
		for c := range n.path {
			below := n.below(c, k)
			if got := g.Descends(c, k); got != below {
				rt.Fatalf("%s below %s: %v", c, k, got)
			}
			if below {
				want = append(want, c)
			}
		}
		list := g.Below(k)
		for i, c := range list {
			for _, later := range list[i+1:] {
				if n.below(c, later) {
					rt.Fatalf("%s comes before %s, which it is below: %v", c, later, list)
				}
			}
		}
		slices.Sort(want)
		if sorted := slices.Sorted(slices.Values(list)); !slices.Equal(sorted, want) {
			rt.Fatalf("below %s: %v, want %v", k, sorted, want)
		}
	}
	if got := len(g.Below()); got != len(n.path) {
		rt.Fatalf("%d Activations in all, want %d", got, len(n.path))
	}
}

// A release asks for nothing that grows with how many there are: a parent with ten
// thousand children lets them go as fast as one with ten.
func BenchmarkRelease(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			var g owners.Graph[int]
			if err := g.Enter(0, nil); err != nil {
				b.Fatal(err)
			}
			for i := range n {
				if err := g.Enter(i+1, []int{0}); err != nil {
					b.Fatal(err)
				}
			}
			i := 0
			for b.Loop() {
				k := i%n + 1
				i++
				if _, _, _, err := g.Release(k); err != nil {
					b.Fatal(err)
				}
				if err := g.Enter(k, []int{0}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
