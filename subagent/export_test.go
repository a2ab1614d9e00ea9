package subagent

import (
	"context"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
)

// Reserve begins to make a child, as far as nothing outside can observe it; step takes the
// next step, and forgets the child if that is refused.
func Reserve(s *Service, id session.ID, parent *agent.Agent) (step func(context.Context) error, err error) {
	act, err := s.m.reserve(id, parent)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, done, err := s.m.making(ctx, act, s.m.path(parent))
		if err != nil {
			s.m.forget(act)
			return err
		}
		done()
		return nil
	}, nil
}
