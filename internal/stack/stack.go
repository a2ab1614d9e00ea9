// Package stack gives goroutines that are known to call deep the stack for it at once.
// Floor 0.
package stack

// room is what a turn of an agent, and the start of one, need.
const room = 5 << 10

// Grow makes sure that the caller's goroutine has a stack for deep calls. A new one
// begins with 2 KiB, which the runtime doubles where they are used up: each time it
// goes through all the frames that stand on it and moves them. Called before there are
// any, this costs a tenth of that; with the room there already, next to nothing.
//
// It may be called by any goroutine at any time.
func Grow() { grow(false) }

// grow has a frame of that size, for which there must be room before it runs.
//
//go:noinline
func grow(use bool) {
	if use {
		var frame [room]byte
		touch(&frame)
	}
}

//go:noinline
func touch(frame *[room]byte) { frame[0] = 1 }
