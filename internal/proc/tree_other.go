//go:build !unix

package proc

import (
	"os"
	"os/exec"
)

const (
	supported = false
	seesExit  = false
)

type member struct{ pid int }

func (member) kill() {}

func isolate(*exec.Cmd)                      {}
func awaitExit(int) error                    { return nil }
func exitOf(st *os.ProcessState) Exit        { return Exit{Code: st.ExitCode()} }
func (p *Process) members() ([]member, bool) { return nil, true }
func (p *Process) signalEnd()                {}
func afterReap(int)                          {}
func reapAdopted(int)                        {}
func birthOf(int) uint64                     { return 0 }

type asker struct{}

func (p *Process) signalLate([]member) {}
