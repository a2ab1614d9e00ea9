package products

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// stage is a running scenario. Its methods fail the test.
type stage struct {
	testing.TB

	ctx    context.Context
	model  *fakemodel.Server
	server *Server
	root   string
	asked  []string // the sessions that were prompted, in order
}

func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// send sends a prompt and returns the message's id when the session's log has received it.
func (s *stage) send(session, prompt string) string {
	s.Helper()
	if !slices.Contains(s.asked, session) {
		s.asked = append(s.asked, session)
	}
	id, err := s.server.Prompt(s.ctx, session, prompt)
	s.must(err)
	return id
}

// ask sends prompts to a session, each when the turn of the one before has ended.
func (s *stage) ask(session string, prompts ...string) {
	s.Helper()
	for _, p := range prompts {
		s.must(s.server.WaitAnswered(s.ctx, session, s.send(session, p)))
	}
}

// await waits for an event of the session and returns it: of that type, with text in its JSON.
func (s *stage) await(session, kind, text string) string {
	s.Helper()
	var found string
	s.must(s.server.WaitEvent(s.ctx, session, func(e Event) bool {
		if e.Type != kind || !bytes.Contains(e.Raw, []byte(text)) {
			return false
		}
		found = string(e.Raw)
		return true
	}))
	return found
}

// written waits until the file of a session that matches the pattern contains text. Nothing tells when another
// process has written, so it looks every few milliseconds.
func (s *stage) written(pattern, text string) {
	s.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		paths, err := s.files(pattern)
		s.must(err)
		for _, path := range paths {
			data, err := os.ReadFile(path)
			s.must(err)
			if bytes.Contains(data, []byte(text)) {
				return
			}
		}
		select {
		case <-again.C:
		case <-s.ctx.Done():
			s.Fatalf("session %s in %s: no %q is written: %v", pattern, s.root, text, context.Cause(s.ctx))
		}
	}
}

// latch returns a bash command that tells that it runs, and what waits for that.
func (s *stage) latch() (command string, wait func()) {
	s.Helper()
	ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	s.must(err)
	s.Cleanup(func() { s.must(ln.Close()) })
	return "echo > /dev/tcp/" + strings.ReplaceAll(ln.Addr().String(), ":", "/"), func() {
		s.Helper()
		s.must(ln.SetDeadline(time.Now().Add(patience)))
		conn, err := ln.Accept()
		s.must(err)
		s.must(conn.Close())
	}
}

func (s *stage) shutdown() {
	s.Helper()
	s.must(s.server.Shutdown(s.ctx))
	<-s.server.read
}

func (s *stage) kill() {
	s.Helper()
	s.must(s.server.Kill(s.ctx))
}

// part is what one agent of a tree is told, and how its model answers.
type part struct {
	prompt string
	script fakemodel.Script
}

// cast answers each agent by the latest prompt that it was given. The runtime puts user messages of its own behind that.
func cast(parts ...part) fakemodel.Script {
	return func(r fakemodel.Request) fakemodel.Reply {
		for _, m := range slices.Backward(r.Messages) {
			for _, p := range parts {
				if m.Role == "user" && m.Text == p.prompt {
					return p.script(r)
				}
			}
		}
		return fakemodel.Reply{fakemodel.Status{
			Code: http.StatusBadRequest,
			Body: `{"error":{"message":"the scenario has no part for ` + strconv.Itoa(len(r.Messages)) + ` messages"}}`,
		}}
	}
}
