package jsonl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/offshoot-dev/offshoot/session"
)

// What Import refuses beside what is wrong with a single log. A log whose id is
// stored already is session.ErrExists.
var (
	// ErrTwice: two of the logs have the same id.
	ErrTwice = errors.New("the same session comes twice")
	// ErrParentStored: the log names a parent that is stored already and does not
	// come with it. An import is data: it puts no child into anybody's tree.
	ErrParentStored = errors.New("its parent session is stored here already; a tree is imported as a whole or not at all")
	// ErrNoIdentity: the log of a delegated session that comes with its parent does not
	// say which child it is (session.Report.Identity).
	ErrNoIdentity = errors.New("it comes with its parent and does not say which child it is")
)

// Log is one log that was imported.
type Log struct {
	Name   string // of the source
	Line   int    // of the header in it
	Header session.Header
	// Root is the root of its tree: a session whose parent does not come with it is
	// one, and keeps what its header names as lineage.
	Root session.ID
	// Report is what the log holds. Whatever is queued is parked (session.Session.Parked).
	Report session.Report
	// Torn is the cut last line that was left out, or nil.
	Torn *Torn

	source *Source
	start  int64
	parent *Log
	state  session.Import
}

// Import stores the logs of all sources: all of them or none. Everything is read and
// held against every rule first. Then parents are stored before their children, and
// owned by this process until the last one is stored; if that fails, what was stored
// is deleted again, and the error says if that failed too. A process that dies
// meanwhile leaves sessions that nothing opens (session.ErrIncomplete), and complete
// ones of the same set.
//
// It returns the logs, parents first. An error beside them is about giving up their
// ownership: all of them are stored. Otherwise errors are *Error: those of a Reader, of
// session.Registry.CheckImport and Import; ErrTwice, ErrParentStored,
// ErrNoIdentity, session.ErrExists; or the store's, or the cause of ctx's end; *UndoError.
func Import(ctx context.Context, reg *session.Registry, sources []Source) ([]*Log, error) {
	s := set{ctx: ctx, reg: reg, byID: map[session.ID]*Log{}}
	for i := range sources {
		if err := s.check(&sources[i]); err != nil {
			return nil, err
		}
	}
	if err := s.place(); err != nil {
		return nil, err
	}
	if err := s.store(); err != nil {
		left, uerr := s.undo()
		if len(left) > 0 {
			return nil, &UndoError{Err: err, Undo: uerr, Left: left}
		}
		return nil, errors.Join(err, uerr)
	}
	return s.logs, s.release()
}

// UndoError is an import that failed and could not be taken back.
type UndoError struct {
	Err  error // why the import failed
	Undo error
	Left []session.ID // what may be stored of it
}

func (e *UndoError) Error() string {
	return fmt.Sprintf("%v; what was stored could not all be deleted again: %v; delete these yourself: %v", e.Err, e.Undo, e.Left)
}

// Unwrap returns both errors.
func (e *UndoError) Unwrap() []error { return []error{e.Err, e.Undo} }

// set is one import.
type set struct {
	ctx  context.Context
	reg  *session.Registry
	logs []*Log
	byID map[session.ID]*Log
}

// check reads a source to its end and notes its logs.
func (s *set) check(src *Source) (err error) {
	f, err := src.Open()
	if err != nil {
		return &Error{Name: src.Name, Err: err}
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r := NewReader(f, src.Name)
	for n := 0; ; n++ {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF) && n == 0:
			return &Error{Name: src.Name, Err: &session.CorruptError{Seq: -1, Err: errors.New("there is no header")}}
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		l := &Log{Name: src.Name, Line: r.Line(), Header: h, source: src, start: r.Start()}
		if src.path != "" {
			if err := CheckPath(src.path, &h); err != nil {
				return r.fail(&session.CorruptError{ID: h.ID, Seq: -1, Err: err})
			}
		}
		if s.byID[h.ID] != nil {
			return l.fault(fmt.Errorf("session %s: %w (also %s:%d)", h.ID, ErrTwice, s.byID[h.ID].Name, s.byID[h.ID].Line))
		}
		if l.Report, err = s.reg.CheckImport(h, s.events(r)); err != nil {
			return r.blame(err)
		}
		l.Torn = r.Torn()
		s.byID[h.ID], s.logs = l, append(s.logs, l)
	}
}

