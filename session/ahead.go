package session

import (
	"fmt"
	"iter"
	"sync"
)

// aheadFrom is the length from which a log is read ahead: below it, a goroutine
// costs more than it wins.
const aheadFrom = 1000

// One lot of what is read ahead, and how many lots may wait: bounds of what a
// reader holds beside the log.
const (
	lotEvents = 256
	lotBytes  = 64 << 10
	lots      = 2
)

// readAhead yields what events yields, in its order and up to its first error, while
// a goroutine reads and parses what comes next. The goroutine has ended when the
// sequence has. A panic of events comes out as an error.
func readAhead(events iter.Seq2[Event, error]) iter.Seq2[Event, error] {
	type lot struct {
		events []Event
		err    error
	}
	return func(yield func(Event, error) bool) {
		read := make(chan lot, lots)
		enough := make(chan struct{})
		var reader sync.WaitGroup
		defer reader.Wait()
		defer close(enough)
		reader.Go(func() {
			defer close(read)
			var l lot
			send := func() bool {
				select {
				case read <- l:
					l = lot{}
					return true
				case <-enough:
					return false
				}
			}
			defer func() {
				if p := recover(); p != nil {
					l.err = fmt.Errorf("store panicked: %v", p)
				}
				send()
			}()
			size := 0
			for e, err := range events {
				if err != nil {
					l.err = err
					return
				}
				if l.events == nil {
					l.events, size = make([]Event, 0, lotEvents), 0
				}
				l.events = append(l.events, e)
				if size += len(e.data); len(l.events) == lotEvents || size >= lotBytes {
					if !send() {
						return
					}
				}
			}
		})
		for l := range read {
			for _, e := range l.events {
				if !yield(e, nil) {
					return
				}
			}
			if l.err != nil {
				yield(Event{}, l.err)
				return
			}
		}
	}
}
