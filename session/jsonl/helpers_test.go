package jsonl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/jsonl"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
)

// shop is a store that can be made to fail, with a registry on it.
type shop struct {
	*testing.T
	store *faulty
	reg   *session.Registry
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{T: t, store: &faulty{Store: memory.New(), failAt: -1}}
	t.Cleanup(func() {
		if err := s.store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	units, err := projection.NewRegistry(projection.BuiltIn()...)
	if err != nil {
		t.Fatal(err)
	}
	s.reg, err = session.NewRegistry(t.Context(), session.Config{
		Store: s.store, NewCells: units.NewCells, Now: func() time.Time { return time.UnixMilli(1_700_000_000_000) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *shop) load(sources ...jsonl.Source) ([]*jsonl.Log, error) {
	return jsonl.Import(s.Context(), s.reg, sources)
}

// ids lists what is stored, oldest first.
func (s *shop) ids() string {
	s.Helper()
	l, err := s.store.List(s.Context(), session.Filter{}, session.Page{})
	if err != nil {
		s.Fatal(err)
	}
	var ids []string
	for _, rec := range l.Records {
		if rec.Live {
			s.Errorf("session %s is still owned", rec.Header.ID)
		}
		ids = append(ids, string(rec.Header.ID))
	}
	return strings.Join(ids, " ")
}

// export writes a stored session, and checks it against every rule by the way.
func (s *shop) export(id session.ID) string {
	s.Helper()
	rec, events, err := s.store.Inspect(s.Context(), id)
	if err != nil {
		s.Fatal(err)
	}
	var buf bytes.Buffer
	w := jsonl.NewWriter(&buf)
	if err := errors.Join(w.Write(&rec.Header, events), w.Flush()); err != nil {
		s.Fatal(err)
	}
	rec, events, err = s.store.Inspect(s.Context(), id)
	if err == nil {
		_, err = s.reg.Verify(rec, events)
	}
	if err != nil {
		s.Errorf("verify: %v", err)
	}
	return buf.String()
}

func (s *shop) record(id session.ID) session.Record {
	s.Helper()
	rec, _, err := s.store.Inspect(s.Context(), id)
	if err != nil {
		s.Fatal(err)
	}
	return rec
}

// text is a source that holds a text.
func text(name, text string) jsonl.Source {
	return jsonl.Source{Name: name, Open: func() (io.ReadSeekCloser, error) { return closable{strings.NewReader(text)}, nil }}
}

type closable struct{ *strings.Reader }

func (closable) Close() error { return nil }

// faulty is a store of which one write fails: the one with the number failAt,
// creations and appends counted together.
type faulty struct {
	session.Store
	failAt     int
	writes     int
	fail       error
	failDelete error
	onCreate   func(session.ID)
}

func (f *faulty) next() error {
	f.writes++
	if f.writes-1 == f.failAt {
		return f.fail
	}
	return nil
}

func (f *faulty) Create(ctx context.Context, h session.Header, m session.Meta, first []session.Event, cells []session.Checkpoint) (session.Writer, error) {
	if f.onCreate != nil {
		f.onCreate(h.ID)
	}
	if err := f.next(); err != nil {
		return nil, err
	}
	w, err := f.Store.Create(ctx, h, m, first, cells)
	if err != nil {
		return nil, err
	}
	return &faultyWriter{w, f}, nil
}

func (f *faulty) Delete(ctx context.Context, id session.ID) error {
	if f.failDelete != nil {
		return f.failDelete
	}
	return f.Store.Delete(ctx, id)
}

type faultyWriter struct {
	session.Writer
	f *faulty
}

func (w *faultyWriter) Append(ctx context.Context, head int64, events []session.Event, cells []session.Checkpoint) error {
	if err := w.f.next(); err != nil {
		return err
	}
	return w.Writer.Append(ctx, head, events, cells)
}

// head is a header line of a session without a parent, or of a delegated one.
func head(id, parent string, depth int) string {
	h := session.Header{ID: session.ID(id), CreatedAt: int64(depth), Cwd: "/p", ParentSession: session.ID(parent), DelegationDepth: int64(depth)}
	if parent != "" {
		h.Origin = session.OriginSubagent
	}
	return string(jsonl.AppendHeader(nil, &h))
}

// dialogue are the lines of n turns in which a person asks and a model answers,
// each answer so long.
func dialogue(n, size int) []string { return goOn(nil, n, size) }

// delegated are the lines of a dialogue of a delegated session, which says what it is.
func delegated(n, size int) []string {
	return goOn([]string{`{"type":"subagent/descriptor","seq":0,"time":6,"data":{"version":2,"mode":"one-shot","provider":"spawn"}}`}, n, size)
}

// goOn appends a dialogue.
func goOn(lines []string, n, size int) []string {
	add := func(format string, args ...any) {
		lines = append(lines, fmt.Sprintf(strings.Replace(format, "SEQ", fmt.Sprint(len(lines)), 1), args...))
	}
	for t := 1; t <= n; t++ {
		const m = `{"content":[{"text":"ask %d","type":"text"}],"source":{"kind":"user"},"role":"user","id":"m%d"}`
		add(`{"type":"agent/inbox/spliced","seq":SEQ,"time":7,"data":{"target":"next-turn","start":0,"inserted":[`+m+`]}}`, t, t)
		add(`{"type":"turn/start","seq":SEQ,"time":7,"data":{"turn":%d}}`, t)
		add(`{"type":"agent/inbox/spliced","seq":SEQ,"time":7,"data":{"target":"next-turn","start":0,"removedCount":1,"inserted":[]}}`)
		add(`{"type":"step/start","seq":SEQ,"time":7,"data":{"turn":%d,"step":1}}`, t)
		add(`{"type":"user/message","seq":SEQ,"time":7,"surfaceOp":"append","data":`+m+`}`, t, t)
		add(`{"type":"assistant/message","seq":SEQ,"time":8,"surfaceOp":"append","sourceEventSeqs":[],"data":{"turn":%d,"step":1,"message":{"role":"assistant","content":[{"type":"text","text":"%s"}],"source":{"kind":"model","provider":"elsewhere","model":"m"},"id":"a%d"},"usage":{"inputTokens":3,"outputTokens":4}}}`, t, strings.Repeat("x", size), t)
		add(`{"type":"step/end","seq":SEQ,"time":9,"data":{"turn":%d,"step":1}}`, t)
		add(`{"type":"turn/end","seq":SEQ,"time":9,"data":{"turn":%d,"reason":{"kind":"completed"}}}`, t)
	}
	return lines
}

// whole is a log of n turns.
func whole(id, parent string, depth, n int) string {
	return chat(id, parent, depth, n, 10)
}

// chat is a log of n turns with answers of a size.
func chat(id, parent string, depth, n, size int) string {
	lines := dialogue(n, size)
	if parent != "" {
		lines = delegated(n, size)
	}
	return file(append([]string{head(id, parent, depth)}, lines...)...)
}

const mark = `{"type":"session/imported","seq":%d,"time":1700000000000,"ignorable":true,"data":{}}`
