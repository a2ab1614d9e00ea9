package stack

import (
	"runtime/debug"
	"testing"
	"unsafe"
)

// Behind Grow, calls that need less than the room do not move the stack of a new
// goroutine.
func TestGrow(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection moves stacks, too
	stays := make(chan bool)
	go func() {
		Grow()
		var here byte
		before := address(&here)
		deep()
		stays <- before == address(&here)
	}()
	if !<-stays {
		t.Error("the stack was moved")
	}
}

//go:noinline
func address(p *byte) uintptr { return uintptr(unsafe.Pointer(p)) }

//go:noinline
func deep() {
	var frame [room - 1<<10]byte
	part((*[room / 2]byte)(frame[:]))
}

//go:noinline
func part(frame *[room / 2]byte) { frame[0] = 1 }
