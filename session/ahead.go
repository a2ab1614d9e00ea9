package session

import (
	"fmt"
	"iter"
	"sync"
)

// aheadFrom is the length from which a log is read ahead: below it, a goroutine
// costs more than it wins.
const aheadFrom = 1000

// One lot of what is read ahead, how many lots may wait, and with how many bytes that
// were not taken nothing more is read: bounds of what a reader holds beside the log.
const (
	lotEvents  = 256
	lotBytes   = 64 << 10
	lots       = 2
	aheadBytes = 1 << 20
)

// readAhead yields what events yields, in its order and up to its first error, while
// a goroutine reads and parses what comes next. The goroutine has ended when the
// sequence has. A panic of events comes out as an error.
func readAhead(events iter.Seq2[Event, error]) iter.Seq2[Event, error] {
	type lot struct {
		events []Event
		size   int
		err    error
	}
	return func(yield func(Event, error) bool) {
		read := make(chan lot, lots)
		taken := make(chan int, lots+2) // sizes of lots that were taken; the reader empties it with each lot that it sends
		enough := make(chan struct{})
		var reader sync.WaitGroup
		defer reader.Wait()
		defer close(enough)
		reader.Go(func() {
			defer close(read)
			var l lot
			ahead := 0
			send := func() bool {
				select {
				case read <- l:
					ahead += l.size
					l = lot{}
				case <-enough:
					return false
				}
				for ahead > aheadBytes {
					select {
					case n := <-taken:
						ahead -= n
					case <-enough:
						return false
					}
				}
				for {
					select {
					case n := <-taken:
						ahead -= n
						continue
					default:
						return true
					}
				}
			}
			defer func() {
				if p := recover(); p != nil {
					l.err = fmt.Errorf("store panicked: %v", p)
				}
				send()
			}()
			for e, err := range events {
				if err != nil {
					l.err = err
					return
				}
				if l.events == nil {
					l.events = make([]Event, 0, lotEvents)
				}
				l.events = append(l.events, e)
				if l.size += len(e.data); len(l.events) == lotEvents || l.size >= lotBytes {
					if !send() {
						return
					}
				}
			}
		})
		for l := range read {
			for i, e := range l.events {
				l.events[i] = Event{}
				if !yield(e, nil) {
					return
				}
			}
			taken <- l.size
			if l.err != nil {
				yield(Event{}, l.err)
				return
			}
		}
	}
}
