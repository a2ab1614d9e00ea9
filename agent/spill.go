package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// spill makes the event that keeps the whole text of a result that was cut.
func (b *batch) spill(i int, c *tool.Cut) *session.ToolSpill {
	t := b.t
	texts, lost := c.Texts(t.agent.reg.cfg.MaxSpillBytes)
	return session.NewToolSpill(session.ToolSpill{
		Session: t.agent.ID(), Turn: t.number, Step: t.step, CallID: b.calls[i].ID,
		Bytes: int64(c.Size()), Omitted: int64(lost),
	}, texts)
}

// SpillError refuses to read a spill. Without Err there is none of that name that
// the caller may read: whether there is one for somebody else it does not say.
type SpillError struct {
	Ref session.SpillRef
	Err error // what failed, or nil
}

func (e *SpillError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("read %s: %v", e.Ref, e.Err)
	}
	return fmt.Sprintf("there is no %s that this agent may read", e.Ref)
}

// Unwrap returns Err.
func (e *SpillError) Unwrap() error { return e.Err }

// ReadSpill returns the text of a spill, or of a tool's result or a message of the
// user's side, which a compaction may have shortened on the surface since, for an agent
// that may read it. The caller must
// be the exact live agent (design § 4, Authority), and the spill must stand in its own
// log, what it inherited included, or in the log of a session that was delegated by
// it or, over any number of steps, by one that was: what a child was told and did is
// no secret from those whose work it does. Nothing else is readable, whatever a
// message names: not a parent's log, not a sibling's, not another tree's.
//
// A live log is read from memory, a stored one without taking it. Errors: *SpillError.
func (r *Registry) ReadSpill(ctx context.Context, caller tool.Caller, ref session.SpillRef) (string, error) {
	fail := func(err error) (string, error) { return "", &SpillError{Ref: ref, Err: err} }
	a, ok := r.Live(caller)
	if !ok {
		return fail(nil)
	}
	text, ok, err := r.textAt(ctx, a.session, ref)
	if !ok && err == nil && ref.Session != a.ID() {
		below, under, lerr := r.delegated(ctx, a.session, ref.Session)
		if err = lerr; under {
			text, ok, err = r.textAt(ctx, below, ref)
		}
	}
	if !ok || err != nil {
		return fail(err)
	}
	return text, nil
}

// textAt returns the text of that name in a live log or, with s nil, in the stored
// one; false when there is none.
func (r *Registry) textAt(ctx context.Context, s *session.Session, ref session.SpillRef) (text string, ok bool, err error) {
	var e session.Event
	if s != nil {
		if err := s.Load(ctx); err != nil {
			return "", false, err
		}
		e, _ = s.Event(ref.Seq)
	} else {
		for stored, err := range r.cfg.Sessions.Store().ReadFrom(ctx, ref.Session, ref.Seq) {
			if err != nil {
				return "", false, err
			}
			e = stored
			break
		}
	}
	switch e.Type {
	case session.TypeToolSpill, session.TypeToolResult, session.TypeUserMessage:
	default:
		return "", false, nil
	}
	payload, err := r.cfg.Sessions.PayloadOf(e)
	if err != nil {
		return "", false, &session.CorruptError{ID: ref.Session, Seq: ref.Seq, Err: err}
	}
	switch p := payload.(type) {
	case *session.ToolSpill:
		if p.Session == ref.Session {
			text, err = p.Text()
			return text, err == nil, err
		}
		return "", false, nil
	case *session.ToolResult:
		text = message.JoinText(p.Message.Content[0].Content)
	case *session.UserMessage:
		text = message.JoinText(p.Message.Content)
	}
	// These do not say whose they are, as a spill does.
	if s != nil && s.ID() != ref.Session {
		if ok, err := r.inherited(ctx, s.Header(), e.Seq, ref.Session); !ok || err != nil {
			return "", false, err
		}
	}
	return text, true, nil
}

// maxAncestors bounds how far up an event is followed: a log that somebody wrote may
// name itself among its ancestors.
const maxAncestors = 64

// inherited reports whether the event of that number, in the log with that header, came
// from another one, where it has the same number.
func (r *Registry) inherited(ctx context.Context, h session.Header, seq int64, from session.ID) (bool, error) {
	for n := 0; n < maxAncestors && seq < h.SeedLength && h.ParentSession != ""; n++ {
		if h.ParentSession == from {
			return true, nil
		}
		_, above, _, err := r.lineage(ctx, h.ParentSession)
		if err != nil {
			if errors.Is(err, session.ErrNotFound) {
				err = nil
			}
			return false, err
		}
		h = above
	}
	return false, nil
}

// delegated reports whether a session was delegated by top, directly or not. It
// returns the session if it is live; nil means that it is stored only.
func (r *Registry) delegated(ctx context.Context, top *session.Session, id session.ID) (*session.Session, bool, error) {
	first, h, root, err := r.lineage(ctx, id)
	for err == nil && root == top.Root() && h.Origin == session.OriginSubagent {
		if h.ParentSession == top.ID() {
			return first, true, nil
		}
		depth := h.DelegationDepth
		if _, h, root, err = r.lineage(ctx, h.ParentSession); err == nil && h.DelegationDepth >= depth {
			break // no log says so that was made by delegation; it could go in a circle
		}
	}
	if errors.Is(err, session.ErrNotFound) {
		err = nil
	}
	return nil, false, err
}

// lineage returns a session's header and root, and the session itself if it is live.
func (r *Registry) lineage(ctx context.Context, id session.ID) (*session.Session, session.Header, session.ID, error) {
	if s, ok := r.cfg.Sessions.Get(id); ok {
		return s, s.Header(), s.Root(), nil
	}
	store := r.cfg.Sessions.Store()
	if store == nil {
		return nil, session.Header{}, "", session.ErrNotFound
	}
	rec, _, err := store.Inspect(ctx, id)
	return nil, rec.Header, rec.Meta.Root, err
}
