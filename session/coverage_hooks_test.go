package session_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/session"
)

// core S4, S30, H5: a hook that fails is contained. It undoes no append and no write,
// those behind it are still told, and Flush alone reports what its hooks said.
func TestFailingHooksAreContained_S4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		reg, s, detach := live(t, f, session.New{})
		var told []string
		reg.AddHooks(session.Hooks{
			Stored: func(*session.Session, int64, int64) { panic("stored") },
			Fenced: func(*session.Session) { panic("fenced") },
			Flush:  func(context.Context, *session.Session) error { panic("flush") },
		})
		reg.AddHooks(session.Hooks{
			Stored: func(_ *session.Session, from, to int64) { told = append(told, fmt.Sprint("stored ", from, "..", to)) },
			Fenced: func(*session.Session) { told = append(told, "fenced") },
			Flush:  func(context.Context, *session.Session) error { told = append(told, "flush"); return nil },
		})
		mustAppend(t, s, say("a", ""), say("b", ""))
		if took, err := reg.Flush(t.Context(), s); !took || err == nil {
			t.Errorf("flush: %v, %v", took, err)
		}
		if s.Durable() != 2 || f.head("s") != 2 {
			t.Errorf("durable %d, stored %d", s.Durable(), f.head("s"))
		}
		mustAppend(t, s, say("c", ""))
		f.mu.Lock()
		f.rows["s"].fenced = true
		f.mu.Unlock()
		after(session.WriteDelay)
		if s.Head() != 3 {
			t.Errorf("head %d", s.Head())
		}
		same(t, "told", told, "flush", "stored 0..2", "fenced")
		var fenced *session.FencedError
		if err := detach(t.Context()); !errors.As(err, &fenced) {
			t.Errorf("detach: %v", err)
		}
	})
}
