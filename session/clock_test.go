package session_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
)

// The wall clock is set forward and back, by hours, by decades, to before its epoch
// and to where no number of milliseconds reaches. Every event is logged and stored,
// the write-behind window lasts as long as it lasts, and what was written reads back
// (G1, S1, D3).
func TestClockSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shift time.Duration
		var fixed *time.Time
		now := func() time.Time {
			if fixed != nil {
				return *fixed
			}
			return time.Now().Add(shift)
		}
		store := memory.New(memory.WithClock(now))
		reg := newRegistry(t, session.Config{Store: store, Now: now})
		steps := []func(){
			func() { shift = 0 },
			func() { shift = 3 * time.Hour },
			func() { shift = -9 * time.Hour },
			func() { shift = 20 * 365 * 24 * time.Hour },
			func() { at := time.Unix(-5, 0); fixed = &at },
			func() { at := time.Unix(0, 0); fixed = &at },
			func() { at := time.UnixMilli(math.MaxInt64 / 2); fixed = &at },
			func() { at := time.Time{}; fixed = &at },
		}
		for i, step := range steps {
			step()
			// Made at this time, and gone on with at every other.
			id := session.ID(fmt.Sprintf("s%d", i))
			s := prepare(t, reg, session.New{ID: id})
			detach := enter(t, reg, s)
			for j, other := range steps {
				fixed = nil
				other()
				mustAppend(t, s, say(fmt.Sprintf("m%d", j), "x"))
				after(session.WriteDelay)
				if d := s.Durable(); d != int64(j)+1 {
					t.Errorf("made at step %d, %d events are stored after the window of step %d", i, d, j)
				}
			}
			end(t, detach)
			fixed = nil
			again, err := reg.PrepareStored(t.Context(), id)
			if err != nil {
				t.Errorf("step %d: %v", i, err)
				continue
			}
			if again.Header() != s.Header() {
				t.Errorf("header %+v came back as %+v", s.Header(), again.Header())
			}
			h := s.Header()
			if _, err := session.ParseHeader(h.AppendJSON(nil)); err != nil {
				t.Error(err)
			}
			rec, events, err := store.Inspect(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			var raw []session.Event
			for e, err := range events {
				if err != nil {
					t.Fatal(err)
				}
				line := e.AppendEnvelope(nil)
				back, err := session.ParseEnvelope(line)
				if err != nil {
					t.Errorf("%s cannot be read: %v", line, err)
					continue
				}
				raw = append(raw, back)
			}
			if _, err := reg.Verify(rec, sequence(raw)); err != nil {
				t.Errorf("step %d: %v", i, err)
			}
			if err := reg.Abandon(t.Context(), again); err != nil {
				t.Error(err)
			}
		}
	})
}
