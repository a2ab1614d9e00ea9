package dsh

import (
	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// Launch has a provider's children started by fn.
func Launch(p *Provider, fn func(proc.Config) (remote.Link, error)) { p.product.Launch = fn }

// SetRoom sets how many bytes are kept of what the runtime says.
func SetRoom(p *Provider, n int) { p.room = n }

// Active returns how many children hold a process.
func Active(p *Provider) int { return p.product.Active() }

// Said returns the text so far of a run.
func Said(run subagent.Run) string { return remote.Said(run) }
