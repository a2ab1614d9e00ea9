package proc

import (
	"os"
	"time"
)

// SetSupervised says whether processes are started under a supervisor, for tests of both.
func SetSupervised(on bool) { armed.Store(on) }

// SetPatience says how long p waits for its supervisor to obey.
func SetPatience(p *Process, d time.Duration) { p.patience = d }

// Orders returns where the orders of a process's supervisor go.
func Orders(p *Process) *os.File { return p.orders }
