package projection

import (
	"bytes"
	"math/bits"

	"github.com/offshoot-dev/offshoot/session"
)

// cells are the values of every unit for one session. Its log's lock guards them.
type cells struct {
	set    *set
	values []Value
	// dirty marks values that are not stored as they stand, taken those that the
	// last Take handed out, faulty the units that panicked.
	dirty, taken, faulty uint64
}

// NewCells returns the cells of one session, for session.Config. The first batch
// carries every cell, whatever its value, so that a reopened session replaces
// what an older build may have left; later ones carry what changed (core D25, D28).
func (r *Registry) NewCells(h *session.Header) session.Cells {
	s := r.current()
	c := &cells{set: s, values: make([]Value, len(s.units)), dirty: 1<<len(s.units) - 1}
	for i := range s.units {
		c.values[i] = s.units[i].Init(h)
	}
	return c
}

// Apply implements session.Fold. An event that concerns no unit costs one lookup.
func (c *cells) Apply(e *session.Event) {
	for _, i := range c.set.of(e.Type) {
		v, err := c.set.units[i].step(c.values[i], e, e.Payload())
		if err != nil {
			c.faulty |= 1 << i
			continue
		}
		if v != c.values[i] {
			c.values[i] = v
			c.dirty |= 1 << i
		}
	}
}

// Take implements session.Cells. A unit that panicked is left out: its last
// checkpoint lies behind the fault, so whoever reads on from it meets it again.
func (c *cells) Take(head int64) []session.Checkpoint {
	c.taken = c.dirty &^ c.faulty
	if head <= 0 {
		c.taken = 0
	}
	if c.taken == 0 {
		return nil
	}
	c.dirty &^= c.taken
	out := make([]session.Checkpoint, 0, bits.OnesCount64(c.taken))
	scratch := c.set.scratch.Get().(*[]byte)
	buf := (*scratch)[:0]
	for i := range c.values {
		if c.taken&(1<<i) == 0 {
			continue
		}
		u := &c.set.units[i]
		start := len(buf)
		buf = u.Append(buf, c.values[i])
		out = append(out, session.Checkpoint{Key: u.Key, Version: u.Version, Seq: head - 1, Value: buf[start:]})
	}
	all := bytes.Clone(buf) // a store may keep it
	for i := range out {
		size := len(out[i].Value)
		out[i].Value, all = all[:size:size], all[size:]
	}
	*scratch = buf
	c.set.scratch.Put(scratch)
	return out
}

// Refresh implements session.ResumableCells.
func (c *cells) Refresh() bool {
	c.dirty = 1<<len(c.values) - 1
	return c.faulty == 0
}

// Resume implements session.ResumableCells. What was read is stored as it stands.
func (c *cells) Resume(rec *session.Record) bool {
	for i := range c.values {
		v, ok := c.set.units[i].exact(rec)
		if !ok {
			return false
		}
		c.values[i] = v
	}
	c.dirty = 0
	return true
}

// Untake implements session.Cells.
func (c *cells) Untake() { c.dirty |= c.taken }
