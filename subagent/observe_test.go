package subagent_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// describe is one line about an event.
func describe(e subagent.Event) string {
	switch {
	case e.Started != nil:
		return "start " + e.Started.Provider
	case e.Ended != nil:
		return "end " + string(e.Ended.StopReason) + " " + message.JoinText(e.Ended.Output)
	case e.ProviderAdded != "":
		return "added " + e.ProviderAdded
	default:
		return "removed " + e.ProviderRemoved
	}
}

// EVT-32, P39: an observer that blocks holds nobody up and loses nothing: it hears
// all, in order and start before end, after the children are gone and the provider
// too; its panic is contained. stop delivers what waits.
func TestEVT32Observers(t *testing.T) {
	var log bytes.Buffer
	in(t, subagenttest.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, s *subagenttest.System) {
		block := make(chan struct{})
		var heard []string
		stop := s.Service.Observe(func(e subagent.Event) {
			<-block
			heard = append(heard, describe(e))
			if e.Started != nil {
				panic("an observer's mistake")
			}
		}, nil)
		remove := s.Register(t, spawn.New("helper"))
		parent := s.Parent(t)
		other := s.Parent(t)
		var ofOther []string
		stopOther := s.Service.Observe(func(e subagent.Event) { ofOther = append(ofOther, describe(e)) }, other)
		var want []string
		const runs = 100
		for range runs {
			s.Answer("hello", scripted.Step{scripted.SayLiteral("hi")})
			run := s.Start(t, t.Context(), "helper", subagenttest.Request(parent, "hello"))
			subagenttest.Await(t, run)
			synctest.Wait() // its end was told
			if err := run.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			want = append(want, "start helper", "end completed hi")
		}
		remove()
		if len(heard) != 0 {
			t.Fatalf("heard already: %q", heard)
		}
		close(block)
		stop()
		want = append(append([]string{"added helper"}, want...), "removed helper")
		if diff := cmp.Diff(want, heard); diff != "" {
			t.Errorf("heard:\n%s", diff)
		}
		stopOther()
		stopOther()
		if len(ofOther) != 0 {
			t.Errorf("EVT-13: another parent's observer heard %q", ofOther)
		}
		if n := strings.Count(log.String(), "an observer's mistake"); n != runs {
			t.Errorf("%d panics are logged, want %d", n, runs)
		}
	})
}

// After stop nothing is told, also of a run whose start was.
func TestObserverStopped(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, spawn.New("helper"))
		parent := s.Parent(t)
		s.Answer("wait", scripted.Step{scripted.SayLiteral("hi")})
		var heard []string
		stop := s.Service.Observe(func(e subagent.Event) { heard = append(heard, describe(e)) }, parent)
		run := s.Start(t, t.Context(), "helper", subagenttest.Request(parent, "wait"))
		stop()
		subagenttest.Await(t, run)
		synctest.Wait()
		if len(heard) == 0 || heard[0] != "start helper" {
			t.Fatalf("heard %q", heard)
		}
		before := len(heard)
		s.Answer("again", scripted.Step{scripted.SayLiteral("hi")})
		subagenttest.Await(t, s.Start(t, t.Context(), "helper", subagenttest.Request(parent, "again")))
		synctest.Wait()
		if len(heard) != before {
			t.Errorf("heard after stop: %q", heard[before:])
		}
	})
}
