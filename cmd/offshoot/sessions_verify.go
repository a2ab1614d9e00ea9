package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

func newVerifyCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify [ID]",
		Short: "Check stored sessions against every rule of the log",
		Long: "Replays one session, or all of them, through the rules that hold for every append, and\n" +
			"checks what they say of each other: parents and roots exist, a delegated session says what\n" +
			"it is, and every checkpoint equals a fold of the log. A last turn that is still open is\n" +
			"legal: it runs, or a crash cut it and opening the session will close it.\n\n" +
			"All faults are printed; the exit code is 1 if there is one, and the last line on stderr\n" +
			"names the first.\n\n" +
			"--json writes one object a line: {\"type\":\"session\",\"id\",\"ok\",\"events\",\"turns\",\"openTurn\",\n" +
			"\"queued\",\"faults\"} for each session, then {\"type\":\"summary\",\"sessions\",\"events\",\"turns\",\n" +
			"\"openTurns\",\"queued\",\"faults\"} with the number of faults.",
		Args: arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withShelf(cmd, func(ctx context.Context, s *shelf) error {
				return a.verify(ctx, s, args, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write one JSON object a line")
	return cmd
}

// verdict is what verify found out about one session, and its form in JSON.
type verdict struct {
	Type     string     `json:"type"`
	ID       session.ID `json:"id"`
	OK       bool       `json:"ok"`
	Events   int64      `json:"events"`
	Turns    int64      `json:"turns"`
	OpenTurn int64      `json:"openTurn,omitempty"`
	Queued   int        `json:"queued,omitempty"`
	Faults   []string   `json:"faults,omitempty"`

	live bool
	errs []error
}

// totals sums verdicts up, and is their last line in JSON.
type totals struct {
	Type      string `json:"type"`
	Sessions  int64  `json:"sessions"`
	Events    int64  `json:"events"`
	Turns     int64  `json:"turns"`
	OpenTurns int64  `json:"openTurns"`
	Queued    int64  `json:"queued"`
	Faults    int64  `json:"faults"`

	first error
}

func (a *app) verify(ctx context.Context, s *shelf, args []string, asJSON bool) error {
	if s.store == nil {
		if len(args) > 0 {
			_, _, err := s.find(ctx, args[0])
			return err
		}
		if err := a.say(s.why); err != nil {
			return err
		}
	}
	v, err := newVerifier(ctx, s)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(a.stdout)
	sum := totals{Type: "summary"}
	for one, err := range v.verdicts(ctx, args) {
		if err != nil {
			return errors.Join(err, w.Flush())
		}
		sum.add(&one)
		if err := writeVerdict(w, &one, asJSON); err != nil {
			return err
		}
	}
	if err := errors.Join(writeTotals(w, &sum, asJSON), w.Flush()); err != nil {
		return err
	}
	if sum.first != nil {
		return fmt.Errorf("verify: %s in %s; the first: %w", plural(sum.Faults, "fault"), plural(sum.Sessions, "session"), sum.first)
	}
	return nil
}

func (t *totals) add(v *verdict) {
	t.Sessions++
	t.Events += v.Events
	t.Turns += v.Turns
	t.Queued += int64(v.Queued)
	t.Faults += int64(len(v.errs))
	if v.OpenTurn != 0 {
		t.OpenTurns++
	}
	if t.first == nil && len(v.errs) > 0 {
		t.first = v.errs[0]
	}
}

func writeVerdict(w *bufio.Writer, v *verdict, asJSON bool) error {
	v.Type, v.OK = "session", len(v.errs) == 0
	for _, err := range v.errs {
		v.Faults = append(v.Faults, err.Error())
	}
	if asJSON {
		line, err := encode(v)
		if err == nil {
			_, err = w.Write(append(line, '\n'))
		}
		return err
	}
	p := &paper{w: w}
	for _, fault := range v.Faults {
		p.line("FAULT %s", oneLine(fault))
	}
	if v.OpenTurn != 0 {
		why := "interrupted; it is closed when the session is opened again"
		if v.live {
			why = "running"
		}
		p.line("session %s: turn %d is open (%s)", printable(string(v.ID)), v.OpenTurn, why)
	}
	return p.err
}

func writeTotals(w *bufio.Writer, t *totals, asJSON bool) error {
	if asJSON {
		line, err := encode(t)
		if err == nil {
			_, err = w.Write(append(line, '\n'))
		}
		return err
	}
	faults := "no fault"
	if t.Faults > 0 {
		faults = plural(t.Faults, "fault")
	}
	_, err := fmt.Fprintf(w, "%s, %s, %s: %s; %s, %s\n", plural(t.Sessions, "session"), plural(t.Events, "event"),
		plural(t.Turns, "turn"), faults, plural(t.OpenTurns, "open turn"), plural(t.Queued, "queued message"))
	return err
}

// verifier checks sessions one by one.
type verifier struct {
	shelf *shelf
	reg   *session.Registry
	known map[session.ID]lineage
	// rec is the session that is being replayed; seen is its witness.
	rec  session.Record
	seen *witness
}

// lineage is what a child's record is compared with.
type lineage struct {
	stored bool
	root   session.ID
	depth  int64
}

func newVerifier(ctx context.Context, s *shelf) (v *verifier, err error) {
	v = &verifier{shelf: s, known: map[session.ID]lineage{}}
	v.reg, err = session.NewRegistry(ctx, session.Config{NewCells: func(h *session.Header) session.Cells {
		v.seen = newWitness(s.units, h, &v.rec)
		return v.seen
	}})
	return v, err
}

// verdicts checks the session that args names, or all. The error ends it: it is
// about the store, not about a session.
func (v *verifier) verdicts(ctx context.Context, args []string) iter.Seq2[verdict, error] {
	return func(yield func(verdict, error) bool) {
		if len(args) > 0 {
			rec, events, err := v.shelf.find(ctx, args[0])
			switch {
			case err == nil:
				one, err := v.check(ctx, rec, events)
				yield(one, err)
			case faulty(err):
				yield(verdict{ID: session.ID(args[0]), errs: []error{err}}, nil)
			default:
				yield(verdict{}, err)
			}
			return
		}
		if v.shelf.store == nil {
			return
		}
		var ids []session.ID
		for rec, err := range v.shelf.records(ctx, session.Filter{}, session.Page{}) {
			if err != nil {
				yield(verdict{}, err)
				return
			}
			ids = append(ids, rec.Header.ID)
			if rec.Err == nil {
				v.known[rec.Header.ID] = lineageOf(rec)
			}
		}
		for _, id := range ids {
			rec, events, err := v.shelf.store.Inspect(ctx, id)
			one := verdict{ID: id}
			switch {
			case errors.Is(err, session.ErrNotFound):
				continue // deleted meanwhile
			case err == nil:
				one, err = v.check(ctx, rec, events)
			case faulty(err):
				one.errs, err = []error{err}, nil
			}
			if !yield(one, err) || err != nil {
				return
			}
		}
	}
}

// faulty tells faults of a session from failures to look at it.
func faulty(err error) bool {
	var corrupt *session.CorruptError
	var unsupported *session.UnsupportedError
	var invariant *session.InvariantError
	return errors.As(err, &corrupt) || errors.As(err, &unsupported) || errors.As(err, &invariant)
}

func lineageOf(rec session.Record) lineage {
	return lineage{stored: true, root: rec.Meta.Root, depth: rec.Header.DelegationDepth}
}

func (v *verifier) check(ctx context.Context, rec session.Record, events iter.Seq2[session.Event, error]) (verdict, error) {
	one := verdict{ID: rec.Header.ID, live: rec.Live}
	v.rec, v.seen = rec, nil
	report, err := v.reg.Verify(rec, events)
	one.Events, one.Turns, one.OpenTurn, one.Queued = report.Events, report.Turns, report.OpenTurn, report.Queued
	switch {
	case err == nil:
		one.errs = append(one.errs, v.seen.faults()...)
		if report.Identity != nil && rec.Meta.Root != rec.Header.ID {
			one.errs = append(one.errs, fmt.Errorf("session %s: %w", rec.Header.ID, report.Identity))
		}
	case faulty(err):
		// What was folded up to the fault proves nothing.
		one.errs = append(one.errs, err)
	default:
		return one, err
	}
	more, err := v.lineageFaults(ctx, rec)
	one.errs = append(one.errs, more...)
	v.seen = nil // the log it holds on to may be large
	return one, err
}

// lineageFaults compares a session with its parent (core S21, S23).
func (v *verifier) lineageFaults(ctx context.Context, rec session.Record) (faults []error, err error) {
	h := rec.Header
	if h.ParentSession == "" || rec.Meta.Root == h.ID {
		return nil, nil // of a root the header tells lineage alone
	}
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("session %s: %s", h.ID, fmt.Sprintf(format, args...)))
	}
	parent, ok := v.known[h.ParentSession]
	if !ok {
		up, _, err := v.shelf.store.Inspect(ctx, h.ParentSession)
		switch {
		case err == nil:
			parent = lineageOf(up)
		case faulty(err):
			return nil, nil // it is there, and its own verdict says the rest
		case !errors.Is(err, session.ErrNotFound):
			return nil, err
		}
		v.known[h.ParentSession] = parent
	}
	if ref := rec.Meta.Prefix; ref.Len > h.SeedLength {
		fault("it refers to %s of %s and inherits %d", plural(ref.Len, "event"), ref.ID, h.SeedLength)
	}
	switch {
	case !parent.stored:
		fault("its parent session %s is not stored", h.ParentSession)
	case parent.root != rec.Meta.Root:
		fault("its root is %s, but that of its parent %s is %s", rec.Meta.Root, h.ParentSession, parent.root)
	case h.Origin == session.OriginSubagent && h.DelegationDepth <= parent.depth:
		fault("its delegation depth %d is not below its parent's, %d", h.DelegationDepth, parent.depth)
	}
	return faults, nil
}

