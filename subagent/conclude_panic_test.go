package subagent_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// TEAR-08: what fails while an epoch is concluded, even a panic, keeps neither the child
// nor its parent: the epoch ends as an error, and the handle is disposed.
func TestConclusionFails_TEAR08(t *testing.T) {
	for name, fail := range map[string]func(*session.Header, session.Event) error{
		"an error": func(_ *session.Header, e session.Event) error {
			if e.Type == session.TypeSettled {
				return errBoom
			}
			return nil
		},
		"a panic": func(_ *session.Header, e session.Event) error {
			if e.Type == session.TypeSettled {
				panic(errBoom)
			}
			return nil
		},
	} {
		inNest(t, subagenttest.Options{Validators: []session.Validator{fail}}, func(t *testing.T, l *nest) {
			acc := l.start("worker", "begin")
			synctest.Wait()
			l.gone(acc.Child)
			heard := l.said(l.parent.ID())
			switch {
			case len(heard) != 2:
				t.Errorf("%s: the parent heard %q", name, heard)
			case name == "a panic" && !strings.Contains(heard[0], "failed"):
				t.Errorf("%s: the parent heard %q", name, heard)
			}
			if name == "a panic" {
				if got := l.ends(acc.Child); len(got) != 1 || got[0] != "error (ACTIVATION_TEARDOWN_FAILED)" {
					t.Errorf("%s: ended as %q", name, got)
				}
			}
			// The epoch is not over: the child takes more.
			l.followup(acc.Child, "more")
			synctest.Wait()
			l.gone(acc.Child)
		})
	}
}
