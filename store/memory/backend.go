package memory

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/offshoot-dev/offshoot/session"
)

// takeoverAge and deadline are those of every store (design § 4): a heartbeat as
// old as the first may be taken over, and an owner goes by the second.
const (
	takeoverAge = 15 * time.Second
	deadline    = 10 * time.Second
)

// Backend is what several stores share, as processes share a file: each Store is
// an owner of its own. It is safe for concurrent use.
type Backend struct {
	mu       sync.Mutex
	sessions map[session.ID]*row
	order    []*row                // by creation time, then id
	children map[session.ID][]*row // of each parent, in that order
	trees    map[session.ID]*tree
	owners   int // how many stores were opened; numbers their ids
}

// tree is what is known of all sessions of one root together.
type tree struct {
	rows   int
	owners map[*Store]int // how many sessions each owner holds
}

// NewBackend returns an empty backend.
func NewBackend() *Backend {
	return &Backend{sessions: map[session.ID]*row{}, children: map[session.ID][]*row{}, trees: map[session.ID]*tree{}}
}

// row is a stored session. The backend's mutex guards it.
type row struct {
	header session.Header
	root   session.ID
	// prefix is the session whose own events end the prefix, of prefixLen events.
	prefix    *row
	prefixLen int64
	referrers int // rows whose prefix is this one
	tree      *tree
	// batches are the session's own events, by the calls that brought them. Only
	// appended to: a reader keeps the slice as it was.
	batches [][]session.Event
	own     int64 // how many events they are
	owner   *Store
	writer  *Writer // the owner's; nil when none was handed out
	epoch   int64
	updated int64
	cells   []session.Checkpoint
	state   string
	damaged error // set by Damage
}

func (r *row) id() session.ID { return r.header.ID }

// parent is the session whose child this one is, or "": the root of a tree is
// nobody's, whatever its header names.
func (r *row) parent() session.ID {
	if r.root == r.header.ID {
		return ""
	}
	return r.header.ParentSession
}

func (r *row) head() int64 { return r.prefixLen + r.own }

// add stores events that follow those of the row.
func (r *row) add(events []session.Event) {
	if len(events) > 0 {
		if r.batches == nil {
			r.batches = make([][]session.Event, 0, 2) // those of a one-shot child
		}
		r.batches = append(r.batches, session.Undecoded(events))
		r.own += int64(len(events))
	}
}

// take makes a store the owner of a row that has none.
func (r *row) take(s *Store, id session.ID) *Writer {
	r.epoch++
	r.owner = s
	r.writer = &Writer{s: s, r: r, id: id, epoch: r.epoch}
	r.tree.owners[s]++
	return r.writer
}

// release gives a row up without a trace in its log.
func (r *row) release() {
	if r.tree.owners[r.owner]--; r.tree.owners[r.owner] == 0 {
		delete(r.tree.owners, r.owner)
	}
	r.owner, r.writer = nil, nil
}

// fence takes a row from its owner.
func (r *row) fence() {
	r.writer.fenced = true
	r.release()
	r.epoch++
}

// put stores checkpoints, but for those that head does not reach yet.
func (r *row) put(cells []session.Checkpoint) {
	r.cells = slices.Grow(r.cells, max(0, len(cells)-len(r.cells)))
	for _, c := range cells {
		if c.Seq >= r.head() {
			continue
		}
		if c.Key == session.CellState {
			r.state = stateOf(c.Value)
		}
		i, found := slices.BinarySearchFunc(r.cells, c.Key, func(a session.Checkpoint, key string) int { return cmp.Compare(a.Key, key) })
		if found {
			r.cells[i] = c
		} else {
			r.cells = slices.Insert(r.cells, i, c)
		}
	}
}

// segment is a run of a log's events that lie in one session: from seq from up to end.
type segment struct {
	batches   [][]session.Event
	from, end int64
	next      *segment
}

// segments returns the log's events from seq on up to its head, prefix included,
// as they are now.
func (r *row) segments(seq int64) *segment {
	var first *segment
	end := r.head()
	for r != nil && seq < end {
		from := max(seq, r.prefixLen)
		if from < end {
			first = &segment{batches: r.batches[r.batchOf(from):], from: from, end: end, next: first}
		}
		end = min(end, r.prefixLen)
		r = r.prefix
	}
	return first
}

