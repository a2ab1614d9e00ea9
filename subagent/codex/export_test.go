package codex

import (
	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// Categories are the words for failures that are told.
func Categories() []string { return categories() }

// Known reports whether a request of Codex's is one that is answered.
func Known(method string) bool {
	_, known := questions()[method]
	return known
}

// Launch has a provider's children started by fn.
func Launch(p *Provider, fn func(proc.Config) (remote.Link, error)) { p.product.Launch = fn }

// Active returns how many children hold a process.
func Active(p *Provider) int { return p.product.Active() }

// Said returns the text so far of a run.
func Said(run subagent.Run) string { return remote.Said(run) }
