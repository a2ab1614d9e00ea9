package session_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/session"
)

// A check that finds the session taken over tells the hooks, once, as a failed
// append does: whoever drives the tree cancels it (design § 4, Ownership).
func TestCheckOwnerTellsOfALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		reg := newRegistry(t, session.Config{Store: f})
		told := 0
		reg.AddHooks(session.Hooks{Fenced: func(*session.Session) { told++ }})
		s := prepare(t, reg, session.New{ID: "s"})
		mustAppend(t, s, say("a", "a"))
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.setHook(func(op string) verdict {
			if op == "check" {
				return verdict{skip: true, err: &session.FencedError{ID: "s"}}
			}
			return verdict{}
		})
		for range 2 {
			var lost *session.FencedError
			if err := s.CheckOwner(t.Context()); !errors.As(err, &lost) {
				t.Errorf("check: %v", err)
			}
		}
		if told != 1 {
			t.Errorf("the hooks were told %d times", told)
		}
		f.setHook(nil)
		if err := reg.Abandon(t.Context(), s); err != nil {
			t.Error(err)
		}
	})
}
