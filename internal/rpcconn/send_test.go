package rpcconn_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/rpcconn"
)

// An answer is told of where it stands among the notifications, whenever the caller comes
// to take it, and the request is written when Send returns.
func TestSendOrder(t *testing.T) {
	bubble(t, "order", func(t *testing.T) {
		var seen []string
		c, p := connect(t, rpcconn.Config{Notification: func(n rpcconn.Notification) { seen = append(seen, n.Method) }})
		sent := make(chan *rpcconn.Pending, 1)
		go func() {
			pending, err := c.Send(t.Context(), "work", nil, func() { seen = append(seen, "answer") })
			if err != nil {
				t.Error(err)
			}
			if err := c.Notify(t.Context(), "behind", nil); err != nil {
				t.Error(err)
			}
			sent <- pending
		}()
		p.expect(`{"jsonrpc":"2.0","id":0,"method":"work"}`)
		p.expect(`{"jsonrpc":"2.0","method":"behind"}`)
		p.send(`{"method":"before"}`, `{"id":0,"result":7}`, `{"method":"after"}`)
		synctest.Wait()
		if want := []string{"before", "answer", "after"}; !cmp.Equal(seen, want) {
			t.Errorf("seen %v, want %v", seen, want)
		}
		if raw, err := (<-sent).Wait(t.Context()); err != nil || string(raw) != "7" {
			t.Errorf("Wait = %s, %v, want 7", raw, err)
		}
	})
	bubble(t, "given up", func(t *testing.T) {
		called := false
		c, p := connect(t, rpcconn.Config{})
		ctx, cancel := context.WithCancelCause(t.Context())
		out := make(chan error, 1)
		go func() {
			pending, err := c.Send(ctx, "work", nil, func() { called = true })
			if err == nil {
				_, err = pending.Wait(ctx)
			}
			out <- err
		}()
		p.expect(`{"jsonrpc":"2.0","id":0,"method":"work"}`)
		cause := errors.New("no longer wanted")
		cancel(cause)
		if err := <-out; !errors.Is(err, cause) {
			t.Errorf("Wait = %v, want the cause", err)
		}
		p.send(`{"id":0,"result":7}`)
		synctest.Wait()
		if called {
			t.Error("the answer of a call that was given up is told of")
		}
		if err := c.Err(); err != nil {
			t.Errorf("the late answer ended the connection: %v", err)
		}
	})
	// An answer that its caller gives up just as it is told of stays that of this call: a
	// second one is a fault.
	bubble(t, "given up meanwhile", func(t *testing.T) {
		c, p := connect(t, rpcconn.Config{})
		ctx, cancel := context.WithCancelCause(t.Context())
		out := make(chan error, 1)
		go func() {
			pending, err := c.Send(ctx, "work", nil, func() { cancel(errors.New("now")); synctest.Wait() })
			if err == nil {
				_, err = pending.Wait(ctx)
			}
			out <- err
		}()
		p.expect(`{"jsonrpc":"2.0","id":0,"method":"work"}`)
		p.send(`{"id":0,"result":7}`)
		if err := <-out; err == nil {
			t.Error("Wait returned an answer after its ctx had ended")
		}
		p.send(`{"id":0,"result":8}`)
		<-c.Done()
		if fault := new(rpcconn.Fault); !errors.As(c.Err(), &fault) || fault.Kind != rpcconn.FaultUnknownID {
			t.Errorf("the second answer: %v, want a fault for an unknown id", c.Err())
		}
	})
}
