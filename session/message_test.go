package session_test

import (
	"testing"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// What is appended can be read back: a message that could not is refused, and the log stays
// as it was.
func TestMessageReadsBack(t *testing.T) {
	with := func(change func(m *message.Message)) message.Message {
		m := userMessage("m", "text")
		change(&m)
		return m
	}
	source := func(s message.Source) message.Message {
		return with(func(m *message.Message) { m.Source = s })
	}
	block := func(typ message.BlockType, raw string) message.Message {
		return with(func(m *message.Message) { m.Content = append(m.Content, message.Block{Type: typ, Raw: []byte(raw)}) })
	}
	for name, tt := range map[string]struct {
		msg message.Message
		ok  bool
	}{
		"a coordinator":                {source(message.NewSource(message.SourceCoordinator, message.SourceDetails{SenderSessionID: "s"})), true},
		"a coordinator that is nobody": {source(message.NewSource(message.SourceCoordinator, message.SourceDetails{Form: message.FormRelay})), false},
		"a report of nobody":           {source(message.Source{Kind: message.SourceSubagentReport}), false},
		"a settlement of nobody":       {source(message.Source{Kind: message.SourceSubagentSettled}), false},
		"a kind of somebody else's":    {source(message.Source{Kind: "theirs"}), true},
		"an object of such a kind":     {source(message.NewSource("theirs", message.SourceDetails{Raw: []byte(`{"kind":"theirs","more":1}`)})), true},
		"an object of another kind":    {source(message.NewSource("theirs", message.SourceDetails{Raw: []byte(`{"kind":"others"}`)})), false},
		"an object of no kind":         {source(message.NewSource("theirs", message.SourceDetails{Raw: []byte(`{"more":1}`)})), false},
		"a known kind with more":       {source(message.NewSource(message.SourceUser, message.SourceDetails{Raw: []byte(`{"kind":"user","more":1}`)})), false},
		"a plugin with more":           {source(message.NewSource(message.SourcePlugin, message.SourceDetails{Raw: []byte(`{"kind":"plugin","plugin":"p","more":1}`)})), true},
		"a user's with a form":         {source(message.NewSource(message.SourceUser, message.SourceDetails{Form: message.FormRelay, Summary: "s"})), true},
		"an unknown block":             {block("theirs", `{"type":"theirs","more":1}`), true},
		"a block of another type":      {block("theirs", `{"type":"others"}`), false},
		"a block that is none":         {block("theirs", `{"type":"text"}`), false},
		"a block without a type":       {block("theirs", `{}`), false},
		"an image":                     {block(message.BlockImage, `{"any":1}`), true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, session.Config{})
			s := prepare(t, r, session.New{ID: "s"})
			_, err := s.Append(session.Draft{Payload: &session.InboxSpliced{Target: session.NextTurn, Inserted: []message.Message{tt.msg}}})
			if (err == nil) != tt.ok || (session.CheckMessage(&tt.msg) == nil) != tt.ok {
				t.Errorf("append: %v", err)
			}
			if (s.Head() > 0) != tt.ok {
				t.Errorf("the log has %d events", s.Head())
			}
			if !tt.ok {
				return
			}
			text := string(session.AppendMessage(nil, &tt.msg))
			read, err := session.DecodeMessage([]byte(text))
			if err != nil {
				t.Errorf("read back: %v", err)
			} else if again := string(session.AppendMessage(nil, &read)); again != text {
				t.Errorf("%s is read back as %s", text, again)
			}
		})
	}
}
