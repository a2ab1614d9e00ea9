package projection

import (
	"strings"
	"unicode"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// TitleRunes bounds a title that is made from a message, the mark of a cut included.
const TitleRunes = 80

// Title is what people call a session.
type Title struct {
	Text string
	// Derived says that nobody gave the title: it is the beginning of the first
	// message that a person or another agent sent.
	Derived bool
}

// TitleUnit folds session/title, and the first message until there is one, into
// a *Title.
func TitleUnit() Unit {
	zero := &Title{}
	return Unit{
		Key: session.CellTitle, Version: cellVersion,
		Types: []session.Type{session.TypeTitle, session.TypeUserMessage},
		Init:  func(*session.Header) Value { return zero },
		Apply: func(v Value, e *session.Event, p session.Payload) Value {
			old, ok := v.(*Title)
			if !ok {
				return v
			}
			switch p := p.(type) {
			case *session.Title:
				if p.Title != "" && (old.Derived || p.Title != old.Text) {
					return &Title{Text: p.Title}
				}
			case *session.UserMessage:
				if old.Text != "" || e.Op == session.OpReplace || !said(&p.Message.Source) {
					return v
				}
				if text := oneLine(p.Message.Content); text != "" {
					return &Title{Text: text, Derived: true}
				}
			}
			return v
		},
		Append: func(buf []byte, v Value) []byte {
			t, ok := v.(*Title)
			if !ok {
				return append(buf, "null"...)
			}
			buf = jsonx.AppendStringField(append(buf, '{'), "title", t.Text)
			if t.Derived {
				buf = jsonx.AppendTrueField(buf, "derived")
			}
			return append(buf, '}')
		},
		Parse: parser(parseTitle),
	}
}

func parseTitle(_ *session.Header, data []byte) (*Title, error) {
	t := &Title{}
	found := false
	err := jsonx.ReadObject(data, func(key string, raw []byte) (err error) {
		switch key {
		case "title":
			found = true
			return setString(&t.Text, raw)
		case "derived":
			t.Derived, err = jsonx.Bool(raw)
			return err
		}
		return jsonx.UnknownKey(key)
	})
	if err == nil && !found {
		err = errIncomplete
	}
	return t, err
}

// said reports whether somebody wanted something, as opposed to context that the
// program put beside it.
func said(s *message.Source) bool {
	switch s.Kind {
	case message.SourceTool, message.SourceModel, message.SourceSubagentReport, message.SourceSubagentSettled:
		return false
	}
	form := s.Details().Form
	return form == "" || form == message.FormRelay
}

// oneLine returns the beginning of the text with every run of white space as one
// blank, at most TitleRunes long.
func oneLine(content []message.Block) string {
	out := make([]rune, 0, TitleRunes+1) // on the stack
	blank := false
	for i := range content {
		if content[i].Type != message.BlockText {
			continue
		}
		for _, r := range content[i].Text {
			switch {
			case unicode.IsSpace(r) || unicode.IsControl(r):
				blank = len(out) > 0
				continue
			case blank:
				out = append(out, ' ')
				blank = false
			}
			if out = append(out, r); len(out) > TitleRunes {
				return strings.TrimRight(string(out[:TitleRunes-1]), " ") + "…"
			}
		}
		blank = len(out) > 0
	}
	return string(out)
}

// TitleOf returns the title that a record's checkpoint holds; false means that it
// does not tell. A session that nobody said anything to has an empty one.
func TitleOf(rec *session.Record) (Title, bool) { return value(titleOf(rec)) }

func titleOf(rec *session.Record) *Title { return of(rec, session.CellTitle, parseTitle) }
