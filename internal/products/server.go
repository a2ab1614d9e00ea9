package products

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/internal/proc"
)

// ServerConfig says how to start a [Server].
type ServerConfig struct {
	// Dir is an empty folder for the server: its home, its plugin list, its sessions in the folder sessions.
	Dir string
	// Cwd is the work tree of its agents, an existing folder.
	Cwd string
	// Model is the endpoint it talks to; its dialect is DeepSeek.
	Model *fakemodel.Server
	// Persistence is how it writes its sessions.
	Persistence Persistence
}

// Event is one session event as the server sent it.
type Event struct {
	// Session is the id of the event's session.
	Session string
	// Type is the event's own, and Raw is all of it, byte for byte as it came.
	Type string
	Raw  json.RawMessage
}

// Server is a running SDK server of the harness set. Its methods may be called concurrently. Every error has what the
// server wrote on its standard error, if it may be the cause.
type Server struct {
	process *proc.Process
	stderr  *proc.Capture
	write   sync.Mutex    // one line at a time
	read    chan struct{} // closed when the reader has returned
	readErr error         // why it did; before read is closed

	mu       sync.Mutex // guards following
	requests int64
	pending  map[int64]chan answer
	events   []Event
	status   map[string]string // a session's last
	children []string          // in the order of their start
	parents  map[string]string // a child's
	changed  chan struct{}     // closed and replaced with every notification
}

// StartServer starts the harness set's SDK server and returns when it has answered the handshake. When the test ends
// it is killed with all that it started.
func StartServer(t testing.TB, h Harness, cfg ServerConfig) *Server {
	t.Helper()
	s, err := startServer(h, cfg)
	if err != nil {
		t.Fatalf("start the SDK server: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Kill(t.Context()); err != nil {
			t.Errorf("kill the SDK server: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	params := map[string]any{"cwd": cfg.Cwd, "provider": "deepseek-official", "model": "deepseek-v4-flash"}
	if err := s.call(ctx, "initialize", params, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

func startServer(h Harness, cfg ServerConfig) (*Server, error) {
	list := filepath.Join(cfg.Dir, "plugins.yml")
	data, err := pluginList(filepath.Join(cfg.Dir, "sessions"), cfg.Persistence)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(list, data, 0o600); err != nil {
		return nil, err
	}
	s := &Server{
		stderr:  proc.NewCapture(8<<10, 8<<10),
		read:    make(chan struct{}),
		pending: map[int64]chan answer{},
		status:  map[string]string{},
		parents: map[string]string{},
		changed: make(chan struct{}),
	}
	env := map[string]string{"DEEPSEEK_API_KEY": "sk-fake", "DEEPSEEK_BASE_URL": cfg.Model.Origin()}
	if s.process, err = launch(cfg.Dir, cfg.Cwd, env, s.stderr, h.Node, h.Boot, list); err != nil {
		return nil, err
	}
	go s.readAll()
	return s, nil
}

// Prompt sends a prompt and returns the message's id once the session's log has received it. A session begins with
// its first prompt; its id must be new.
func (s *Server) Prompt(ctx context.Context, session, text string) (string, error) {
	var receipt struct {
		MessageID string `json:"messageId"`
	}
	block := map[string]string{"type": "text", "text": text}
	params := map[string]any{"sessionId": session, "contentBlocks": []any{block}}
	if err := s.call(ctx, "session/prompt", params, &receipt); err != nil {
		return "", err
	}
	err := s.WaitEvent(ctx, session, func(e Event) bool { return e.inserts(receipt.MessageID) })
	return receipt.MessageID, err
}

// Ask sends a prompt and waits until a turn has taken it and the session is idle again.
func (s *Server) Ask(ctx context.Context, session, text string) error {
	id, err := s.Prompt(ctx, session, text)
	if err != nil {
		return err
	}
	return s.WaitAnswered(ctx, session, id)
}

// WaitAnswered waits until a turn has taken the message and the session is idle.
func (s *Server) WaitAnswered(ctx context.Context, session, message string) error {
	return s.wait(ctx, fmt.Sprintf("the end of the turn of message %s in %s", message, session), func() bool {
		return s.status[session] == "idle" && s.seen(session, func(e Event) bool { return e.isMessage(message) })
	})
}

// WaitEvent waits until the session has had an event that matches; match is called under a lock.
func (s *Server) WaitEvent(ctx context.Context, session string, match func(Event) bool) error {
	return s.wait(ctx, "an event of "+session, func() bool { return s.seen(session, match) })
}

func (s *Server) seen(session string, match func(Event) bool) bool {
	return slices.ContainsFunc(s.events, func(e Event) bool { return e.Session == session && match(e) })
}

// Events returns the events of a session so far, in order.
func (s *Server) Events(session string) []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.events), func(e Event) bool { return e.Session != session })
}

// Children returns the sessions that were started as children so far, in order, and the parent of each.
func (s *Server) Children() (children []string, parents map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.children), maps.Clone(s.parents)
}

// Shutdown asks the server to end and waits until it has.
func (s *Server) Shutdown(ctx context.Context) error {
	if err := s.call(ctx, "shutdown", map[string]any{}, nil); err != nil {
		return err
	}
	exit, err := s.process.Wait(ctx)
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("shutdown: the SDK server exited with code %d %s\n%s", exit.Code, exit.Signal, s.said())
	}
	return err
}

// Terminate closes the server's input, sends SIGTERM to all that it is and has started, and waits for the end.
func (s *Server) Terminate(ctx context.Context) error {
	err := s.process.Close(ctx)
	<-s.read
	return err
}

// Kill kills the server and all that it has started and waits for the end. It may be called again.
func (s *Server) Kill(ctx context.Context) error {
	return errors.Join(s.process.Kill(), s.Terminate(ctx))
}

// said returns what the server wrote on its standard error.
func (s *Server) said() string {
	return s.stderr.Text(func(n int) string { return fmt.Sprintf("\n… %d bytes …\n", n) })
}
