package subagent

import (
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

// resolve makes rows of candidates, in their order; those in the making are left out.
func (w *walk) resolve(found []*candidate) ([]Row, error) {
	rows := make([]Row, len(found))
	var cold []int
	var ids []session.ID
	for i, c := range found {
		if !w.known(c, &rows[i]) {
			cold, ids = append(cold, i), append(ids, c.id)
		}
	}
	read, err := w.units.InspectAll(w.ctx, w.store, ids)
	if err == nil {
		for n, i := range cold {
			judge(found[i], &read[n], &rows[i])
		}
	}
	// The last word has ctx, also when everything was read before it ended (seam LIST-33).
	if end := w.ended(); end != nil {
		return nil, end
	}
	if err != nil {
		return nil, err
	}
	n := 0
	for i := range rows {
		if rows[i].Kind != "" {
			rows[n] = rows[i]
			n++
		}
	}
	clear(rows[n:])
	return rows[:n:n], nil
}

// known makes the row of a candidate whose log needs not be read: the first two rungs.
func (w *walk) known(c *candidate, row *Row) bool {
	switch {
	case c.live != nil:
		sum, err := w.units.Live(w.ctx, c.live)
		switch {
		case err != nil:
			c.diagnose(row, ReasonCorrupt)
		case c.own(sum.Identity):
			c.child(row, sum.Identity)
			row.sum = sum
		}
		return true
	case c.rec.Err != nil:
		// The row cannot be read, so neither can what it stands for.
		c.diagnose(row, ReasonUnavailable)
		return true
	}
	if id, ok := projection.IdentityOf(c.rec); ok && c.own(&id) {
		c.child(row, &id)
		row.rec = c.rec
		return true
	}
	return false
}

// judge makes the row of a candidate whose log was read: the third rung.
func judge(c *candidate, in *projection.Inspection, row *Row) {
	switch {
	case in.Err != nil:
		c.diagnose(row, ReasonUnavailable)
	case in.Header != c.rec.Header, in.Fault != nil:
		// Another life of the same id is not the session that was listed (seam LIST-18).
		c.diagnose(row, ReasonCorrupt)
	case c.own(in.Summary.Identity):
		c.child(row, in.Summary.Identity)
		row.sum = in.Summary
	case !c.running():
		c.diagnose(row, ReasonCorrupt)
	}
}

// own is the gate of every rung: an identity that was inherited is an ancestor's
// (seam LIST-41).
func (c *candidate) own(id *projection.Identity) bool { return id != nil && id.Seq >= c.seed }

func (c *candidate) running() bool { return c.live != nil || c.rec.Live }

func (c *candidate) child(row *Row, id *projection.Identity) {
	*row = Row{
		Kind: RowChild, ID: c.id, CreatedAt: c.at, Mode: id.Mode, Label: id.Label,
		Activity: ActivityInactive, HasChildren: c.hasChildren,
	}
	if c.running() {
		row.Activity = ActivityRunning
	}
	c.stand(row)
}

func (c *candidate) diagnose(row *Row, why Reason) {
	*row = Row{Kind: RowDiagnostic, ID: c.id, CreatedAt: c.at, Reason: why}
	c.stand(row)
}

// stand says where a descendant stands; candidates of a listing of children have no depth.
func (c *candidate) stand(row *Row) {
	if c.depth > 0 {
		row.Parent, row.Depth = c.parent, c.depth
	}
}
