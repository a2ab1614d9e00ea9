package session_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/session"
)

// A store that panics costs an error, not the session: the flush says so, the next
// one reads back what happened and goes on, and closing still ends (H5).
func TestStorePanicsAreContained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		reg := newRegistry(t, session.Config{Store: f})
		s := prepare(t, reg, session.New{ID: "s"})
		mustAppend(t, s, say("a", "a"))
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.setHook(func(op string) verdict {
			if op == "append" {
				panic("no store today")
			}
			return verdict{}
		})
		mustAppend(t, s, say("b", "b"))
		if err := s.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "no store today") {
			t.Errorf("flush: %v", err)
		}
		f.setHook(nil)
		if err := s.Flush(t.Context()); err != nil {
			t.Errorf("the flush after it: %v", err)
		}
		if row := f.row("s"); row == nil || len(row.events) != 2 {
			t.Errorf("stored: %+v", row)
		}
		f.setHook(func(op string) verdict {
			if op == "close" || op == "check" {
				panic("no " + op + " today")
			}
			return verdict{}
		})
		if err := s.CheckOwner(t.Context()); err == nil {
			t.Error("the check's panic was lost")
		}
		if err := reg.Abandon(t.Context(), s); err == nil {
			t.Error("the close's panic was lost")
		}
	})
}
