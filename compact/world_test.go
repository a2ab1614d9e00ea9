package compact_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/compact"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// model is an endpoint with a window. It counts what it is asked, refuses what does not
// fit and what no vendor takes, a call without its result or a result without its call,
// and keeps every request.
type model struct {
	window  int64 // what it takes
	told    int64 // what it says that it takes
	perByte float64
	mute    bool // it reports no usage
	forget  bool // it keeps no request
	effort  string
	answers int64          // bound of an answer, 0 for 512
	added   int64          // what the vendor counts beside the request
	ends    llm.FinishKind // of a summary, "" for what it is

	// answer answers a step, summary the nth request for a summary; an error is a failure
	// of the call.
	answer  func(req *llm.Request) ([]message.Block, error)
	summary func(n int, req *llm.Request) ([]message.Block, error)

	mu       sync.Mutex
	requests []request
	refused  int
	session  func(id string) *session.Session
}

type request struct {
	llm.Request
	head int64 // of its log
	size int64
}

func (m *model) Model(string, string) llm.ModelInfo {
	return llm.ModelInfo{ContextWindow: m.told, DefaultMaxTokens: cmp.Or(m.answers, 512), DefaultEffort: m.effort}
}

func (m *model) count(req *llm.Request) int64 {
	n := len(req.System)
	for i := range req.Tools {
		n += len(req.Tools[i].Name) + len(req.Tools[i].Description) + len(req.Tools[i].Parameters)
	}
	for i := range req.Messages {
		n += 12 + size(req.Messages[i].Content)
	}
	per := m.perByte
	if per == 0 {
		per = 0.25
	}
	return int64(float64(n) * per)
}

func size(blocks []message.Block) (n int) {
	for i := range blocks {
		b := &blocks[i]
		n += len(b.Text) + len(b.Name) + len(b.Arguments) + size(b.Content)
	}
	return n
}

func (m *model) Stream(_ context.Context, req *llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		blocks, usage, err := m.play(req)
		if err != nil {
			yield(llm.Chunk{}, err)
			return
		}
		kind := llm.FinishStop
		for i := range blocks {
			if blocks[i].Type == message.BlockToolCall {
				kind = llm.FinishToolCalls
			}
			if req.Purpose == llm.PurposeCompaction && m.ends != "" {
				kind = m.ends
			}
			if !yield(llm.Chunk{Kind: llm.ChunkBlockStart, Index: i, BlockType: blocks[i].Type}, nil) ||
				!yield(llm.Chunk{Kind: llm.ChunkBlockEnd, Index: i, Block: &blocks[i]}, nil) {
				return
			}
		}
		if usage != nil && !yield(llm.Chunk{Kind: llm.ChunkUsage, Usage: usage}, nil) {
			return
		}
		yield(llm.Chunk{Kind: llm.ChunkFinish, Finish: &llm.Finish{Kind: kind}}, nil)
	}
}

func (m *model) play(req *llm.Request) ([]message.Block, *message.Usage, error) {
	m.mu.Lock()
	n := 0
	for i := range m.requests {
		if m.requests[i].Purpose == llm.PurposeCompaction {
			n++
		}
	}
	r := request{Request: *req, size: m.count(req)}
	if s := m.session(req.SessionID); s != nil {
		r.head = s.Head()
	}
	if !m.forget {
		m.requests = append(m.requests, r)
	}
	m.mu.Unlock()
	if err := paired(req.Messages); err != nil {
		return nil, nil, &llm.Error{Failure: message.Failure{Code: llm.CodeInvalidRequest, Message: err.Error()}}
	}
	if r.size+req.MaxTokens > m.window {
		m.mu.Lock()
		m.refused++
		m.mu.Unlock()
		return nil, nil, &llm.Error{Failure: message.Failure{Code: llm.CodeContextWindow, Message: fmt.Sprintf("%d tokens and %d for the answer, of %d", r.size, req.MaxTokens, m.window)}}
	}
	var blocks []message.Block
	var err error
	if req.Purpose == llm.PurposeCompaction {
		blocks, err = m.summary(n, req)
	} else {
		blocks, err = m.answer(req)
	}
	if err != nil || m.mute {
		return blocks, nil, err
	}
	return blocks, &message.Usage{InputTokens: r.size + m.added, OutputTokens: int64(size(blocks)) / 4}, nil
}

