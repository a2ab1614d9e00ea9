// Package fakeagent is an agent in another process that does what it is told: it speaks
// the protocols of the real products, needs no model, and misbehaves on request. The tests
// of the providers drive it as a program (internal/fakeagent/cmd/fakeagent) and, where time
// is simulated, as a goroutine (see [Launch]).
//
// What an agent does with a prompt is its [Play]. As a program it reads it from the prompt
// (see [Parse]), and what is wrong with the program itself from the environment (see
// [Variable]). Floor T.
package fakeagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/offshoot-dev/offshoot/internal/rpcconn"
)

// Play is what an agent does with one prompt, in the order of the fields. The zero value
// ends at once without an answer.
type Play struct {
	// Run is a shell command that the agent asks leave for, and runs if it gets it. What
	// became of it is said before Text: "allowed", "rejected" or "cancelled", and a blank.
	Run string
	// Text is what it says, in Pieces pieces (0 is one).
	Text   string
	Pieces int
	// Structured is its answer in the form of a schema, where the protocol has one; it is
	// sent only where a schema was given.
	Structured string
	// Noise is sent between the pieces: "notice" is a message that the protocol does not
	// know, "garbage" a line that is no JSON, "late" puts the answer to the prompt's request
	// behind everything that it brings about, where the protocol allows that. A protocol may
	// have more kinds of its own.
	Noise string
	// Exit ends the process with this status in place of an end; 0 does not.
	Exit int
	// Hang never ends the turn; it is left by an interrupt.
	Hang bool
	// Hold, if set, keeps the turn open until it is closed. It can be set in the same
	// process alone, and so can Deaf: how long the agent goes on after it was told to stop.
	Hold <-chan struct{}
	Deaf time.Duration
	// End is how the turn ends: "" is normally, then the stop reasons of the seam
	// ("max-tokens", "refusal", "error"), and "unknown" for a word that the protocol does not
	// have.
	End string
}

// Parse reads a play from the directives of a prompt, each [[agent:WORD REST]]:
//
//	say TEXT    pieces N    structured JSON    noise KIND    run COMMAND
//	exit N      hang        end REASON         big N (an answer of N bytes)
//
// A directive that is not known is an error.
func Parse(prompt string) (Play, error) {
	var p Play
	for {
		_, rest, found := strings.Cut(prompt, "[[agent:")
		if !found {
			return p, nil
		}
		var directive string
		if directive, prompt, found = strings.Cut(rest, "]]"); !found {
			return p, fmt.Errorf("a directive has no end: %q", rest)
		}
		word, arg, _ := strings.Cut(directive, " ")
		var err error
		switch word {
		case "say":
			p.Text = arg
		case "pieces":
			p.Pieces, err = strconv.Atoi(arg)
		case "structured":
			p.Structured = arg
		case "noise":
			p.Noise = arg
		case "run":
			p.Run = arg
		case "exit":
			p.Exit, err = strconv.Atoi(arg)
		case "hang":
			p.Hang = true
		case "end":
			p.End = arg
		case "big":
			var n int
			n, err = strconv.Atoi(arg)
			p.Text = strings.Repeat("x", max(n, 0))
		default:
			err = errors.New("unknown directive")
		}
		if err != nil {
			return p, fmt.Errorf("directive %q: %w", directive, err)
		}
	}
}

// Variable is the environment variable with what is wrong with the program, words with
// blanks between them:
//
//	STAGE=exit:N   STAGE=silent   STAGE=garbage   STAGE=long   STAGE=error   STAGE=version
//	ignore=eof     ignore=term     record=FILE (every line that comes is appended to it)
//
// where the stages are start, handshake, session and prompt: at start nothing was read
// yet, at the others their request was. Silent answers nothing more; garbage is a line that
// is no JSON, and then things go on; long is a line of 5 MB that the protocol does not know;
// error is an error as the answer; version is a version of the protocol that nobody speaks.
const Variable = "FAKEAGENT"

// The stages.
const (
	Start     = "start"
	Handshake = "handshake"
	Session   = "session"
	Prompt    = "prompt"
)

// Faults is what is wrong with an agent, by stage.
type Faults struct {
	At map[string]string
	// IgnoreEOF and IgnoreTerm: the end of its input, and the request to end, change nothing.
	IgnoreEOF, IgnoreTerm bool
	// Record is a file to which every line that comes is appended; "" is none.
	Record string
}

// ParseFaults reads the value of Variable.
func ParseFaults(text string) (Faults, error) {
	f := Faults{At: map[string]string{}}
	for _, word := range strings.Fields(text) {
		key, value, _ := strings.Cut(word, "=")
		switch {
		case word == "ignore=eof":
			f.IgnoreEOF = true
		case word == "ignore=term":
			f.IgnoreTerm = true
		case key == "record" && value != "":
			f.Record = value
		case (key == Start || key == Handshake || key == Session || key == Prompt) && value != "":
			f.At[key] = value
		default:
			return f, fmt.Errorf("%s: %q makes no sense", Variable, word)
		}
	}
	return f, nil
}

// Protocol is the side of an agent in one protocol. It reads lines from a until the input
// ends and returns the exit status.
type Protocol func(a *Agent) int

// Agent is one agent. A Protocol uses its methods; they may be called concurrently.
type Agent struct {
	// Play is what it does with a prompt.
	Play func(prompt string) (Play, error)
	Faults
	// Args are the program's arguments.
	Args []string

	in  *rpcconn.Reader
	out io.Writer

	mu       sync.Mutex // guards the output
	quit     chan int   // takes the status of an agent that ends in the middle, once
	gone     chan struct{}
	quitOnce sync.Once
	// ended is closed when the input ends, or the client has said that it will.
	ended   chan struct{}
	endOnce sync.Once
}