// batchOf returns the index of the batch that holds an own event.
func (r *row) batchOf(seq int64) int {
	i, found := slices.BinarySearchFunc(r.batches, seq, func(b []session.Event, seq int64) int { return cmp.Compare(b[0].Seq, seq) })
	if !found {
		i--
	}
	return i
}

// add enters a row; nearly always it is the newest.
func (b *Backend) add(r *row) {
	b.sessions[r.id()] = r
	b.order = insert(b.order, r)
	if p := r.parent(); p != "" {
		b.children[p] = insert(b.children[p], r)
	}
	t := b.trees[r.root]
	if t == nil {
		t = &tree{owners: map[*Store]int{}}
		b.trees[r.root] = t
	}
	t.rows++
	r.tree = t
	if r.prefix != nil {
		r.prefix.referrers++
	}
}

// remove takes out a row that nothing refers to.
func (b *Backend) remove(r *row) {
	delete(b.sessions, r.id())
	b.order = take(b.order, r)
	if p := r.parent(); p != "" {
		if b.children[p] = take(b.children[p], r); len(b.children[p]) == 0 {
			delete(b.children, p)
		}
	}
	if r.tree.rows--; r.tree.rows == 0 {
		delete(b.trees, r.root)
	}
	if r.prefix != nil {
		r.prefix.referrers--
	}
}

// insert puts a row in its place.
func insert(order []*row, r *row) []*row {
	i := len(order)
	if i > 0 && order[i-1].compare(r.header.CreatedAt, r.id()) > 0 {
		i = search(order, r.header.CreatedAt, r.id())
	}
	return slices.Insert(order, i, r)
}

// take removes a row.
func take(order []*row, r *row) []*row {
	i := search(order, r.header.CreatedAt, r.id())
	return slices.Delete(order, i, i+1)
}

// search returns the index of the first row not before a position.
func search(order []*row, at int64, id session.ID) int {
	i, _ := slices.BinarySearchFunc(order, struct{}{}, func(r *row, _ struct{}) int { return r.compare(at, id) })
	return i
}

// claimTree refuses while another live owner holds a session of the tree, and
// takes it from dead ones. The caller holds the mutex.
func (b *Backend) claimTree(s *Store, id, root session.ID, now time.Time) error {
	t := b.trees[root]
	if t == nil {
		return nil
	}
	dead := false
	for o := range t.owners {
		if o == s {
			continue
		}
		if o.alive(now) {
			return &session.OwnedError{ID: id, Owner: o.snapshot(now)}
		}
		dead = true
	}
	if !dead {
		return nil
	}
	for _, r := range b.order {
		if r.tree == t && r.owner != nil && r.owner != s {
			r.fence()
		}
	}
	return nil
}

// bequeath moves the events that others refer to when r goes: to the referrer
// with the longest prefix, which takes over r's own prefix; the others then
// refer to that one. The caller holds the mutex.
func (b *Backend) bequeath(r *row) {
	if r.referrers == 0 {
		return
	}
	var heir *row
	for _, o := range b.order {
		if o.prefix == r && (heir == nil || o.prefixLen > heir.prefixLen) {
			heir = o
		}
	}
	for _, o := range b.order {
		if o.prefix == r && o != heir {
			o.prefix = heir
			heir.referrers++
		}
	}
	r.referrers = 0
	heir.inherit(r)
	if heir.prefix != nil {
		heir.prefix.referrers++
	}
}

// inherit makes the own events of r that the row refers to the row's own.
func (r *row) inherit(from *row) {
	keep := r.prefixLen - from.prefixLen
	batches := make([][]session.Event, 0, len(from.batches)+len(r.batches))
	for _, b := range from.batches {
		if left := keep - (b[0].Seq - from.prefixLen); left > 0 {
			batches = append(batches, b[:min(left, int64(len(b)))])
		}
	}
	r.batches, r.own = append(batches, r.batches...), r.own+keep
	r.prefix, r.prefixLen = from.prefix, from.prefixLen
}
