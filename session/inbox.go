package session

import (
	"fmt"
	"slices"

	"github.com/offshoot-dev/offshoot/message"
)

// Queued is a message that waits in an inbox list.
type Queued struct {
	Message message.Message
	// Seq is the splice that inserted it; the message is accepted for good once
	// that event is durable.
	Seq int64
	// Wake says that the message was sent to wake the agent.
	Wake bool
}

// inbox is the fold of agent/inbox/spliced (core L6, L10, L14).
type inbox struct {
	lists [2][]Queued

	// mark lies behind the last session/imported, 0 where there is none: what was
	// queued below it is foreign. sent counts the messages that a person sent
	// since, but for those that were cancelled before a turn took them.
	mark int64
	sent int

	// claims are the settlements that splices took and the log did not note yet.
	claims []message.ID
}

// imported notes that everything below seq came from elsewhere.
func (b *inbox) imported(seq int64) { b.mark, b.sent = seq+1, 0 }

// parked reports whether something foreign waits and no person has sent since.
func (b *inbox) parked() bool {
	if b.mark == 0 || b.sent > 0 {
		return false
	}
	for _, list := range b.lists {
		for i := range list {
			if list[i].Seq < b.mark {
				return true
			}
		}
	}
	return false
}

// releases reports whether a message ends the parking of what is foreign.
func (b *inbox) releases(q *Queued) bool {
	return b.mark > 0 && q.Seq >= b.mark && q.Wake && q.Message.Source.Kind == message.SourceUser
}

func listIndex(t Target) int {
	if t == NextStep {
		return 1
	}
	return 0
}

// check validates a splice against the lists as they stand.
func (b *inbox) check(p *InboxSpliced) error {
	list := b.lists[listIndex(p.Target)]
	n := int64(len(list))
	if p.Start > n || p.Removed > n-p.Start {
		return fmt.Errorf("splice of %d at %d in list %s of %d", p.Removed, p.Start, p.Target, n)
	}
	if p.Removed == 0 && len(p.Inserted) == 0 {
		return fmt.Errorf("splice without effect in list %s", p.Target)
	}
	if p.Canceled && p.Removed == 0 {
		return fmt.Errorf("cancelling splice that removes nothing in list %s", p.Target)
	}
	for i := range p.Inserted {
		id := p.Inserted[i].ID
		for j := range b.lists {
			for k := range b.lists[j] {
				removed := j == listIndex(p.Target) && int64(k) >= p.Start && int64(k) < p.Start+p.Removed
				if b.lists[j][k].Message.ID == id && !removed {
					return fmt.Errorf("message %q is pending already", id)
				}
			}
		}
		for j := range i {
			if p.Inserted[j].ID == id {
				return fmt.Errorf("message %q is inserted twice", id)
			}
		}
	}
	return nil
}

// apply performs a checked splice. Lists handed out before stay as they were.
func (b *inbox) apply(seq int64, p *InboxSpliced) {
	list := &b.lists[listIndex(p.Target)]
	add := make([]Queued, len(p.Inserted))
	for i := range p.Inserted {
		add[i] = Queued{Message: p.Inserted[i], Seq: seq, Wake: !p.NoWake}
		if b.releases(&add[i]) {
			b.sent++
		}
	}
	b.claim(*list, p)
	if p.Canceled {
		for i := p.Start; i < p.Start+p.Removed; i++ {
			if b.releases(&(*list)[i]) {
				b.sent--
			}
		}
	}
	if p.Removed == 0 && p.Start == int64(len(*list)) {
		if *list == nil {
			*list = add
			return
		}
		*list = append(*list, add...)
		return
	}
	if p.Start == 0 && len(add) == 0 {
		*list = (*list)[p.Removed:]
		if len(*list) == 0 {
			*list = nil
		}
		return
	}
	out := make([]Queued, 0, len(*list)+len(add))
	out = append(append(append(out, (*list)[:p.Start]...), add...), (*list)[p.Start+p.Removed:]...)
	*list = out
}

func (b *inbox) list(t Target) []Queued { return slices.Clip(b.lists[listIndex(t)]) }