// New returns an agent that reads from in and writes to out.
func New(play func(string) (Play, error), faults Faults, args []string, in io.Reader, out io.Writer) *Agent {
	return &Agent{
		Play: play, Faults: faults, Args: args, in: rpcconn.NewReader(in, 0), out: out,
		quit: make(chan int, 1), gone: make(chan struct{}), ended: make(chan struct{}),
	}
}

// Serve runs the agent to its end and returns its exit status. Nothing of it runs on but a
// turn that was left.
func (a *Agent) Serve(p Protocol) int {
	if a.strike(Start, nil) {
		return <-a.quit // silent, or on its way out
	}
	done := make(chan int, 1)
	go func() { done <- p(a) }()
	select {
	case status := <-done:
		if a.IgnoreEOF {
			return <-a.quit
		}
		return status
	case status := <-a.quit:
		return status
	}
}

// Next returns the next line that is a JSON object, and false at the end of the input.
func (a *Agent) Next() (json.RawMessage, bool) {
	line, err := a.in.Next()
	if err != nil {
		a.Leave()
		return nil, false
	}
	if a.Record != "" && !a.record(line) {
		a.Quit(2)
		return nil, false
	}
	return append(json.RawMessage(nil), line...), true
}

func (a *Agent) record(line []byte) bool {
	f, err := os.OpenFile(a.Record, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return false
	}
	_, err = f.Write(append(line[:len(line):len(line)], '\n'))
	return errors.Join(err, f.Close()) == nil
}

// Leave has turns that hold end, as at the end of the input.
func (a *Agent) Leave() { a.endOnce.Do(func() { close(a.ended) }) }

// Send writes a message as a line.
func (a *Agent) Send(message any) {
	line, err := json.Marshal(message)
	if err != nil {
		line = []byte(fmt.Sprintf("%q", "the fake cannot encode: "+err.Error()))
	}
	a.Line(string(line))
}

// Line writes a line as it is. An output that is closed is nothing that an agent minds.
func (a *Agent) Line(line string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, _ = io.WriteString(a.out, line+"\n")
}

// Quit ends the agent with a status, in the middle of whatever it does.
func (a *Agent) Quit(status int) {
	a.quitOnce.Do(func() {
		a.quit <- status
		close(a.gone)
	})
}

// Gone is closed when the agent quits: a Protocol that waits for nothing else returns then.
func (a *Agent) Gone() <-chan struct{} { return a.gone }

// Strike does what is wrong at a stage and reports whether the request that led there is
// left without its ordinary answer. fail answers it with an error.
func (a *Agent) Strike(stage string, fail func()) bool { return a.strike(stage, fail) }

func (a *Agent) strike(stage string, fail func()) bool {
	fault, arg, _ := strings.Cut(a.At[stage], ":")
	switch fault {
	case "exit":
		status, err := strconv.Atoi(arg)
		if err != nil {
			status = 2
		}
		a.Quit(status)
		return true
	case "silent":
		return true
	case "garbage":
		a.Line("this is no JSON {")
	case "long":
		a.Send(map[string]any{"method": "fake/long", "type": "fake_long", "params": map[string]string{"text": strings.Repeat("l", 5<<20)}})
	case "error":
		if fail != nil {
			fail()
			return true
		}
	}
	return false
}

// BadVersion reports whether the agent is to name a version that nobody speaks.
func (a *Agent) BadVersion() bool { return a.At[Handshake] == "version" }

// Turn is what a Protocol gives to Act: how things are said in it.
type Turn struct {
	// Interrupted is closed when the client asks to stop.
	Interrupted <-chan struct{}
	// Say sends a piece of the answer.
	Say func(piece string)
	// Noise sends a message that the protocol does not know.
	Noise func()
	// Ask asks leave for a shell command: "allowed", "rejected" or "cancelled".
	Ask func(command string) string
	// Dir is where commands run.
	Dir string
}

// Act plays a prompt up to its end, which it returns: the play's End, "aborted" if it was
// interrupted, or "gone" if there will be none: the agent quits, or its input has ended.
// said is all that it said.
func (a *Agent) Act(p Play, t Turn) (end, said string) {
	if p.Run != "" && t.Ask != nil {
		verdict := t.Ask(p.Run)
		if verdict == "allowed" {
			cmd := exec.Command("sh", "-c", p.Run)
			if cmd.Dir = t.Dir; cmd.Run() != nil {
				verdict = "failed"
			}
		}
		p.Text = verdict + " " + p.Text
	}
	if p.Text != "" {
		for piece := range pieces(p.Text, p.Pieces) {
			switch p.Noise {
			case "notice":
				t.Noise()
			case "garbage":
				a.Line("no JSON [")
			}
			t.Say(piece)
		}
	}
	if p.Exit != 0 {
		a.Quit(p.Exit)
		return "gone", p.Text
	}
	hold := p.Hold
	if p.Hang {
		hold = make(chan struct{})
	}
	if hold == nil {
		return p.End, p.Text
	}
	select {
	case <-hold:
		return p.End, p.Text
	case <-t.Interrupted:
	case <-a.ended:
	}
	if p.Deaf > 0 {
		<-time.After(p.Deaf)
	}
	select {
	case <-t.Interrupted:
		return "aborted", p.Text
	default:
		return "gone", p.Text
	}
}

// pieces cuts a text into n parts.
func pieces(text string, n int) func(func(string) bool) {
	return func(yield func(string) bool) {
		n = max(1, min(n, len(text)))
		for i := range n {
			if !yield(text[i*len(text)/n : (i+1)*len(text)/n]) {
				return
			}
		}
	}
}
