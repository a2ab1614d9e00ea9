//go:build !linux

package proc

import "errors"

// Supervise does nothing: there are no supervisors on this system.
func Supervise() {}

func (p *Process) order(byte) {}

func (p *Process) runSupervised(pl *plumbing, started chan<- error) {
	pl.close(pl.child...)
	pl.close(pl.ours...)
	started <- errors.ErrUnsupported
}
