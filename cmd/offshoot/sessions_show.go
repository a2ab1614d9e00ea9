package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/session"
)

func newShowCommand(a *app) *cobra.Command {
	var asJSON, events bool
	var seq int64
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show what a session's log holds",
		Long: "Shows the transcript in the order in which it was written: what a compaction took from\n" +
			"the model's sight is still here. Results of tools are cut; --events shows the log itself.\n\n" +
			"--json writes one object: what sessions list --json tells, header (as stored), children\n" +
			"(as listed), and messages: of each its seq, time, type, turn and step, message (as stored),\n" +
			"and what else its event holds: usage, interrupted, error, meta; replaces where it took the\n" +
			"place of others; inherited where the session began with it.\n" +
			"--events writes one line for each event; with --json its stored form, byte for byte.\n" +
			"--event SEQ writes one event whole: of a tool/spill, which keeps what a result was cut\n" +
			"from, the text; of any other its data; with --json its stored form.",
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			one := cmd.Flags().Changed("event")
			switch {
			case one && events:
				return usagef("sessions show: --event shows one event and --events all; give one of them")
			case one && seq < 0:
				return usagef("flag --event: %d is no place in a log", seq)
			}
			return a.withShelf(cmd, func(ctx context.Context, s *shelf) error {
				rec, log, err := s.find(ctx, args[0])
				if err != nil {
					return err
				}
				w := bufio.NewWriterSize(a.stdout, 64<<10)
				switch {
				case one:
					err = a.showEvent(ctx, s, w, rec, seq, asJSON)
				case events && asJSON:
					err = showEnvelopes(w, log)
				case events:
					err = showEvents(w, log, a.now())
				case asJSON:
					err = s.showJSON(ctx, w, rec, log)
				default:
					err = a.showTranscript(ctx, s, w, rec, log)
				}
				return errors.Join(err, w.Flush())
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write one JSON object; with --events one a line")
	cmd.Flags().BoolVar(&events, "events", false, "show the raw log")
	cmd.Flags().Int64Var(&seq, "event", 0, "show the event at this place of the log, whole")
	return cmd
}

// showEnvelopes writes the log as it is stored and exported.
func showEnvelopes(w *bufio.Writer, log iter.Seq2[session.Event, error]) error {
	for e, err := range log {
		if err != nil {
			return err
		}
		if err := e.WriteEnvelope(w); err != nil {
			return err
		}
	}
	return nil
}

// showEvent writes one event whole.
func (a *app) showEvent(ctx context.Context, s *shelf, w *bufio.Writer, rec session.Record, seq int64, asJSON bool) error {
	for e, err := range s.store.ReadFrom(ctx, rec.Header.ID, seq) {
		if err != nil {
			return err
		}
		if asJSON {
			return e.WriteEnvelope(w)
		}
		payload, err := s.reg.PayloadOf(e)
		if err != nil {
			return &session.CorruptError{ID: rec.Header.ID, Seq: seq, Err: err}
		}
		text := string(e.Data()) + "\n"
		if p, ok := payload.(*session.ToolSpill); ok {
			if text, err = p.Text(); err != nil {
				return &session.CorruptError{ID: rec.Header.ID, Seq: seq, Err: err}
			}
		}
		if a.isTerminal(a.stdout) {
			text = legible(text)
		}
		_, err = w.WriteString(text)
		return err
	}
	return fmt.Errorf("session %s has no event %d: its log has %s", rec.Header.ID, seq, plural(rec.Head, "event"))
}

// dataRunes bounds what a line of --events shows of a payload.
const dataRunes = 300

// showEvents writes one line for each event, for people.
func showEvents(w *bufio.Writer, log iter.Seq2[session.Event, error], now time.Time) error {
	for e, err := range log {
		if err != nil {
			return err
		}
		note := ""
		if e.Ignorable {
			note += " ignorable"
		}
		if e.Op == session.OpReplace {
			start, end := e.Replaces()
			note += fmt.Sprintf(" replaces %d-%d", start, end)
		}
		if len(e.Sources()) > 0 {
			note += fmt.Sprintf(" from %v", e.Sources())
		}
		data := e.Data()
		data = data[:min(len(data), dataRunes*utf8.UTFMax+1)] // as much as first looks at
		at := time.UnixMilli(e.Time).In(now.Location()).Format("2006-01-02 15:04:05.000")
		if _, err := fmt.Fprintf(w, "%6d  %s  %s%s  %s\n", e.Seq, at, printable(string(e.Type)), clip(note, 100), first(string(data), dataRunes)); err != nil {
			return err
		}
	}
	return nil
}

// spill says where the whole of a result is; the result itself follows.
func (t *transcript) spill(e *session.Event, p *session.ToolSpill) {
	name := "call " + printable(p.CallID)
	if c, known := t.calls[p.CallID]; known {
		name = c.String()
	}
	lost := ""
	if p.Omitted > 0 {
		lost = fmt.Sprintf(" but for %s", thousands(p.Omitted))
	}
	t.note("%s was cut for the model; all its %s%s: %s", name, plural(p.Bytes, "byte"), lost, session.SpillRef{Session: p.Session, Seq: e.Seq})
}

// showJSON writes one object. A log that cannot be read to its end is told in a
// member "logError", so that it is JSON in any case.
func (s *shelf) showJSON(ctx context.Context, w *bufio.Writer, rec session.Record, log iter.Seq2[session.Event, error]) error {
	head, err := encode(s.row(ctx, rec))
	if err != nil {
		return err
	}
	h := rec.Header
	buf := append(head[:len(head)-1], `,"header":`...)
	buf = append(h.AppendJSON(buf), `,"children":[`...)
	n := 0
	for kid, err := range s.records(ctx, session.Filter{Parent: h.ID}, session.Page{}) {
		if err != nil {
			return err
		}
		if n++; n > 1 {
			buf = append(buf, ',')
		}
		one, err := encode(s.row(ctx, kid))
		if err != nil {
			return err
		}
		buf = append(buf, one...)
	}
	buf = append(buf, `],"messages":[`...)
	if _, err := w.Write(buf); err != nil {
		return err
	}
	logErr := writeMessages(w, &h, log)
	buf = append(buf[:0], ']')
	if logErr != nil {
		buf = jsonx.AppendString(append(buf, `,"logError":`...), logErr.Error())
	}
	_, err = w.Write(append(buf, "}\n"...))
	return errors.Join(logErr, err)
}

func writeMessages(w *bufio.Writer, h *session.Header, log iter.Seq2[session.Event, error]) error {
	var buf []byte
	for e, err := range log {
		if err != nil {
			return err
		}
		switch e.Type {
		case session.TypeUserMessage, session.TypeAssistantMessage, session.TypeToolResult:
		default:
			continue
		}
		comma := len(buf) > 0
		buf = buf[:0]
		if comma {
			buf = append(buf, ',')
		}
		if _, err := w.Write(appendMessage(buf, h, &e)); err != nil {
			return err
		}
		buf = append(buf[:0], ' ') // from now on a comma comes first
	}
	return nil
}

// appendMessage appends what a message's event holds, without decoding it: the
// stored bytes are what is shown.
func appendMessage(buf []byte, h *session.Header, e *session.Event) []byte {
	buf = jsonx.AppendIntField(append(buf, '{'), "seq", e.Seq)
	buf = jsonx.AppendIntField(buf, "time", e.Time)
	buf = jsonx.AppendStringField(buf, "type", string(e.Type))
	if e.Seq < h.SeedLength {
		buf = jsonx.AppendTrueField(buf, "inherited")
	}
	if e.Op == session.OpReplace {
		start, end := e.Replaces()
		buf = fmt.Appendf(jsonx.AppendKey(buf, "replaces"), "[%d,%d]", start, end)
	}
	data := e.Data()
	if e.Type == session.TypeUserMessage {
		return append(append(jsonx.AppendKey(buf, "message"), data...), '}')
	}
	if len(data) <= 2 {
		return append(buf, '}')
	}
	return append(append(buf, ','), data[1:]...)
}
