package scripted

import (
	"context"
	"sync"
)

// Gate holds model calls until it is opened, once and for all. Its zero value is a
// closed gate. It is safe for concurrent use and must not be copied.
//
// The channels behind it are made by the first caller, so a Gate may be declared
// outside of a testing/synctest bubble and used within one.
type Gate struct {
	mu       sync.Mutex // all fields
	opened   bool
	open     chan struct{}
	arrivals int
	waiting  int
	change   broadcast
}

func (g *Gate) channelLocked() chan struct{} {
	if g.open == nil {
		g.open = make(chan struct{})
		if g.opened {
			close(g.open)
		}
	}
	return g.open
}

// Open lets everybody pass who waits or comes later. Further calls do nothing.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened {
		return
	}
	g.opened = true
	if g.open != nil {
		close(g.open)
	}
}

// Wait returns nil once the gate is open, or context.Cause(ctx) when ctx ends
// first.
func (g *Gate) Wait(ctx context.Context) error {
	g.mu.Lock()
	open := g.channelLocked()
	g.arrivals++
	g.waiting++
	g.change.send()
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.waiting--
		g.mu.Unlock()
	}()
	select {
	case <-open:
		return nil
	default:
	}
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Waiting returns how many are held at the gate now.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting
}

// WaitArrivals returns nil once n calls have come to the gate since it was made,
// whether or not they have passed, or context.Cause(ctx) when ctx ends first.
func (g *Gate) WaitArrivals(ctx context.Context, n int) error {
	return g.change.await(ctx, &g.mu, func() bool { return g.arrivals >= n })
}

// broadcast wakes everybody who awaits a condition; the mutex that guards the
// condition guards it too.
type broadcast struct{ ch chan struct{} }

func (b *broadcast) send() {
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// await blocks until holds, which is called with mu held, is true.
func (b *broadcast) await(ctx context.Context, mu *sync.Mutex, holds func() bool) error {
	for {
		mu.Lock()
		if holds() {
			mu.Unlock()
			return nil
		}
		if b.ch == nil {
			b.ch = make(chan struct{})
		}
		ch := b.ch
		mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
