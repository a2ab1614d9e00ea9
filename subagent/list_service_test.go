package subagent_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

func unitKeys(r *projection.Registry) (keys []string) {
	for _, u := range r.Units() {
		keys = append(keys, u.Key)
	}
	return keys
}

// PROJ-04, D26, LIST-05: the service brings the units that its listings need to a
// registry that lacks them, and takes them away again with itself; without a registry
// it has no listings, and nothing else is the worse for it.
func TestPROJ04UnitsOfTheService(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		units, err := projection.NewRegistry(projection.TitleUnit())
		if err != nil {
			t.Fatal(err)
		}
		service, err := subagent.New(t.Context(), subagent.Config{Agents: s.Agents, Projections: units})
		if err != nil {
			t.Fatal(err)
		}
		if keys := unitKeys(units); len(keys) != 3 || keys[1] != session.CellIdentity || keys[2] != session.CellState {
			t.Errorf("units with the service: %v", keys)
		}
		if _, err := service.ListChildren(t.Context(), "nobody"); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := service.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if keys := unitKeys(units); len(keys) != 1 {
			t.Errorf("units after the service: %v", keys)
		}
		_, err = service.ListChildren(t.Context(), "nobody")
		wantCode(t, err, subagent.CodeProjectionsUnavailable)

		_, err = s.Service.ListChildren(t.Context(), "nobody")
		wantCode(t, err, subagent.CodeProjectionsUnavailable)
		_, err = s.Service.ListDescendants(t.Context(), "nobody")
		wantCode(t, err, subagent.CodeProjectionsUnavailable)

		other := projection.StateUnit()
		other.Version++
		taken, err := projection.NewRegistry(other)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := subagent.New(t.Context(), subagent.Config{Agents: s.Agents, Projections: taken}); err == nil {
			t.Error("a registry with another version of a unit was taken")
		}
		if keys := unitKeys(taken); len(keys) != 1 {
			t.Errorf("D26: a service that was refused left units: %v", keys)
		}
	})
}

// LIST-01, LIST-08, LIST-20, LIST-35, LIST-46, D36: what real children leave is listed
// while they run and afterwards, when their agents, their provider and the service
// itself are gone. No agent is loaded for it.
func TestListOfRealChildren(t *testing.T) {
	store := memory.New()
	synctest.Test(t, func(t *testing.T) {
		s := subagenttest.NewSystem(t, subagenttest.Options{Store: store})
		units, err := projection.NewRegistry(projection.BuiltIn()...)
		if err != nil {
			t.Fatal(err)
		}
		service, err := subagent.New(t.Context(), subagent.Config{Agents: s.Agents, Projections: units})
		if err != nil {
			t.Fatal(err)
		}
		leave, err := service.Register(spawn.New(""))
		if err != nil {
			t.Fatal(err)
		}
		gate := make(chan struct{})
		s.Answer("work", scripted.Step{subagenttest.Hold(gate), scripted.SayLiteral("done")})
		parent := s.Parent(t)
		req := subagenttest.Request(parent, "work")
		req.Label = ptr("worker")
		run, err := service.Start(t.Context(), spawn.DefaultName, req)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		id := string(run.ID())
		rows, err := service.ListChildren(t.Context(), parent.ID())
		wantRows(t, "at work", rows, err, `child `+id+` one-shot running "worker"`)
		close(gate)
		subagenttest.Await(t, run)
		leave()
		agents := len(s.Agents.List())
		rows, err = service.ListDescendants(t.Context(), parent.ID())
		wantRows(t, "done", rows, err, `child `+id+` one-shot inactive "worker" 1<`+string(parent.ID()))
		if sum := rows[0].Summary(); sum.State == nil || sum.State.Reason != session.EndCompleted {
			t.Errorf("LIST-47: summary %+v", sum)
		}
		if n := len(s.Agents.List()); n != agents {
			t.Errorf("LIST-01: the listing brought %d agents to life", n-agents)
		}
		// A Lister needs less than a service: a registry of sessions that knows no agents.
		reg, err := session.NewRegistry(t.Context(), session.Config{Store: store})
		if err != nil {
			t.Fatal(err)
		}
		rows, err = subagent.Lister{Sessions: reg, Projections: units}.ListChildren(t.Context(), parent.ID())
		wantRows(t, "LIST-46 alone", rows, err, `child `+id+` one-shot inactive "worker"`)
		if err := service.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// LIST-36, D42, DES-20: what compaction does to a log shows in no listing, whichever
// rung answers.
func TestListCompacted(t *testing.T) {
	labs(t, func(t *testing.T, l *lab) {
		said := func(id string) session.Payload {
			return &session.UserMessage{Message: message.Message{ID: message.ID(id), Role: message.RoleUser, Content: []message.Block{message.Text(id)}, Source: message.UserSource()}}
		}
		log := []session.Payload{
			&session.TurnStart{Turn: 1}, descriptorOf(session.ModeContinuable, "same"), &session.StepStart{Turn: 1, Step: 1}, said("one"), said("two"),
			&session.StepEnd{Turn: 1, Step: 1}, &session.TurnEnd{Turn: 1, Kind: session.EndCompleted},
		}
		for _, id := range []string{"plain", "compacted"} {
			s := l.live(childOf(id, "p"), log...)
			if id == "compacted" {
				l.append(s, &session.CompactionStart{CompactionID: "z"})
				if _, err := s.Append(session.Draft{Payload: said("summary"), Op: session.SurfaceOp{Kind: session.OpReplace, Start: 3, End: 4}, Sources: []int64{3, 4}}); err != nil {
					t.Fatal(err)
				}
				l.append(s, &session.CompactionEnd{CompactionID: "z"})
			}
		}
		l.wantChildren(t, "live", "p", `child plain continuable running "same"`, `child compacted continuable running "same"`)
		if l.store == nil {
			return
		}
		l.end("plain")
		l.end("compacted")
		l.wantChildren(t, "from the row", "p", `child plain continuable inactive "same"`, `child compacted continuable inactive "same"`)
		l.store.Store = cellless{l.store.Store}
		l.wantChildren(t, "read anew", "p", `child plain continuable inactive "same"`, `child compacted continuable inactive "same"`)
		if len(l.store.inspects) != 2 {
			t.Errorf("inspected %v", l.store.inspects)
		}
	})
}

// cellless is a store that keeps no checkpoints.
type cellless struct{ session.Store }

func (c cellless) List(ctx context.Context, f session.Filter, p session.Page) (session.Listing, error) {
	l, err := c.Store.List(ctx, f, p)
	for i := range l.Records {
		l.Records[i].Cells = nil
	}
	return l, err
}
