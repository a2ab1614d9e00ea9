package main

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/offshoot-dev/offshoot/session"
)

const (
	// maxHeldChunks bounds, in bytes, the live chunks that wait for stdout's reader.
	maxHeldChunks = 4 << 20
	// writePiece is the most that is written at once, so that a slow reader can be
	// told from one that has stopped.
	writePiece = 32 << 10
	// stallGrace is how long a reader may take nothing once the run is to end.
	stallGrace = 2 * time.Second
)

// errStalled gives up on a reader that takes nothing any more.
var errStalled = errors.New("nobody reads it; the rest is in the log only")

// lineWriter writes stdout on one goroutine, so that whoever reads it slowly, or not at
// all, never holds up an agent or the storing of its log. Chunks are bounded: those
// that find no room are counted, and the count is written in their place. Events
// are never lost and take no room: what waits is only how far each session's log is
// stored, and the log is read when it is written. The lines of one session keep
// their order. After the first failure nothing more is written.
type lineWriter struct {
	w      io.Writer
	show   func(string) string // makes whole lines fit for a terminal; nil is as they are
	failed func()              // told once, without the lock
	wake   chan struct{}
	done   chan struct{}
	writes atomic.Int64 // pieces that the reader took

	mu      sync.Mutex // guards following
	queue   []*lineItem
	last    map[session.ID]*lineItem // the last of each session that waits
	held    int                      // bytes of the lines in the queue
	closing bool
	err     error
}

// lineItem is lines, or what became of a session since its item before: chunks
// that were dropped, then stored events.
type lineItem struct {
	id       session.ID
	lines    []byte
	dropped  int64
	s        *session.Session // of from and to; nil without events
	from, to int64
}

func newLineWriter(w io.Writer, show func(string) string, failed func()) *lineWriter {
	o := &lineWriter{
		w: w, show: show, failed: failed, last: map[session.ID]*lineItem{},
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	go o.run()
	return o
}

// stored is a hook: the events from from up to to are on disk.
func (o *lineWriter) stored(s *session.Session, from, to int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	it := o.openLocked(s.ID())
	if it.s != nil && it.s != s {
		it = o.pushLocked(&lineItem{id: s.ID()}) // the session was opened anew
	}
	if it.s == nil {
		it.s, it.from = s, from
	}
	it.to = to
}

// chunk takes the line of a live chunk, which it owns from then on.
func (o *lineWriter) chunk(id session.ID, line []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held > 0 && o.held+len(line) > maxHeldChunks {
		o.openLocked(id).dropped++
		return
	}
	o.pushLocked(&lineItem{id: id, lines: line})
}

// openLocked returns the item that more of a session can be added to.
func (o *lineWriter) openLocked(id session.ID) *lineItem {
	if it := o.last[id]; it != nil && it.lines == nil {
		return it
	}
	return o.pushLocked(&lineItem{id: id})
}

func (o *lineWriter) pushLocked(it *lineItem) *lineItem {
	if o.err != nil || o.closing {
		return it // nobody writes it
	}
	o.queue = append(o.queue, it)
	o.last[it.id] = it
	o.held += len(it.lines)
	o.signal()
	return it
}

func (o *lineWriter) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// finish writes what waits and then the last lines, and returns when that is done,
// or has failed. Once hurry is closed, a reader that takes nothing for stallGrace
// is given up with errStalled.
func (o *lineWriter) finish(last []byte, hurry <-chan struct{}) error {
	o.mu.Lock()
	if len(last) > 0 {
		o.pushLocked(&lineItem{lines: last})
	}
	o.closing = true
	o.mu.Unlock()
	o.signal()
	select {
	case <-o.done:
		return o.failure()
	case <-hurry:
	}
	for {
		taken := o.writes.Load()
		select {
		case <-o.done:
			return o.failure()
		case <-time.After(stallGrace):
		}
		if o.writes.Load() == taken {
			o.fail(errStalled)
			return o.failure()
		}
	}
}

func (o *lineWriter) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

func (o *lineWriter) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	o.queue, o.last, o.held = nil, map[session.ID]*lineItem{}, 0
}

// run writes until finish; a writer that is stuck in a write is left behind.
func (o *lineWriter) run() {
	defer close(o.done)
	var buf []byte
	for {
		it := o.next()
		if it == nil {
			return
		}
		if buf = o.write(buf[:0], it); cap(buf) > 1<<20 {
			buf = nil
		}
	}
}

func (o *lineWriter) next() *lineItem {
	for {
		o.mu.Lock()
		if len(o.queue) > 0 {
			it := o.queue[0]
			o.queue[0] = nil
			o.queue = o.queue[1:]
			o.held -= len(it.lines)
			if o.last[it.id] == it {
				delete(o.last, it.id)
			}
			o.mu.Unlock()
			return it
		}
		closing := o.closing
		o.mu.Unlock()
		if closing {
			return nil
		}
		<-o.wake
	}
}

func (o *lineWriter) write(buf []byte, it *lineItem) []byte {
	buf = append(buf, it.lines...)
	if it.dropped > 0 {
		buf = append(droppedLine(buf, it.id, it.dropped), '\n')
	}
	if it.s != nil {
		for e := range it.s.Events(it.from) {
			if e.Seq >= it.to {
				break
			}
			buf = append(eventLine(buf, it.id, &e), '\n')
			if len(buf) < writePiece {
				continue
			}
			if !o.put(buf) {
				return buf
			}
			buf = buf[:0]
		}
	}
	o.put(buf)
	return buf
}

// put writes whole lines and reports whether that went well.
func (o *lineWriter) put(lines []byte) bool {
	if o.show != nil {
		lines = []byte(o.show(string(lines)))
	}
	for len(lines) > 0 {
		if o.failure() != nil {
			return false
		}
		n := min(len(lines), writePiece)
		if _, err := o.w.Write(lines[:n]); err != nil {
			o.fail(err)
			o.failed()
			return false
		}
		lines = lines[n:]
		o.writes.Add(1)
	}
	return true
}
