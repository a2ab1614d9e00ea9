package products

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// Scenario makes real session logs of one kind.
type Scenario struct {
	// Name is made of lower-case words with dashes between them; What says in a line what is in the logs.
	Name, What string
	// Open says that the server was ended within a turn, so that a log breaks off there.
	Open bool
	// Persistence is how the logs are written.
	Persistence Persistence

	script fakemodel.Script
	play   func(*stage)
}

// Logs is what a scenario left.
type Logs struct {
	// Root is the folder that the runtime was given for its sessions.
	Root string
	// Cwd is the work tree of the agents.
	Cwd string
	// Sessions are the sessions, every parent before its children.
	Sessions []Log
}

// Log is one session.
type Log struct {
	// ID is the session's id, Parent its parent's or "".
	ID, Parent string
	// Path is its file.
	Path string
	// Events are the session's events as the server sent them while it ran, each a JSON object, never packed. They
	// are what Path holds when its rows are expanded, but for what a child was born with, up to session/end-seed, which
	// is in the file alone. Where the server was killed, either may lack some of the last events of the other.
	Events []json.RawMessage
}

// Run plays the scenario in a process of its own and returns its logs, which last as long as the test.
func (sc Scenario) Run(t testing.TB, h Harness) Logs {
	t.Helper()
	model, err := fakemodel.Open(fakemodel.Options{Dialect: fakemodel.DeepSeek, Script: sc.script})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(model.Close)
	dir := t.TempDir()
	cwd := filepath.Join(dir, "work tree é")
	if err := os.Mkdir(cwd, 0o700); err != nil {
		t.Fatal(err)
	}
	server := StartServer(t, h, ServerConfig{Dir: dir, Cwd: cwd, Model: model, Persistence: sc.Persistence})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s := &stage{TB: t, ctx: ctx, model: model, server: server, root: filepath.Join(dir, "sessions")}
	sc.play(s)
	sessions, err := s.sessions()
	if err != nil {
		t.Fatalf("scenario %s: %v", sc.Name, err)
	}
	return Logs{Root: s.root, Cwd: cwd, Sessions: sessions}
}

// sessions collects what the server left. It must have ended.
func (s *stage) sessions() ([]Log, error) {
	select {
	case <-s.server.process.Done():
	default:
		return nil, fmt.Errorf("the SDK server still runs")
	}
	paths, err := s.files("*")
	if err != nil {
		return nil, err
	}
	children, parents := s.server.Children()
	var logs []Log
	for _, id := range append(slices.Clone(s.asked), children...) {
		log := Log{ID: id, Parent: parents[id]}
		for _, e := range s.server.Events(id) {
			log.Events = append(log.Events, e.Raw)
		}
		i := slices.IndexFunc(paths, func(path string) bool { return unescape(filepath.Base(filepath.Dir(path))) == id })
		if i < 0 {
			return nil, fmt.Errorf("session %q has no file among %q", id, paths)
		}
		log.Path = paths[i]
		logs = append(logs, log)
	}
	if len(paths) != len(logs) {
		return nil, fmt.Errorf("%d sessions, but the files %q", len(logs), paths)
	}
	return logs, nil
}

// files returns the files of the sessions whose escaped ids match the pattern.
func (s *stage) files(pattern string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(s.root, "*", pattern, "session.jsonl*"))
	// A process that was killed may have left what it was about to rename.
	return slices.DeleteFunc(paths, func(path string) bool { return strings.HasSuffix(path, ".tmp") }), err
}

// unescape returns the id that a folder's name stands for: ~XXXX is a UTF-16 code unit (core D13).
func unescape(name string) string {
	var id string
	if json.Unmarshal([]byte(`"`+strings.ReplaceAll(name, "~", `\u`)+`"`), &id) != nil {
		return ""
	}
	return id
}