// paired refuses what vendors refuse.
func paired(msgs []message.Message) error {
	open := map[string]bool{}
	for i := range msgs {
		m := &msgs[i]
		for j := range m.Content {
			switch b := &m.Content[j]; b.Type {
			case message.BlockToolCall:
				open[b.ID] = true
			case message.BlockToolResult:
				if !open[b.ToolCallID] {
					return fmt.Errorf("message %d is the result of a call %q that is not there", i, b.ToolCallID)
				}
				delete(open, b.ToolCallID)
			}
		}
		if m.Role == message.RoleUser && m.Source.Kind != message.SourceTool && len(open) > 0 {
			return fmt.Errorf("message %d follows calls without results", i)
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("%d calls have no results", len(open))
	}
	return nil
}

// world is a system whose agents ask one model and are kept within its window.
type world struct {
	*subagenttest.System
	t     *testing.T
	model *model
	c     *compact.Compactor
	done  []error
	sums  []compact.Result
}

func in(t *testing.T, m *model, o subagenttest.Options, cfg compact.Config, fn func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, model: m}
		o.Adapter = m
		w.System = subagenttest.NewSystem(t, o)
		m.session = func(id string) *session.Session {
			s, _ := w.Sessions.Get(session.ID(id))
			return s
		}
		if m.summary == nil {
			m.summary = func(n int, _ *llm.Request) ([]message.Block, error) { return say(fmt.Sprintf("summary %d", n)), nil }
		}
		cfg.Agents, cfg.Models = w.Agents, w.Models
		cfg.Done = func(_ *agent.Agent, r compact.Result, err error) {
			w.done, w.sums = append(w.done, err), append(w.sums, r)
		}
		var err error
		if w.c, err = compact.New(cfg); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.c.Close)
		fn(t, w)
	})
}

func say(text string) []message.Block { return []message.Block{message.Text(text)} }

// look is a tool whose result has as many bytes as it is asked for, and begins with
// what its call is named.
func look() tool.Definition {
	return tool.Definition{
		Name: "look", Description: "Looks at something.", ReadOnly: true,
		Parameters: []byte(`{"type":"object","properties":{"name":{"type":"string"},"bytes":{"type":"integer"}},"required":["name","bytes"]}`),
		Execute: func(_ context.Context, call *tool.Call) (any, error) {
			var args struct {
				Name  string
				Bytes int
			}
			if err := json.Unmarshal(call.Args, &args); err != nil {
				return nil, err
			}
			return fill(args.Name, args.Bytes), nil
		},
	}
}

// fill returns a text of n bytes that begins and ends with a name.
func fill(name string, n int) string {
	return name + " " + strings.Repeat("x", max(n-2*len(name)-2, 0)) + " " + name
}

func calls(id, name string, bytes int) message.Block {
	return message.ToolCall(id, "look", fmt.Sprintf(`{"name":%q,"bytes":%d}`, name, bytes))
}

