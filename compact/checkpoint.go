package compact

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// instruction is what the model is asked for a summary with.
//
//go:embed instruction.md
var instruction string

// Plugin is the source of the messages that this package writes.
const Plugin = "compact"

// Tag wraps the text of a checkpoint, the message that stands for what a compaction
// left out (core D39).
const Tag = "compacted-summary"

// ask returns the message that asks for a summary.
func ask() message.Message {
	return message.Message{
		ID: agent.NewMessageID(), Role: message.RoleUser, Content: []message.Block{message.Text(strings.TrimSpace(instruction))},
		Source: message.NewSource(message.SourcePlugin, message.SourceDetails{Plugin: Plugin, Form: message.FormInstructions}),
	}
}

// checkpoint returns the message that replaces what was summed up. Its source names
// the compaction, as other readers of such logs expect.
func checkpoint(id, summary string, kept []kept) message.Message {
	var b strings.Builder
	fmt.Fprintf(&b, "<%s>\nThe conversation up to here was long and has been replaced by this summary, which you wrote yourself.\n", Tag)
	for _, k := range kept {
		how := "word by word"
		if k.cut {
			how = "as far as there is room for it"
		}
		fmt.Fprintf(&b, "\n%s, %s:\n<%s>\n%s\n</%s>\n", k.what, how, k.tag, k.text, k.tag)
	}
	fmt.Fprintf(&b, "\n%s\n</%s>", strings.TrimSpace(summary), Tag)
	source := append(jsonx.AppendStringField(jsonx.AppendStringField(jsonx.AppendStringField([]byte{'{'},
		"kind", string(message.SourcePlugin)), "plugin", Plugin), "compactionId", id), '}')
	return message.Message{
		ID: message.ID(uuid.NewString()), Role: message.RoleUser, Content: []message.Block{message.Text(b.String())},
		Source: message.NewSource(message.SourcePlugin, message.SourceDetails{Plugin: Plugin, Raw: source}),
	}
}

// kept is a message that outlives the compaction word by word, but for its middle if it
// is cut.
type kept struct {
	what, tag, text string
	cut             bool
}

// keepText returns a message that outlives the compaction within most tokens; where
// says where the rest is.
func keepText(what, tag string, m *message.Message, most int64, where string) kept {
	k := kept{what: what, tag: tag, text: message.JoinText(m.Content)}
	if size := int64(len(k.text)); size/4 > most {
		stay := int(int64(utf8.RuneCountInString(k.text)) * (4 * most) / size)
		var short []message.Block
		short, k.cut = shorten([]message.Block{message.Text(k.text)}, stay, stay-stay/3, stay/3, func(runes int) string {
			return fmt.Sprintf("\n[... %d characters left out here; %s ...]\n", runes, where)
		})
		if k.cut {
			k.text = message.JoinText(short)
		}
	}
	return k
}

// keep returns what must be said again because it does not stand in the part of the
// surface that stays: the task of a delegated agent, within taskMost tokens, and what
// people and other agents said in the turn that is open, the newest of it within most
// tokens. where says where the whole of the message at a seq is.
func keep(s *session.Session, stays []session.Node, taskMost, most int64, where func(seq int64) string) []kept {
	onSurface := map[int64]bool{}
	for i := range stays {
		onSurface[stays[i].Seq] = true
	}
	var list []kept
	task := int64(-1)
	if h := s.Header(); h.Origin == session.OriginSubagent {
		for e := range s.Events(h.SeedLength) {
			m := spoken(&e)
			if m == nil {
				continue
			}
			if task = e.Seq; !onSurface[task] {
				list = append(list, keepText("The task that you were created for", "task", m, taskMost, where(task)))
			}
			break
		}
	}
	if _, open, _ := s.LastTurn(); !open {
		return list
	}
	var said []kept
	for seq := s.Head() - 1; seq >= 0; seq-- {
		e, _ := s.Event(seq)
		if e.Type == session.TypeTurnStart {
			break
		}
		m := spoken(&e)
		if m == nil || seq == task || onSurface[seq] {
			continue
		}
		if len(said) > 0 && tokens(m) > most {
			break
		}
		said = append(said, keepText("What you were told last", "request", m, most, where(seq)))
		most -= tokens(m)
	}
	slices.Reverse(said)
	return append(list, said...)
}

// spoken returns the message of an event by which a person or another agent spoke, or nil.
func spoken(e *session.Event) *message.Message {
	if e.Type != session.TypeUserMessage || e.Op != session.OpAppend {
		return nil
	}
	p, ok := e.Payload().(*session.UserMessage)
	if !ok {
		return nil
	}
	switch p.Message.Source.Kind {
	case message.SourcePlugin, message.SourceTool, message.SourceModel:
		return nil
	}
	return &p.Message
}