// blame says where a fault was found that the Reader did not find itself.
func (r *Reader) blame(err error) error {
	if own := (*Error)(nil); errors.As(err, &own) {
		return err
	}
	return r.where(err)
}

// fault is an error about the log as a whole.
func (l *Log) fault(err error) error { return &Error{Name: l.Name, Line: l.Line, Err: err} }

// events are a Reader's until ctx ends.
func (s *set) events(r *Reader) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		for e, err := range r.Events() {
			if cause := context.Cause(s.ctx); cause != nil {
				yield(session.Event{}, cause)
				return
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// place finds out whose children the sessions are, refuses those that may not come
// in, and puts parents before their children.
func (s *set) place() error {
	store := s.reg.Store()
	if store == nil {
		return errors.New("import: there is no store")
	}
	for _, l := range s.logs {
		h := &l.Header
		if stored, err := store.Exists(s.ctx, h.ID); err != nil {
			return err
		} else if stored {
			return l.fault(fmt.Errorf("session %s: %w", h.ID, session.ErrExists))
		}
		if h.ParentSession == "" {
			continue
		}
		if l.parent = s.byID[h.ParentSession]; l.parent != nil {
			if h.Origin == session.OriginSubagent && h.DelegationDepth <= l.parent.Header.DelegationDepth {
				return l.fault(&session.CorruptError{ID: h.ID, Seq: -1, Err: fmt.Errorf(
					"its delegation depth %d is not below its parent's, %d", h.DelegationDepth, l.parent.Header.DelegationDepth)})
			}
			if err := l.Report.Identity; err != nil {
				return l.fault(fmt.Errorf("session %s: %w: %w; without its parent it can be imported as the root of its own tree", h.ID, ErrNoIdentity, err))
			}
			continue
		}
		stored, err := store.Exists(s.ctx, h.ParentSession)
		if err != nil {
			return err
		}
		if stored {
			return l.fault(fmt.Errorf("session %s: parent %s: %w", h.ID, h.ParentSession, ErrParentStored))
		}
	}
	levels := make(map[*Log]int, len(s.logs))
	for _, l := range s.logs {
		top, level := l, 0
		for top.parent != nil {
			if top, level = top.parent, level+1; level > len(s.logs) {
				return l.fault(&session.CorruptError{ID: l.Header.ID, Seq: -1, Err: errors.New("its parents go round in a circle")})
			}
		}
		l.Root, levels[l] = top.Header.ID, level
	}
	slices.SortStableFunc(s.logs, func(a, b *Log) int { return levels[a] - levels[b] })
	return nil
}

// store reads every log once more and stores it.
func (s *set) store() error {
	for _, l := range s.logs {
		if err := s.storeOne(l); err != nil {
			return err
		}
	}
	return nil
}

func (s *set) storeOne(l *Log) (err error) {
	f, err := l.source.Open()
	if err != nil {
		return l.fault(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Seek(l.start, io.SeekStart); err != nil {
		return l.fault(err)
	}
	r := NewReader(f, l.Name)
	r.line = l.Line - 1
	h, err := r.Next()
	if err == nil && h != l.Header {
		err = r.where(errors.New("the file has changed since it was checked"))
	}
	if err != nil {
		return err
	}
	l.state = session.Import{Header: h, Root: l.Root, Head: l.Report.Events}
	if err := s.reg.Import(s.ctx, &l.state, s.events(r)); err != nil {
		return r.blame(err)
	}
	return nil
}

func (s *set) release() error {
	var errs []error
	for _, l := range slices.Backward(s.logs) {
		errs = append(errs, s.reg.Release(s.ctx, &l.state))
	}
	return errors.Join(errs...)
}

// undo deletes what was stored, children first.
func (s *set) undo() (left []session.ID, err error) {
	errs := []error{s.release()}
	for _, l := range slices.Backward(s.logs) {
		if err := s.reg.Discard(s.ctx, &l.state); err != nil {
			left, errs = append(left, l.Header.ID), append(errs, err)
		}
	}
	return left, errors.Join(errs...)
}
