package claudecode

import (
	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// Launch has a provider's children started by fn.
func Launch(p *Provider, fn func(proc.Config) (remote.Link, error)) { p.product.Launch = fn }

// Active returns how many children hold a process.
func Active(p *Provider) int { return p.product.Active() }

// SetRoom sets how many bytes a message of the product may have.
func SetRoom(p *Provider, n int) { p.room = n }

// Said returns the text so far of a run.
func Said(run subagent.Run) string { return remote.Said(run) }

// Sweep removes the socket of a process that has ended.
func Sweep(p *Provider, pid int) error { return p.sweep(pid) }
