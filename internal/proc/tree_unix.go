//go:build unix && !linux

package proc

import (
	"os/exec"
	"syscall"
)

const supported = true

// seesExit: see awaitExit.
const seesExit = false

// isolate gives the child a session of its own, and with it a process group.
func isolate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
}

// awaitExit leaves the waiting to the reaping: there is no portable way to learn
// of an exit without it.
func awaitExit(int) error { return nil }

// member is the process group as a whole.
type member struct{ pid int }

func (m member) kill() { _ = syscall.Kill(-m.pid, syscall.SIGKILL) } // a group that is gone is what we want

// members cannot list a tree here; afterReap ends the group.
func (p *Process) members() ([]member, bool) { return nil, true }

func (p *Process) signalEnd() {
	_ = syscall.Kill(-p.pid, syscall.SIGTERM) // fails only if the group is gone
	_ = syscall.Kill(-p.pid, syscall.SIGCONT)
}

// afterReap kills what is left of the group of a process that has just been reaped.
func afterReap(pid int) { member{pid}.kill() }

func reapAdopted(int) {}

func birthOf(int) uint64 { return 0 }

// asker has nothing to remember: a group is asked as a whole.
type asker struct{}

func (p *Process) signalLate([]member) {}
