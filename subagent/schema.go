package subagent

import (
	"sync"

	"github.com/offshoot-dev/offshoot/structured"
)

// maxSchemas bounds what a schemas keeps.
const maxSchemas = 32

// schemas keeps what was parsed lately: a delegation tool gives the same schema with
// every start, and parsing costs more than all the rest of a start. The zero value
// is ready; it is safe for concurrent use.
type schemas struct {
	mu   sync.Mutex // guards seen
	seen map[string]*structured.Schema
}

// parse is structured.Parse.
func (c *schemas) parse(raw []byte) (*structured.Schema, error) {
	c.mu.Lock()
	s, ok := c.seen[string(raw)]
	c.mu.Unlock()
	if ok {
		return s, nil
	}
	s, err := structured.Parse(raw)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.seen) >= maxSchemas {
		clear(c.seen)
	}
	if c.seen == nil {
		c.seen = map[string]*structured.Schema{}
	}
	c.seen[string(raw)] = s
	return s, nil
}
