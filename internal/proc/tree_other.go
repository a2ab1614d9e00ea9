//go:build !unix

package proc

import (
	"os"
	"os/exec"
)

const supported = false

type member struct{ pid int }

func (member) kill() {}

func isolate(*exec.Cmd)                      {}
func awaitExit(int) error                    { return nil }
func exitOf(st *os.ProcessState) Exit        { return Exit{Code: st.ExitCode()} }
func (p *Process) members() ([]member, bool) { return nil, true }
func (p *Process) requestEnd()               {}
func afterReap(int)                          {}
func reapAdopted(int)                        {}