// witness watches the replay of one log: it folds the checkpoints anew and
// compares each with the stored one as of the event that it was taken at.
type witness struct {
	session.Cells
	header *session.Header
	rec    *session.Record
	units  []projection.Unit

	head  int64
	wrong []error
}

func newWitness(units *projection.Registry, h *session.Header, rec *session.Record) *witness {
	return &witness{Cells: units.NewCells(h), header: h, rec: rec, units: units.Units()}
}

// Apply implements session.Fold for the events of the session's own suffix.
func (w *witness) Apply(e *session.Event) {
	w.Cells.Apply(e)
	w.head = e.Seq + 1
	for _, c := range w.rec.Cells {
		if c.Seq == e.Seq {
			w.compare(c, false)
		}
	}
}

// compare compares a stored checkpoint with the fold as it stands. Those of
// units that this build does not have, or has in another version, are left alone:
// readers pass over them.
func (w *witness) compare(c session.Checkpoint, late bool) {
	if !slices.ContainsFunc(w.units, func(u projection.Unit) bool { return u.Key == c.Key && u.Version == c.Version }) {
		return
	}
	fresh := w.Take(w.head)
	w.Untake()
	for _, f := range fresh {
		if f.Key != c.Key || bytes.Equal(f.Value, c.Value) {
			continue
		}
		what := fmt.Sprintf("says %s where the log says %s", first(string(c.Value), 200), first(string(f.Value), 200))
		if late {
			what = fmt.Sprintf("is older than what changed it: it %s", what)
		}
		w.wrong = append(w.wrong, &session.CorruptError{ID: w.header.ID, Seq: c.Seq, Err: fmt.Errorf("checkpoint %q %s", c.Key, what)})
	}
}

// faults returns what the replay of a legal log showed beside it.
func (w *witness) faults() []error {
	if w == nil {
		return nil
	}
	if len(w.wrong) == 0 {
		// Every batch carries the cells that it changes, so each is also exact as of
		// the head; this is what listings rely on.
		for _, c := range w.rec.Cells {
			if c.Seq >= w.header.SeedLength {
				w.compare(c, true)
			}
		}
	}
	return w.wrong
}
