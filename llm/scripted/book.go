package scripted

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// Record is one request that an Adapter has answered or is answering.
type Record struct {
	// Request is the caller's own and must not be modified.
	Request *llm.Request
	// Conversation names the conversation that answers, "" for none.
	Conversation string
	// Position is the place of the answer, counted as the conversation counts.
	Position int
}

const (
	// maxAttempts bounds the positions of which FailTimes remembers the attempts;
	// the oldest are forgotten first.
	maxAttempts = 4096
	// maxFaults bounds the failures that Done lists.
	maxFaults = 20
)

// attemptKey is one FailTimes at one position of one session.
type attemptKey struct {
	session                         string
	conversation, position, ordinal int
}

// book is everything that an Adapter remembers.
type book struct {
	mu sync.Mutex // all fields

	ring     []Record
	limit    int
	started  int
	inFlight int
	most     int
	change   broadcast

	names    []string
	optional []bool
	played   [][]bool // by conversation and step
	claims   map[int]agent
	faults   []error
	nFaults  int

	attempts map[attemptKey]int
	oldest   []attemptKey
}

func (b *book) init(script Script, limit int) {
	b.limit = max(limit, 0)
	b.played = make([][]bool, len(script))
	b.names = make([]string, len(script))
	b.optional = make([]bool, len(script))
	for i := range script {
		b.played[i] = make([]bool, len(script[i].Steps))
		b.names[i] = script[i].Name
		if b.names[i] == "" {
			b.names[i] = fmt.Sprintf("#%d", i+1)
		}
		b.optional[i] = script[i].Optional
	}
}

func (b *book) begin(c Record, conversation, step int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.limit == 0:
	case len(b.ring) < b.limit:
		b.ring = append(b.ring, c)
	default:
		b.ring[b.started%b.limit] = c
	}
	if step >= 0 {
		b.played[conversation][step] = true
	}
	b.started++
	b.inFlight++
	b.most = max(b.most, b.inFlight)
	b.change.send()
}

func (b *book) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight--
}

func (b *book) fault(f *message.Failure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nFaults++
	if len(b.faults) < maxFaults {
		b.faults = append(b.faults, &llm.Error{Failure: *f})
	}
}

// claim gives a FirstCall conversation to an agent and reports whether it is its.
func (b *book) claim(conversation int, who agent) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.claims == nil {
		b.claims = make(map[int]agent)
	}
	for c, holder := range b.claims {
		// One agent holds one conversation only.
		if holder.same(who) {
			return c == conversation
		}
	}
	if _, taken := b.claims[conversation]; taken {
		return false
	}
	b.claims[conversation] = who
	return true
}

// attempt counts one more attempt and returns how many there were before.
func (b *book) attempt(k attemptKey) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, known := b.attempts[k]
	if !known {
		if b.attempts == nil {
			b.attempts = make(map[attemptKey]int)
		}
		if len(b.oldest) >= maxAttempts {
			delete(b.attempts, b.oldest[0])
			b.oldest = b.oldest[1:]
		}
		b.oldest = append(b.oldest, k)
	}
	b.attempts[k] = n + 1
	return n
}

// Calls returns the latest calls, oldest first, as many as Options.Record allows.
func (a *Adapter) Calls() []Record {
	b := &a.book
	b.mu.Lock()
	defer b.mu.Unlock()
	calls := make([]Record, 0, len(b.ring))
	if n := len(b.ring); n == b.limit && n > 0 {
		at := b.started % n
		return append(append(calls, b.ring[at:]...), b.ring[:at]...)
	}
	return append(calls, b.ring...)
}

// Started returns how many calls have begun.
func (a *Adapter) Started() int {
	a.book.mu.Lock()
	defer a.book.mu.Unlock()
	return a.book.started
}

// InFlight returns how many calls are being answered now.
func (a *Adapter) InFlight() int {
	a.book.mu.Lock()
	defer a.book.mu.Unlock()
	return a.book.inFlight
}

// MaxInFlight returns the most calls that were being answered at one time.
func (a *Adapter) MaxInFlight() int {
	a.book.mu.Lock()
	defer a.book.mu.Unlock()
	return a.book.most
}

// WaitCalls returns nil once n calls have begun, or context.Cause(ctx) when ctx
// ends first.
func (a *Adapter) WaitCalls(ctx context.Context, n int) error {
	b := &a.book
	return b.change.await(ctx, &b.mu, func() bool { return b.started >= n })
}

// WaitInFlight returns nil once n calls are being answered at the same time, or
// context.Cause(ctx) when ctx ends first.
func (a *Adapter) WaitInFlight(ctx context.Context, n int) error {
	b := &a.book
	return b.change.await(ctx, &b.mu, func() bool { return b.inFlight >= n })
}

// Unused names the steps that no call has played yet, optional conversations
// aside.
func (a *Adapter) Unused() []string {
	b := &a.book
	b.mu.Lock()
	defer b.mu.Unlock()
	var unused []string
	for i, steps := range b.played {
		if b.optional[i] {
			continue
		}
		for j, played := range steps {
			if !played {
				unused = append(unused, fmt.Sprintf("conversation %q, step %d of %d", b.names[i], j+1, len(steps)))
			}
		}
	}
	return unused
}

// Done returns nil when the script was fully consumed and answered every call
// (core Q9). The error joins the steps that were not played with the failures of
// the script itself: unmatched and exhausted calls, captures, invalid steps. What
// the script made fail on purpose is no such failure.
func (a *Adapter) Done() error {
	var errs []error
	for _, u := range a.Unused() {
		errs = append(errs, errors.New("scripted model: never played: "+u))
	}
	b := &a.book
	b.mu.Lock()
	defer b.mu.Unlock()
	errs = append(errs, b.faults...)
	if more := b.nFaults - len(b.faults); more > 0 {
		errs = append(errs, fmt.Errorf("scripted model: %d more failures", more))
	}
	return errors.Join(errs...)
}
