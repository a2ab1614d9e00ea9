package subagent

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/offshoot-dev/offshoot/agent"
)

// SetupFunc installs what belongs to a continuable child alone: tools, prompt sections,
// hooks of its own. It runs before anybody can see the child, behind what the child is
// composed of. release takes the installation back; it is called exactly once, with the
// child's end, with the removal of the contribution, or with a start that fails. nil
// releases nothing.
type SetupFunc func(ctx context.Context, child *agent.Agent) (release func() error, err error)

// AddSetup registers a contribution to every continuable child that is made resident from
// now on, new or resumed: in the order of registration, all of them or, where one fails,
// none and no child (seam SETUP). One-shot children and roots are none of its business.
//
// remove takes it back, at once from the children that are resident too; a child that is
// in the making does not come to be then (CodeActivationSetupRevoked). It releases every
// installation before it returns what failed: CodeActivationReleaseFailed. It is
// idempotent.
func (s *Service) AddSetup(fn SetupFunc) (remove func() error) {
	r := &contribution{set: &s.setups, fn: fn}
	s.setups.mu.Lock()
	s.setups.list = append(slices.Clip(s.setups.list), r)
	s.setups.mu.Unlock()
	return sync.OnceValue(r.remove)
}

// setups are the contributions of a service.
type setups struct {
	mu   sync.Mutex // guards following, and the fields of contributions, batches and installations
	list []*contribution
}

// contribution is one registration.
type contribution struct {
	set       *setups
	fn        SetupFunc
	removed   bool
	installed []*installation // in order
}

// setupBatch is what was installed for one child.
type setupBatch struct {
	set       *setups
	installed []*installation
	revoked   bool // something of it was taken back before the child was published
	committed bool
	err       error
	once      sync.Once
}

// installation is one contribution to one child.
type installation struct {
	of    *contribution
	batch *setupBatch
	fn    func() error
	taken bool // somebody releases it
}

// apply installs every contribution, in order; a failure takes back those before it and
// is the error. Removals meanwhile are seen by commit. Without contributions there is no
// batch.
func (s *setups) apply(ctx context.Context, child *agent.Agent, fault func(string, error, ...any)) (*setupBatch, error) {
	s.mu.Lock()
	list := s.list
	s.mu.Unlock()
	if len(list) == 0 {
		return nil, nil
	}
	b := &setupBatch{set: s}
	for _, c := range list {
		s.mu.Lock()
		removed := c.removed
		s.mu.Unlock()
		if removed {
			continue // gone before its turn: this child never had it
		}
		var release func() error
		err := contain(func() (err error) {
			release, err = c.fn(ctx, child)
			return err
		})
		if err != nil {
			if _, rerr := b.release(); rerr != nil {
				fault("taking back the setup of a subagent failed", rerr, "agent", string(child.ID()))
			}
			return nil, err
		}
		in := &installation{of: c, batch: b, fn: release}
		s.mu.Lock()
		b.installed = append(b.installed, in)
		c.installed = append(c.installed, in)
		if c.removed {
			// It was removed while it was installing.
			b.revoked = true
		}
		revoked := b.revoked
		s.mu.Unlock()
		if revoked {
			return b, nil // commit refuses, and what is installed goes with the child
		}
	}
	return b, nil
}

// commit is the last look before the child is published (seam SETUP-10, SETUP-16).
func (b *setupBatch) commit() error {
	if b == nil {
		return nil
	}
	b.set.mu.Lock()
	defer b.set.mu.Unlock()
	if b.revoked {
		return errorf(CodeActivationSetupRevoked, "a part of the subagent's setup was withdrawn while the subagent was being made")
	}
	b.committed = true
	return nil
}

// release takes back what was installed for one child, last first. Every caller gets what
// failed; the first one did it.
func (b *setupBatch) release() (first bool, err error) {
	if b == nil {
		return false, nil
	}
	b.once.Do(func() {
		first = true
		b.set.mu.Lock()
		list := b.installed
		for _, in := range list {
			in.of.installed = slices.DeleteFunc(in.of.installed, func(o *installation) bool { return o == in })
		}
		b.set.mu.Unlock()
		b.err = releaseAll(b.set, slices.Backward(list))
	})
	return first, b.err
}

func (c *contribution) remove() error {
	s := c.set
	s.mu.Lock()
	// Closed first, so that nothing installs it any more (seam SETUP-08).
	c.removed = true
	s.list = slices.DeleteFunc(slices.Clone(s.list), func(o *contribution) bool { return o == c })
	list := c.installed
	c.installed = nil
	for _, in := range list {
		if !in.batch.committed {
			in.batch.revoked = true
		}
	}
	s.mu.Unlock()
	return releaseAll(s, slices.All(list))
}

// releaseAll releases each of them that nobody has released, whatever fails (seam SETUP-15).
func releaseAll(s *setups, list func(func(int, *installation) bool)) error {
	var errs []error
	for _, in := range list {
		s.mu.Lock()
		taken := in.taken
		in.taken = true
		s.mu.Unlock()
		if taken || in.fn == nil {
			continue
		}
		errs = append(errs, contain(in.fn))
	}
	if err := errors.Join(errs...); err != nil {
		return &Error{Code: CodeActivationReleaseFailed, Msg: "taking back the setup of subagents", Err: err}
	}
	return nil
}
