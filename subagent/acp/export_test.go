package acp

import (
	"context"

	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// Launch has a provider's children started by fn.
func Launch(p *Provider, fn func(proc.Config) (remote.Link, error)) { p.product.Launch = fn }

// Active returns how many children hold a process.
func Active(p *Provider) int { return p.product.Active() }

// Said returns the text so far of a run.
func Said(run subagent.Run) string { return remote.Said(run) }

// SetRoom sets how many bytes an agent may say in a turn.
func SetRoom(p *Provider, n int) { p.room = n }

// Open makes the handshake for a child of a provider.
func Open(ctx context.Context, p *Provider, c *remote.Child, link remote.Link) (remote.Talk, error) {
	return p.open(ctx, c, link)
}
