package main

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

const (
	// maxVoice bounds, in bytes, what a child says ahead of stderr's reader.
	maxVoice = 64 << 10
	// maxVoiceLine is when, in bytes, a line that does not end is shown all the same.
	maxVoiceLine = 2 << 10
)

// voice is what a child said and nobody has seen yet. It is bounded, and nothing of
// it is lost to a slow reader: what finds no room is read from the log later. Only an
// answer that broke off is in no log; how much of it found no room is told instead.
type voice struct {
	buf  []byte
	said int   // bytes of the answer under way
	next int64 // the log's head

	// behind says that buf takes nothing more. The answers from seq from up to to wait in
	// the log; of the first one skip bytes were in buf.
	behind   bool
	s        *session.Session // nil unless behind
	from, to int64
	skip     int
	missed   int // bytes that are in no log
}

// say takes a piece of the answer under way.
func (v *voice) say(text string) {
	v.said += len(text)
	switch {
	case v.behind:
	case len(v.buf)+len(text) > maxVoice:
		v.behind, v.from, v.to, v.skip = true, v.next, v.next, v.said-len(text)
	default:
		v.buf = append(v.buf, text...)
	}
}

// all takes a text that is not streamed and in no log of this process.
func (v *voice) all(text string) {
	v.buf = append(v.buf, text...)
	v.endLine()
}

// endLine ends a line that was begun.
func (v *voice) endLine() {
	if n := len(v.buf); !v.behind && n > 0 && v.buf[n-1] != '\n' {
		v.buf = append(v.buf, '\n')
	}
}

// logged takes an event of the child's log s, behind all that was streamed before it.
func (v *voice) logged(s *session.Session, e *session.Event) {
	switch p := e.Payload().(type) {
	case *session.AssistantMessage:
		if !v.behind && v.said == 0 && message.JoinText(p.Message.Content) != "" {
			v.behind, v.from, v.skip = true, e.Seq, 0 // it was not streamed
		}
		if v.behind {
			v.s, v.to = s, e.Seq+1
		}
		v.endLine()
		v.said = 0
	case *session.Retry, *session.TurnEnd:
		v.brokeOff()
	}
	v.next = e.Seq + 1
}

// brokeOff ends an answer that is in no log.
func (v *voice) brokeOff() {
	if v.behind && v.said > 0 {
		v.missed += v.said
		if v.from == v.to {
			// It is the one that buf has the beginning of.
			v.missed -= v.skip
			v.behind, v.skip = false, 0
		}
	}
	v.said = 0
	v.endLine()
}

// ready reports whether something can be shown.
func (v *voice) ready() bool {
	return v.missed > 0 || v.from < v.to || len(v.buf) >= maxVoiceLine || bytes.IndexByte(v.buf, '\n') >= 0
}

// batch is what is shown at once.
type batch struct {
	text     string
	s        *session.Session // of the answers from from up to to behind text, or nil
	from, to int64
	skip     int
	missed   int
}

// take takes out what can be shown: whole lines, and a line that has become too long.
func (v *voice) take() batch {
	b := batch{missed: v.missed}
	v.missed = 0
	if v.from < v.to {
		b.text, b.s, b.from, b.to, b.skip = string(v.buf), v.s, v.from, v.to, v.skip
		v.buf, v.s, v.from, v.skip = nil, nil, v.to, 0
		// An answer that began meanwhile is read from the log as a whole.
		v.behind = v.said > 0
		return b
	}
	n := bytes.LastIndexByte(v.buf, '\n') + 1
	if len(v.buf)-n >= maxVoiceLine {
		n = wholeRunes(v.buf)
	}
	b.text = string(v.buf[:n])
	if v.buf = v.buf[n:]; len(v.buf) == 0 {
		v.buf = nil
	}
	return b
}

// wholeRunes is the length of text without a character at its end that is not
// complete.
func wholeRunes(text []byte) int {
	for i := len(text) - 1; i >= 0 && i >= len(text)-utf8.UTFMax; i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRune(text[i:]) {
				return i
			}
			break
		}
	}
	return len(text)
}

// chunk is a hook: it takes what a child says while it says it.
func (p *progress) chunk(a *agent.Agent, c llm.Chunk) {
	if c.Kind != llm.ChunkTextDelta {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// What the first one says last is the answer, on stdout.
	if n := p.nodes[a.ID()]; n != nil && n.parent != nil {
		n.voice.say(c.Text)
		p.queue(n)
	}
}

// queue has what a node said shown, if there is a line of it. p.mu is held.
func (p *progress) queue(n *node) {
	if n.queued || !n.voice.ready() {
		return
	}
	n.queued = true
	p.spoken = append(p.spoken, n)
	p.rouse()
}

func (p *progress) rouse() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// hush says that nobody says anything any more: speak ends when all is shown.
func (p *progress) hush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.root != nil && p.verbose {
		p.root.each(func(n *node) {
			n.voice.brokeOff()
			p.queue(n)
		})
	}
	p.hushed = true
	p.rouse()
}

// speak shows what children say until all is shown after hush; stop joins it.
func (p *progress) speak() {
	for {
		p.mu.Lock()
		var n *node
		if len(p.spoken) > 0 {
			n, p.spoken = p.spoken[0], p.spoken[1:]
			n.queued = false
		}
		hushed := p.hushed
		p.mu.Unlock()
		switch {
		case n != nil:
			p.out.Lock()
			for p.paused > 0 {
				p.free.Wait()
			}
			p.utter(n)
			p.out.Unlock()
		case hushed:
			return
		default:
			<-p.wake
		}
	}
}

// utter shows what a child has said since: whole lines, each behind its label. p.out
// is held, so that they come in the order in which they were said.
func (p *progress) utter(n *node) {
	p.mu.Lock()
	b := n.voice.take()
	margin := n.indent() + n.label + " │ "
	p.mu.Unlock()
	if b.s == nil {
		p.speech(margin, b.text)
	} else {
		text := b.text // its last line may go on in the log
		for e := range b.s.Events(b.from) {
			if e.Seq >= b.to {
				break
			}
			m, ok := e.Payload().(*session.AssistantMessage)
			if !ok {
				continue
			}
			more := message.JoinText(m.Message.Content)
			more = more[min(b.skip, len(more)):]
			b.skip = 0
			p.speech(margin, text+more)
			text = ""
		}
		p.speech(margin, text)
	}
	if b.missed > 0 {
		p.above(fmt.Sprintf("%s(%s of an answer that broke off are left out)\n", margin, plural(int64(b.missed), "byte")))
	}
}

// speech shows a text, each line behind margin.
func (p *progress) speech(margin, text string) {
	if text == "" {
		return
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		for {
			piece := line
			if len(piece) > maxVoiceLine {
				piece = line[:wholeRunes([]byte(line[:maxVoiceLine]))]
			}
			line = line[len(piece):]
			shown := printable(strings.ReplaceAll(piece, "\t", "    "))
			b.WriteString(strings.TrimRight(margin+shown, " ") + "\n")
			if line == "" {
				break
			}
		}
		if b.Len() >= writePiece {
			p.above(b.String())
			b.Reset()
		}
	}
	if b.Len() > 0 {
		p.above(b.String())
	}
}
