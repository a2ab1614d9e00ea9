package dsh

import (
	"fmt"

	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// Launch has a provider's children started by fn.
func Launch(p *Provider, fn func(proc.Config) (remote.Link, error)) { p.product.Launch = fn }

// Active returns how many children hold a process.
func Active(p *Provider) int { return p.product.Active() }

// SetRoom sets how many bytes are kept of what a runtime says.
func SetRoom(p *Provider, n int) { p.room = n }

// Said returns the text so far of a run.
func Said(run subagent.Run) string { return remote.Said(run) }

// Stream returns what is kept of a message that comes in pieces, and whether there was room for all of them.
func Stream(room int, pieces ...string) (kept string, fit bool) {
	var a account
	for _, piece := range pieces {
		if !a.add(event{"assistant/chunk", fmt.Appendf(nil, `{"chunk":{"type":"text-delta","text":%q}}`, piece)}, room) {
			return a.text(), false
		}
	}
	return a.text(), true
}
