package proc

import (
	"sync/atomic"
)

// armed says that the main function of this program runs a supervisor when it is
// executed as one. That is a property of the program, known once it has shown it.
var armed atomic.Bool

// supervisorArg is the first argument of a supervisor.
const supervisorArg = "offshoot-supervise-process"

// The orders to a supervisor, one byte each. The end of its input is orderKill.
const (
	orderEnd  = 'T'
	orderKill = 'K'
)

// Supervised reports whether processes are started under a supervisor.
func Supervised() bool { return armed.Load() }