// prompt gives the agent input as a person would, and waits until it is idle.
func (w *world) prompt(a *agent.Agent, text string) {
	w.t.Helper()
	if err := a.Followup(agent.UserText(text)); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// end returns how the last turn ended.
func end(a *agent.Agent) (e session.TurnEnd) {
	for ev := range a.Session().Events(0) {
		if p, ok := ev.Payload().(*session.TurnEnd); ok {
			e = *p
		}
	}
	return e
}

// types lists the types of a log from seq on.
func types(s *session.Session, from int64) (list []string) {
	for e := range s.Events(from) {
		list = append(list, string(e.Type))
	}
	return list
}

// verify replays the log through every rule, and rebuilds every request from it: what a
// step asked, and what a compaction did (design § 4, core L39).
func (w *world) verify(a *agent.Agent) {
	w.t.Helper()
	s := a.Session()
	plain, err := session.NewRegistry(w.t.Context(), session.Config{})
	if err != nil {
		w.t.Fatal(err)
	}
	events := raw(s)
	rec := session.Record{Header: s.Header(), Meta: s.Meta(), Head: int64(len(events))}
	if _, err := plain.Verify(rec, seq2(events)); err != nil {
		w.t.Fatalf("the log is not legal: %v\n%s", err, strings.Join(types(s, 0), "\n"))
	}
	sums := 0
	for i, r := range w.model.requests {
		if r.Purpose != "" {
			sums++
		}
		near := r.Purpose != "" || i > 0 && w.model.requests[i-1].Purpose != ""
		if r.SessionID != string(s.ID()) || len(w.model.requests) > 100 && (!near || sums%4 != 1) {
			continue // the log is replayed for each of them
		}
		rec.Head = r.head
		old, err := plain.Restore(rec, seq2(events[:r.head]))
		if err != nil {
			w.t.Fatalf("request %d cannot be rebuilt: %v", i, err)
		}
		if d := gocmp.Diff(encode(rebuild(w.t, old, r.Purpose)), encode(&r.Request)); d != "" {
			w.t.Fatalf("request %d differs from its log (-log +sent):\n%s", i, d)
		}
	}
}

func raw(s *session.Session) (events []session.Event) {
	for e := range s.Events(0) {
		events = append(events, session.RawEvent(e, e.Data()))
	}
	return events
}

func seq2(events []session.Event) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		for _, e := range events {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// rebuild makes a request from nothing but the log that ends where it was made.
func rebuild(t testing.TB, s *session.Session, purpose llm.Purpose) *llm.Request {
	h := s.RequestHeader()
	req := &llm.Request{SessionID: string(s.ID()), System: h.System, Purpose: purpose}
	for _, d := range h.Tools {
		req.Tools = append(req.Tools, llm.ToolSpec{Name: d.Name, Description: d.Description, Parameters: d.Parameters})
	}
	if purpose == "" {
		llm.CallConfig(h.Config).Apply(req)
		req.Messages, _ = s.History()
		return req
	}
	e, _ := s.Event(s.Head() - 1)
	p, ok := e.Payload().(*session.CompactionRequest)
	if !ok {
		t.Fatalf("the log ends in %s where a summary was asked for", e.Type)
	}
	llm.CallConfig(p.Config).Apply(req)
	nodes, _ := s.Surface()
	from := slices.IndexFunc(nodes, func(n session.Node) bool { return n.Seq == p.Start })
	to := slices.IndexFunc(nodes, func(n session.Node) bool { return n.Seq == p.End })
	for _, n := range nodes[from : to+1] {
		if n.Message != nil {
			req.Messages = append(req.Messages, *n.Message)
		}
	}
	req.Messages = append(req.Messages, p.Message)
	return req
}

func encode(r *llm.Request) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %q %d %q %s %q\nsystem %q\n", r.Provider, r.Model, r.ReasoningEffort, r.MaxTokens, r.Stop, r.SessionID, r.Purpose, r.System)
	for i := range r.Tools {
		fmt.Fprintf(&b, "tool %s %q %s\n", r.Tools[i].Name, r.Tools[i].Description, r.Tools[i].Parameters)
	}
	for i := range r.Messages {
		fmt.Fprintf(&b, "%s\n", session.AppendMessage(nil, &r.Messages[i]))
	}
	return b.String()
}

// text joins all that a request says.
func text(r *llm.Request) string {
	var b strings.Builder
	for i := range r.Messages {
		for _, c := range r.Messages[i].Content {
			b.WriteString(c.Text + "\n")
			b.WriteString(message.JoinText(c.Content) + "\n")
		}
	}
	return b.String()
}
