package subagent

import (
	"context"
	"errors"
	"fmt"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// Delivery says how a report reaches the parent.
type Delivery string

// The deliveries (seam REP-06…08, amendment P14). The service has no default.
const (
	// DeliverQuiet adds to what the parent will read next, and wakes nobody.
	DeliverQuiet Delivery = "quiet"
	// DeliverWakeup makes one ordinary later turn of each report, never the open one.
	DeliverWakeup Delivery = "wakeup"
	// DeliverNextStep joins the nearest step of an open turn, or opens one.
	DeliverNextStep Delivery = "next-step"
)

// Valid reports whether d is one of them.
func (d Delivery) Valid() bool {
	return d == DeliverQuiet || d == DeliverWakeup || d == DeliverNextStep
}

// Report sends content from a live continuable child to its direct parent, and to nobody
// else: the exact child is the authority, and whom it reaches follows from the child's
// header (seam REP). It ends neither the child's turn nor its Activation, and a child may
// report as often as it likes.
//
// It returns the id of the message once the record of it is stored in the parent's log;
// ctx ends with that. Errors, checked in this order in one hold: CodeInvalidRequest for an
// unknown delivery or empty content; the cause of ctx's end; CodeDraining;
// CodeUnauthorized for whoever is not the exact live agent of an Activation;
// CodeActivationClosing; CodeParentUnavailable where the parent is not live, is being
// disposed, or cannot store the message.
func (s *Service) Report(ctx context.Context, child *agent.Agent, content []message.Block, how Delivery) (message.ID, error) {
	return s.m.report(ctx, child, content, how)
}

func (m *manager) report(ctx context.Context, child *agent.Agent, content []message.Block, how Delivery) (message.ID, error) {
	if !how.Valid() {
		return "", errorf(CodeInvalidRequest, "report: the delivery is %q; it must be %q, %q or %q", string(how), DeliverQuiet, DeliverWakeup, DeliverNextStep)
	}
	if emptyContent(content) {
		return "", errorf(CodeInvalidRequest, "report: it is empty")
	}
	if err := session.CheckMessage(&message.Message{ID: "report", Role: message.RoleUser, Content: content, Source: message.UserSource()}); err != nil {
		return "", &Error{Code: CodeInvalidRequest, Msg: "report", Err: err}
	}
	if child == nil {
		return "", errorf(CodeUnauthorized, "report: only a continuable subagent can report to its parent")
	}
	acc, id, err := m.beginReport(ctx, child, content, how)
	if err != nil {
		return "", err
	}
	if err := acc.Finish(ctx); err != nil {
		return "", parentUnavailable(child, err)
	}
	return id, nil
}

func emptyContent(content []message.Block) bool {
	for i := range content {
		if content[i].Type != message.BlockText || content[i].Text != "" {
			return false
		}
	}
	return true
}

func parentUnavailable(child *agent.Agent, err error) error {
	return &Error{Code: CodeParentUnavailable, Msg: fmt.Sprintf("the parent of subagent %s takes no report now", child.ID()), Err: err}
}

// beginReport puts a report into the parent's inbox, in one hold (seam REP-17).
func (m *manager) beginReport(ctx context.Context, child *agent.Agent, content []message.Block, how Delivery) (*agent.Acceptance, message.ID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := context.Cause(ctx); err != nil {
		return nil, "", err
	}
	k := keyOf(child)
	act := m.resident[k]
	if m.over {
		return nil, "", errOver
	}
	if _, live := m.agents.Live(child); !live || act == nil || act.handle == nil {
		return nil, "", errorf(CodeUnauthorized, "report: %s is not a live continuable subagent", child.ID())
	}
	path, _ := m.graph.Path(k)
	if err := m.refusalLocked(act.id, m.graph.Admits(path)); errors.Is(err, ErrDraining) {
		return nil, "", err
	}
	if m.graph.Closing(k) {
		return nil, "", errorf(CodeActivationClosing, "subagent %s is being closed and cannot report any more", act.id)
	}
	to, live := m.agents.Get(act.parent)
	if !live {
		return nil, "", errorf(CodeParentUnavailable, "the parent of subagent %s is not live", act.id)
	}
	m.parentLocked(to)
	if above := m.resident[keyOf(to)]; above != nil && how != DeliverQuiet {
		above.told = true // whatever it was opened for, it has work now
	}
	msg := message.Message{
		ID: agent.NewMessageID(), Role: message.RoleUser,
		Content: append([]message.Block{message.Text(fmt.Sprintf("Report of subagent %q (%s), which goes on working:", act.label, act.id))}, cloneBlocks(content)...),
		Source:  message.NewSource(message.SourceSubagentReport, message.SourceDetails{Form: message.FormRelay, SenderSessionID: string(act.id)}),
	}
	target := session.NextStep
	if how == DeliverWakeup {
		target = session.NextTurn
	}
	acc, err := to.Begin(msg, target, how != DeliverQuiet)
	if err != nil {
		return nil, "", parentUnavailable(child, err)
	}
	return acc, msg.ID, nil
}
