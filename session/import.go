package session

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
)

// ErrIncomplete: the import of a session was cut short, so that what is stored of
// it is not its log. Such a session can be looked at and deleted, nothing else.
var ErrIncomplete = errors.New("the import of this session was not finished")

// How much of a log one write of an import holds, about: what is in memory at once,
// and what a reader of the store has to take in at once afterwards.
const (
	importBytes  = 512 << 10
	importEvents = 4096
)

// cellImport is the checkpoint that says how many events an import is to store,
// for those that one write cannot hold. Nobody but this file reads it.
const cellImport = "import"

// CheckImport holds a log that was written elsewhere against every rule that
// appends obey, and keeps neither events nor messages. Unlike a seed it may end in
// an open turn: a crash leaves that, and the next PrepareStored closes it. Events
// start at seq 0, those that the session inherited included.
//
// Errors: those of events; *CorruptError, *UnsupportedError, *InvariantError.
func (r *Registry) CheckImport(h Header, events iter.Seq2[Event, error]) (Report, error) {
	s, err := r.rebuild(Record{Header: h, Meta: Meta{Root: h.ID}}, events, true)
	if err != nil {
		return Report{}, err
	}
	return s.report(), nil
}

// Import is one log that was written elsewhere, on its way into the store. The
// first three fields are set by whoever imports.
type Import struct {
	Header Header
	// Root is the id of the tree's root: the session's own where its parent does
	// not come with it, whatever its header names. Lineage then stays a word in the
	// header and makes nobody its parent (see Filter).
	Root ID
	// Head is the number of events as CheckImport counted them.
	Head int64

	writer  Writer
	created bool // the store may hold something of it
	held    bool // the id is reserved
}

// Import stores a log that CheckImport accepted, with the checkpoints that listings
// show, and marks its end with session/imported unless the log ends in that mark.
// The events are checked once more while they pass: what is stored breaks no rule and has
// Head events, also where the source has changed meanwhile, so that these are not the very
// events that were checked. Memory is bounded by the longest event.
//
// Afterwards this process owns the session, so that nobody opens one of a tree
// that is still being stored: Release gives it up. After an error something of it
// may be stored, which nothing opens (ErrIncomplete), and the caller calls Release
// and Discard as well.
//
// Errors: ErrExists, before anything is stored; those of CheckImport and of the
// store; the cause of ctx's end.
func (r *Registry) Import(ctx context.Context, in *Import, events iter.Seq2[Event, error]) error {
	id := in.Header.ID
	if r.cfg.Store == nil {
		return fmt.Errorf("import session %s: there is no store", id)
	}
	if err := in.Header.check(); err != nil {
		return fmt.Errorf("import session %s: %w", id, err)
	}
	if err := r.reserve(id); err != nil {
		return fmt.Errorf("import: %w", err)
	}
	in.held = true
	w := intake{r: r, in: in}
	if err := w.run(ctx, events); err != nil {
		return fmt.Errorf("import session %s: %w", id, err)
	}
	return nil
}

// Release gives up the ownership of an imported session. It is idempotent.
func (r *Registry) Release(ctx context.Context, in *Import) error {
	var err error
	if w := in.writer; w != nil {
		in.writer = nil
		err = contain("store", func() error { return w.Close(context.WithoutCancel(ctx)) })
	}
	if in.held {
		in.held = false
		r.release(in.Header.ID)
	}
	return err
}

// Discard deletes what Import stored. No session of the tree may be owned any more.
func (r *Registry) Discard(ctx context.Context, in *Import) error {
	if !in.created {
		return nil
	}
	err := contain("store", func() error { return r.cfg.Store.Delete(context.WithoutCancel(ctx), in.Header.ID) })
	if err == nil || errors.Is(err, ErrNotFound) {
		in.created = false
		return nil
	}
	return fmt.Errorf("delete what was imported of session %s: %w", in.Header.ID, err)
}

// intake stores one import, a batch at a time.
type intake struct {
	r     *Registry
	in    *Import
	s     *Session // holds the rules' state alone
	batch []Event
	size  int
	head  int64 // what is stored
}

func (w *intake) run(ctx context.Context, events iter.Seq2[Event, error]) (err error) {
	if w.s, err = w.r.blank(Record{Header: w.in.Header, Meta: Meta{Root: w.in.Root}}, true); err != nil {
		return err
	}
	last := Type("")
	for e, err := range events {
		if err != nil {
			return err
		}
		if err := w.s.take(e); err != nil {
			return err
		}
		// The last event is never stored without what follows below.
		if w.size >= importBytes || len(w.batch) >= importEvents {
			if err := w.flush(ctx, nil); err != nil {
				return err
			}
		}
		last = e.Type
		e.payload = nil
		w.batch, w.size = append(w.batch, e), w.size+len(e.data)
	}
	if err := w.s.whole(); err != nil {
		return err
	}
	if w.s.g.head != w.in.Head {
		return fmt.Errorf("the log has %d events now, and had %d when it was checked", w.s.g.head, w.in.Head)
	}
	if last != TypeImported {
		e := Event{Seq: w.s.g.head, Time: w.r.nowMS()}
		_, err := w.s.encode(&e, &Draft{Payload: &Imported{}})
		if err == nil {
			err = w.s.take(e)
		}
		if err != nil {
			return err
		}
		w.batch = append(w.batch, e)
	}
	var cells []Checkpoint
	if w.s.cells != nil {
		cells = w.s.cells.Take(w.s.g.head)
	}
	return w.flush(ctx, cells)
}

func (w *intake) flush(ctx context.Context, cells []Checkpoint) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	// A write whose caller gave up would leave an outcome that nobody learns.
	ctx = context.WithoutCancel(ctx)
	in := w.in
	next := w.head + int64(len(w.batch))
	err := contain("store", func() (err error) {
		if in.writer != nil {
			return in.writer.Append(ctx, w.head, w.batch, cells)
		}
		if next < in.Head {
			value := append(jsonx.AppendIntField([]byte{'{'}, "events", in.Head), '}')
			cells = append(cells, Checkpoint{Key: cellImport, Version: 1, Seq: next - 1, Value: value})
		}
		in.writer, err = w.r.cfg.Store.Create(ctx, in.Header, Meta{Root: in.Root}, w.batch, cells)
		in.created = err == nil || !decided(err)
		return err
	})
	if err != nil {
		return fmt.Errorf("storing events %d to %d: %w", w.head, next-1, err)
	}
	// A store may keep the slice.
	w.batch, w.size, w.head = nil, 0, next
	return nil
}

// Incomplete returns an ErrIncomplete for a session whose import was cut short. The
// record is one that Store.Inspect gave: a listing does not hold what tells.
func (rec *Record) Incomplete() error {
	for _, c := range rec.Cells {
		if c.Key != cellImport {
			continue
		}
		events := int64(-1)
		err := jsonx.ReadObject(c.Value, func(key string, raw []byte) error {
			if key != "events" {
				return jsonx.UnknownKey(key)
			}
			return setInt(&events, raw)
		})
		if err == nil && events < 0 {
			err = errors.New("field \"events\" is missing")
		}
		if err != nil {
			return fmt.Errorf("%w, or its checkpoint %q is damaged: %w: delete it and import it again", ErrIncomplete, cellImport, err)
		}
		if rec.Head < events {
			return fmt.Errorf("%w (%d of its %d events are stored): delete it and import it again", ErrIncomplete, rec.Head, events)
		}
	}
	return nil
}
