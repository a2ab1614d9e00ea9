package subagent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/storetest"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// A cold child takes a follow-up without its log being read, and goes on with it.
func TestFollowupReadsNoLog(t *testing.T) {
	faulty := storetest.NewFaulty(memory.New())
	inNest(t, subagenttest.Options{Store: faulty, CheckpointFrom: 1}, func(t *testing.T, l *nest) {
		l.Answer("and now", scripted.Step{scripted.SayLiteral("the second answer")})
		cold := l.start("cold", "begin").Child
		synctest.Wait()
		read := make(chan struct{})
		faulty.Plan(func(p storetest.Point) storetest.Fault {
			if p.Op != storetest.OpEvents || p.ID != cold {
				return storetest.Fault{}
			}
			return storetest.Fault{Wait: func(context.Context) { <-read }}
		})
		id := l.followup(cold, "and now")
		s := l.liveAgent(cold).Session()
		if !slices.ContainsFunc(s.Inbox(session.NextTurn), func(q session.Queued) bool { return q.Message.ID == id }) {
			t.Error("the message does not wait in the inbox")
		}
		close(read)
		synctest.Wait()
		if got := l.said(cold); !slices.Contains(got, "answer: the second answer") {
			t.Errorf("it said %q", got)
		}
		faulty.Plan(nil)
	})
}

// One whose log is damaged in the middle takes it, too; the epoch fails with what is
// wrong, before a model is asked, and the parent is told.
func TestFollowupToADamagedLog(t *testing.T) {
	faulty := storetest.NewFaulty(memory.New())
	inNest(t, subagenttest.Options{Store: faulty, CheckpointFrom: 1}, func(t *testing.T, l *nest) {
		cold := l.start("cold", "begin").Child
		synctest.Wait()
		asked := 0
		l.Answer("and now", scripted.Step{scripted.Func(func(context.Context, *llm.Request) (scripted.Step, error) {
			asked++
			return scripted.Step{scripted.SayLiteral("from nowhere")}, nil
		})})
		faulty.Plan(func(p storetest.Point) storetest.Fault {
			if p.Op != storetest.OpEvents || p.ID != cold {
				return storetest.Fault{}
			}
			return storetest.Fault{Err: &session.CorruptError{ID: cold, Seq: 3, Err: errors.New("a bit fell over")}}
		})
		l.followup(cold, "and now")
		synctest.Wait()
		if asked > 0 {
			t.Errorf("the model was asked %d times", asked)
		}
		faulty.Plan(nil)
		_, own := l.log(cold)
		last := own[len(own)-1]
		payload, err := l.Sessions.PayloadOf(last)
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := payload.(*session.Settled); !ok || p.Epoch != 2 || p.StopReason != "error" {
			t.Errorf("its log ends in %s %s", last.Type, last.Data())
		}
		told := strings.Join(l.said(l.parent.ID()), "\n")
		if !strings.Contains(told, "a bit fell over") {
			t.Errorf("the parent was told %s", told)
		}
	})
}
