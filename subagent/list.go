package subagent

import (
	"context"
	"fmt"
	"strings"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

// Activity says whether the log of a child is live, and nothing more: neither how its
// work went nor whether it can be continued (seam LIST-20). Delivery decides that.
type Activity string

// The activities.
const (
	// ActivityRunning: the session is live in this process, or a live process holds
	// it in the store. An agent need not be at work.
	ActivityRunning  Activity = "running"
	ActivityInactive Activity = "inactive"
)

// RowKind tells the two kinds of row apart (seam LIST-48).
type RowKind string

// The kinds of row.
const (
	// RowChild has ID, Mode, Activity, HasChildren, and Label where there is one.
	RowChild RowKind = "child"
	// RowDiagnostic has ID and Reason, and nothing of what the session is.
	RowDiagnostic RowKind = "diagnostic"
)

// Reason is why a session that was delegated to is not listed as a child.
type Reason string

// The reasons.
const (
	// ReasonCorrupt: the log was read and holds no identity of the child's own, or is
	// not the log that was listed, or a projection unit cannot be folded over it.
	ReasonCorrupt Reason = "corrupt"
	// ReasonUnavailable: the log could not be read this time. The next listing tries
	// again.
	ReasonUnavailable Reason = "unavailable"
	// ReasonUnsupported is reserved; nothing produces it (seam LIST-22).
	ReasonUnsupported Reason = "unsupported"
)

// Row is one line of a listing. It is detached: later changes to the session do not
// show in it.
type Row struct {
	Kind RowKind
	ID   session.ID
	// CreatedAt, in ms since the epoch, is the row's place among its siblings.
	CreatedAt int64

	Mode        string // session.ModeOneShot or session.ModeContinuable
	Label       *string
	Activity    Activity
	HasChildren bool

	Reason Reason

	// Parent and Depth say where a descendant stands: who is its parent, and how many
	// edges lie between it and the root of the listing, ordinary sessions in between
	// included; a direct child has depth 1 (seam TREE-02, TREE-05, TREE-10). They are
	// zero in a listing of children.
	Parent session.ID
	Depth  int

	sum projection.Summary
	rec *session.Record // holds the checkpoints that were not read yet, or nil
}

// Summary returns what else the listing happened to come by: title, tokens, how the
// last turn ended, how long it worked (seam LIST-47). It reads nothing, so that fields
// may be missing; of a diagnostic there is none.
func (r *Row) Summary() projection.Summary {
	if r.rec != nil {
		return projection.SummaryOf(r.rec)
	}
	return r.sum
}

// The bounds of a page.
const (
	DefaultPageLimit = 100
	MaxPageLimit     = 1000
)

// ListPage asks for a part of a listing.
type ListPage struct {
	// Limit bounds the rows; 0 is DefaultPageLimit, and more than MaxPageLimit is refused.
	Limit int
	// After is the Next of the page before, or "".
	After string
}

// RowPage is a part of a listing. Next asks for the part behind it; only an empty
// Next says that there is none. Rows may be fewer than the limit, and even none,
// where children are in the making.
type RowPage struct {
	Rows []Row
	Next string
}

// Lister lists the session-backed subagents of a session: those that are live in this
// process, those that a store holds, or both (seam LIST, TREE; core D34–D37).
//
// It reads logs and their checkpoints alone. It knows no agents, no providers and no
// continuations, loads nothing and writes nothing, and needs no parent that is live
// or even stored. It is safe for concurrent use, costs no goroutine beyond a call,
// and holds no lock while it reads.
//
// What is listed. Every session of session.OriginSubagent whose header names the
// parent, in order of creation time, then id; but not one that is itself the root of a
// tree, for it came from elsewhere without its parent (see session.Filter). Where a session is both live and
// stored, the live one counts, header and all. Live sessions are looked at before the
// store is read, so each child is listed at most once however sessions come and go
// meanwhile, and one that was there before the call and is not removed during it is
// listed exactly once.
//
// What a child is, its identity, comes from the first of these that tells, and only
// from a descriptor behind what the session inherited (design § 5.4):
//
//  1. a live session: the values that move with its log; its log is not read;
//  2. a stored one: the identity in its row;
//  3. one reading of its log that changes nothing, of at most projection.ReadLimit
//     sessions at once, folded anew for each listing.
//
// A child without one is left out while it runs, for it is in the making; otherwise it
// is a diagnostic, corrupt. A log that cannot be read is a diagnostic too, unavailable.
// Neither hides anything else. HasChildren is told by headers alone.
//
// Errors of every method, checked in this order and before anything is read:
// CodeProjectionsUnavailable, CodeSessionStoreUnavailable, CodeInvalidRequest for an
// empty id or a page that makes no sense, CodeCancelled with the cause if ctx has
// ended. Later come CodeCancelled, at whatever point ctx ends, and the store's own
// error where it cannot be listed.
type Lister struct {
	// Sessions are the live ones. Its store holds the others; without a store there
	// are none, which is no error.
	Sessions *session.Registry
	// Projections has the identity unit.
	Projections *projection.Registry
}

// ListChildren lists all direct children of a session. One that nobody knows has none.
func (l Lister) ListChildren(ctx context.Context, parent session.ID) ([]Row, error) {
	w, _, _, err := l.begin(ctx, parent, ListPage{})
	if err != nil {
		return nil, err
	}
	found, _, err := w.children(parent, place{}, 0)
	if err != nil {
		return nil, err
	}
	return w.resolve(found)
}

// PageChildren lists a part of what ListChildren lists.
//
// A position lies behind the last session that was looked at, in the order of
// creation: pages neither repeat a child nor pass one over, whatever is created or
// removed between them. A child that is created meanwhile comes on a later page if
// its place is there, as it is unless the clock was set back. One that was in the
// making when its page was read is in the next listing.
func (l Lister) PageChildren(ctx context.Context, parent session.ID, p ListPage) (RowPage, error) {
	w, limit, after, err := l.begin(ctx, parent, p)
	if err != nil {
		return RowPage{}, err
	}
	found, more, err := w.children(parent, after, limit)
	if err != nil {
		return RowPage{}, err
	}
	return w.page(found, more)
}

// ListDescendants lists the whole tree below a session: parents before what is below
// them, siblings in order of creation time, then id. Ordinary sessions have no row,
// but what is below them does; so it is with children that are left out or are
// diagnostics. Headers that go round in a circle end the way where they meet a
// session that was seen (seam TREE-01…06).
func (l Lister) ListDescendants(ctx context.Context, root session.ID) ([]Row, error) {
	w, _, _, err := l.begin(ctx, root, ListPage{})
	if err != nil {
		return nil, err
	}
	found, err := w.tree(root)
	if err != nil {
		return nil, err
	}
	return w.resolve(found)
}

// PageDescendants lists a part of what ListDescendants lists; it looks at the headers
// of the whole tree, but at the identities of the page alone.
//
// Pages neither repeat a descendant nor pass one over that is there from the first
// page to the last. What is created meanwhile is listed if its place, behind its
// elder siblings and all below them, was not passed. If the session that After names
// has been removed, its place is not known any more: CodeInvalidRequest.
func (l Lister) PageDescendants(ctx context.Context, root session.ID, p ListPage) (RowPage, error) {
	w, limit, after, err := l.begin(ctx, root, p)
	if err != nil {
		return RowPage{}, err
	}
	found, err := w.tree(root)
	if err != nil {
		return RowPage{}, err
	}
	if p.After != "" {
		at := -1
		for i, c := range found {
			if c.place == after {
				at = i
			}
		}
		if at < 0 {
			return RowPage{}, errorf(CodeInvalidRequest, "list subagents: session %s, behind which the page begins, is not below %s any more", after.id, root)
		}
		found = found[at+1:]
	}
	more := len(found) > limit
	return w.page(found[:min(limit, len(found))], more)
}

// page resolves what was found.
func (w *walk) page(found []*candidate, more bool) (RowPage, error) {
	rows, err := w.resolve(found)
	if err != nil {
		return RowPage{}, err
	}
	p := RowPage{Rows: rows}
	if more {
		last := found[len(found)-1]
		p.Next = session.Position(last.at, last.id)
	}
	return p, nil
}

func (p ListPage) check() (limit int, after place, err error) {
	limit = p.Limit
	switch {
	case limit == 0:
		limit = DefaultPageLimit
	case limit < 0 || limit > MaxPageLimit:
		return 0, after, errorf(CodeInvalidRequest, "list subagents: a page has from 1 to %d rows, not %d", MaxPageLimit, limit)
	}
	if p.After != "" {
		if after.at, after.id, err = session.ParsePosition(p.After); err != nil {
			return 0, after, &Error{Code: CodeInvalidRequest, Msg: "list subagents", Err: err}
		}
	}
	return limit, after, nil
}

// begin checks what a listing needs and what it was asked, and looks at the live sessions.
func (l Lister) begin(ctx context.Context, of session.ID, p ListPage) (w *walk, limit int, after place, err error) {
	switch {
	case l.Projections == nil:
		err = errorf(CodeProjectionsUnavailable, "list subagents: there is no projection registry")
	case !l.identifies():
		err = errorf(CodeProjectionsUnavailable, "list subagents: the projection registry lacks the unit %q", session.CellIdentity)
	case l.Sessions == nil:
		err = errorf(CodeSessionStoreUnavailable, "list subagents: there is no session registry")
	case of == "":
		err = errorf(CodeInvalidRequest, "list subagents: of which session is not said")
	default:
		limit, after, err = p.check()
	}
	if err != nil {
		return nil, 0, after, err
	}
	w = &walk{ctx: ctx, units: l.Projections, store: l.Sessions.Store()}
	if err := w.ended(); err != nil {
		return nil, 0, after, err
	}
	w.look(l.Sessions)
	return w, limit, after, nil
}

// identifies reports whether the identity unit of this build is registered.
func (l Lister) identifies() bool {
	want := projection.IdentityUnit()
	for _, u := range l.Projections.Units() {
		if u.Key == want.Key {
			return u.Version == want.Version
		}
	}
	return false
}

// ended returns the error of a call whose ctx has ended, or nil.
func (w *walk) ended() error {
	if w.ctx.Err() == nil {
		return nil
	}
	return &Error{Code: CodeCancelled, Msg: "list subagents", Err: context.Cause(w.ctx)}
}

// fail is the error of a read that failed, which concerned one session or several: the
// end of ctx, if that was why.
func (w *walk) fail(what string, of []session.ID, err error) error {
	if end := w.ended(); end != nil {
		return end
	}
	const most = 10 // that are named
	names := fmt.Sprintf("session %s", of[0])
	if len(of) > 1 {
		names = "sessions " + strings.Trim(fmt.Sprint(of[:min(len(of), most)]), "[]")
	}
	if more := len(of) - most; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("list the %s of %s: %w", what, names, err)
}
