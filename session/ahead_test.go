package session

import (
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Reading ahead changes nothing but who reads: order, the place of an error and of a
// panic, and an early end; its goroutine is gone afterwards, which the bubble checks.
func TestReadAhead(t *testing.T) {
	broken := errors.New("broken")
	source := func(n int, end func()) iter.Seq2[Event, error] {
		return func(yield func(Event, error) bool) {
			for i := range n {
				if !yield(RawEvent(Event{Seq: int64(i)}, make([]byte, i%7*1000)), nil) {
					return
				}
			}
			if end != nil {
				end()
			}
		}
	}
	failing := func(n int) iter.Seq2[Event, error] {
		return func(yield func(Event, error) bool) {
			for e, err := range source(n, nil) {
				if !yield(e, err) {
					return
				}
			}
			yield(Event{}, broken)
		}
	}
	for _, n := range []int{0, 1, lotEvents - 1, lotEvents, lotEvents + 1, 5000} {
		for name, c := range map[string]struct {
			events iter.Seq2[Event, error]
			stop   int // after so many
			want   int
			err    string
		}{
			"all":     {source(n, nil), -1, n, ""},
			"stopped": {source(n, nil), n / 2, n / 2, ""},
			"error":   {failing(n), -1, n, "broken"},
			"panic":   {source(n, func() { panic("oh") }), -1, n, "store panicked: oh"},
		} {
			t.Run(fmt.Sprintf("%s of %d", name, n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					got, failure := 0, ""
					for e, err := range readAhead(c.events) {
						if got == c.stop {
							break
						}
						if err != nil {
							failure = err.Error()
							continue
						}
						if e.Seq != int64(got) || len(e.Data()) != got%7*1000 {
							t.Fatalf("event %d is %d with %d bytes", got, e.Seq, len(e.Data()))
						}
						got++
					}
					if got != c.want || !strings.HasSuffix(failure, c.err) || (c.err == "") != (failure == "") {
						t.Errorf("%d events and error %q, want %d and %q", got, failure, c.want, c.err)
					}
				})
			})
		}
	}
}

// The sequence is over when the reading is: a store may be closed behind it, whether it
// was taken to its end or left early.
func TestReadAheadEndsWithItsReader(t *testing.T) {
	for _, stop := range []int64{0, 3, lotEvents * (lots + 3)} {
		synctest.Test(t, func(t *testing.T) {
			ended := false
			for e, err := range readAhead(func(yield func(Event, error) bool) {
				defer func() {
					<-time.After(time.Hour) // of the bubble: the store is slow to end
					ended = true
				}()
				for i := range int64(5 * lotEvents * lots) {
					if !yield(RawEvent(Event{Seq: i}, nil), nil) {
						return
					}
				}
			}) {
				if err != nil {
					t.Fatal(err)
				}
				if e.Seq == stop {
					break
				}
			}
			if !ended {
				t.Errorf("left at %d while the store was still read", stop)
			}
		})
	}
}

// Of events that are large, one is in the reader's hands and one in the taker's, however
// many lots may wait.
func TestReadAheadIsBoundedInBytes(t *testing.T) {
	for _, tc := range []struct{ size, most int }{{4 << 20, 2}, {aheadBytes / 2, 4}, {1000, 5 * lotEvents}} {
		synctest.Test(t, func(t *testing.T) {
			read, taken := 0, 0
			data := make([]byte, tc.size)
			for e, err := range readAhead(func(yield func(Event, error) bool) {
				for i := range int64(3000) {
					read++
					if !yield(RawEvent(Event{Seq: i}, data), nil) {
						return
					}
				}
			}) {
				if err != nil || e.Seq != int64(taken) {
					t.Fatalf("event %d is %d, %v", taken, e.Seq, err)
				}
				if taken++; taken < 20 {
					synctest.Wait() // the reader goes as far as it may
					if n := read - taken + 1; n > tc.most {
						t.Fatalf("%d events of %d bytes are held at once, want at most %d", n, tc.size, tc.most)
					}
				}
			}
			if taken != 3000 {
				t.Errorf("%d events were taken", taken)
			}
		})
	}
}
