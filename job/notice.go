package job

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// Plugin is the source of the notices (core M2).
const Plugin = "job"

// maxSummary bounds a notice's summary, in runes (core M2).
const maxSummary = 120

// noticeID is the id of a job's one notice; job ids are unique in their owner's log.
func noticeID(id string) message.ID { return message.ID("job:" + id) }

func notice(id, summary, text string) message.Message {
	return message.Message{
		ID: noticeID(id), Role: message.RoleUser, Content: []message.Block{message.Text(text)},
		Source: message.NewSource(message.SourcePlugin, message.SourceDetails{Plugin: Plugin, Form: message.FormNotice, Summary: oneLine(summary, maxSummary)}),
	}
}

func completion(i *Info) message.Message {
	name := i.ID
	if i.Label != "" {
		name += " (" + i.Label + ")"
	}
	what := "Its result"
	if i.State != Completed {
		what = "Why"
	}
	return notice(i.ID, fmt.Sprintf("job %s: %s", i.State, name),
		fmt.Sprintf("Background job %s is over: %s. %s can be read with %s.", name, i.State, what, OutputTool))
}

// tell gives the owner its notice: a busy one takes it into the next step of its
// open turn, an idle one is woken, within the bound. The insertion may wake in both
// cases, so that a turn which is just ending does not leave it unseen.
func (r *Registry) tell(o *owner, j *job) {
	o.turnstile <- struct{}{}
	defer func() { <-o.turnstile }()
	turn, open, _ := o.agent.Session().LastTurn()
	if !open {
		turn = 0
	}
	r.mu.Lock()
	if r.shut || o.ended {
		o.toldLocked(j)
		r.mu.Unlock()
		return
	}
	r.sending++
	m := completion(&j.info)
	wake := o.wakes.grant(m.ID, turn, o.untoldLocked()-1)
	r.mu.Unlock()
	err := o.agent.Send(m, session.NextStep, wake)
	r.mu.Lock()
	defer r.mu.Unlock()
	o.toldLocked(j)
	if err != nil {
		o.wakes.refuse(m.ID)
	}
	if err != nil && !errors.Is(err, agent.ErrDisposed) {
		r.cfg.Logger.Error("the notice of a background job could not be delivered", "agent", string(o.agent.ID()), "job", j.info.ID, "error", err)
	}
	r.sentLocked()
}

// sentLocked says that a notice under way has reached its inbox, or is refused.
func (r *Registry) sentLocked() {
	if r.sending--; r.sending == 0 && r.sent != nil {
		close(r.sent)
		r.sent = nil
	}
}

// Restate says which jobs of a are not over, for whoever sums up a's conversation and
// must not let them be forgotten; "" if there are none. Their notices come as ever.
func (r *Registry) Restate(a *agent.Agent) string {
	var b strings.Builder
	for _, i := range r.List(a) {
		if i.State.Ended() {
			continue
		}
		if b.Len() == 0 {
			b.WriteString("Background jobs that you started and that are not over:\n")
		}
		fmt.Fprintf(&b, "- %s", i.ID)
		if i.Label != "" {
			fmt.Fprintf(&b, " (%s)", i.Label)
		}
		fmt.Fprintf(&b, ": %s\n", i.State)
	}
	if b.Len() == 0 {
		return ""
	}
	fmt.Fprintf(&b, "You get a notice when one of them is over; then %s reads its result. %s ends one before.", OutputTool, KillTool)
	return b.String()
}

// StartedMeta is the meta of a tool result that names a job which it started: from
// it a later process knows what a job was promised to.
func StartedMeta(id string) []byte {
	return append(jsonx.AppendStringField(jsonx.AppendStringField([]byte{'{'}, "kind", "background"), "jobId", id), '}')
}

// startedID reads StartedMeta back; "" is another result.
func startedID(meta []byte) string {
	var kind, id string
	err := jsonx.ReadObject(meta, func(key string, raw []byte) (err error) {
		switch key {
		case "kind":
			kind, err = jsonx.String(raw)
		case "jobId":
			id, err = jsonx.String(raw)
		}
		return err
	})
	if err != nil || kind != "background" {
		return ""
	}
	return id
}

// past is what a log names of jobs that this process knows nothing of, by id.
type past map[string]pastJob

type pastJob struct {
	seq       int64
	inherited bool // it stands in the part that came with a seed: another agent's
	told      bool // its end was told
}

// readPast reads a whole log, once for each owner.
func readPast(s *session.Session) past {
	jobs := past{}
	own := s.Header().SeedLength
	// A notice may be stored without the result that named its job: the number is
	// taken all the same.
	note := func(id message.ID, seq int64) {
		if name, ok := strings.CutPrefix(string(id), "job:"); ok {
			if _, n := split(name); n == 0 {
				return // no job has such an id, whoever wrote it
			}
			j, named := jobs[name]
			if !named {
				j = pastJob{seq: seq, inherited: seq < own}
			}
			j.told = true
			jobs[name] = j
		}
	}
	for e := range s.Events(0) {
		switch e.Type {
		case session.TypeImported:
			// What was promised elsewhere is owed by nobody here.
			for id, j := range jobs {
				j.told = true
				jobs[id] = j
			}
		case session.TypeToolResult:
			p, ok := e.Payload().(*session.ToolResult)
			if !ok || p.Meta == nil || e.Op == session.OpReplace { // one that was shortened stands for the one it replaced
				continue
			}
			id := startedID(p.Meta)
			if _, n := split(id); n > 0 {
				jobs[id] = pastJob{seq: e.Seq, inherited: e.Seq < own, told: jobs[id].told}
			}
		case session.TypeUserMessage:
			if p, ok := e.Payload().(*session.UserMessage); ok && p.Message.Source.Details().Plugin == Plugin && e.Op == session.OpAppend {
				note(p.Message.ID, e.Seq)
			}
		}
	}
	for _, q := range s.Inbox(session.NextStep) {
		note(q.Message.ID, q.Seq)
	}
	return jobs
}

// split takes an id apart; n is 0 for what Start gives to no job. A log may have
// been written by anybody, and two spellings of one number would be two jobs.
func split(id string) (kind string, n int64) {
	at := strings.LastIndexByte(id, '-')
	if at < 0 || !validKind(id[:at]) {
		return "", 0
	}
	n, err := strconv.ParseInt(id[at+1:], 10, 64)
	if err != nil || n > maxNumber || strconv.FormatInt(n, 10) != id[at+1:] {
		return "", 0
	}
	return id[:at], n
}
