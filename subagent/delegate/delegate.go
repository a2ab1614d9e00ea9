// Package delegate holds the tools through which a model uses the seam. Each
// instance binds one provider to one tool name; the model sees no selector.
// Floor 6.
package delegate

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/job"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

//go:embed *.md
var texts embed.FS

// DefaultToolName is the delegation tool's name, and DefaultMaxDepth the cap that
// it sends with every start (seam TOOL-02, TOOL-24).
const (
	DefaultToolName       = "subagent"
	DefaultMaxDepth int64 = 3
)

// Config is one delegation tool (seam TOOL-40). Its policy is fixed: another
// policy is another tool with another name (seam TOOL-42).
type Config struct {
	// Provider is the name of the provider. It may be registered later: the tool
	// exists only while it is (seam TOOL-05).
	Provider string
	// ToolName is DefaultToolName if empty.
	ToolName string
	// Description, if set, says in the first line of the tool's text what this
	// subagent is for.
	Description string
	Model       subagent.Model
	Persona     *subagent.Persona
	ToolFilter  *session.ToolFilter
	// OutputSchema, if set, is the form of this subagent's answer: the tool's text
	// tells it, and its result is the JSON value instead of what the child says. It is
	// within the subset that package structured enforces.
	OutputSchema []byte
	// MaxDepth is the absolute cap; nil is DefaultMaxDepth. 0 leaves the tool
	// visible and refuses every start.
	MaxDepth *int64
	// ProviderManaged sends no cap: the provider bounds depth by itself.
	ProviderManaged bool
	// Background lets the model ask for a job of its own instead of waiting. Jobs
	// holds those; without it such a call is an error that says so (seam BG-03).
	Background bool
	Jobs       *job.Registry
}

// Mount adds the tool to scope for as long as its provider is registered, and
// follows the provider when it leaves and returns (seam TOOL-05…09). unmount takes
// it away for good. A configuration that the registered provider cannot serve
// fails here; if the provider comes later, the tool alone stays away and fault,
// unless nil, is told why, so that a tool's mistake never unregisters a provider
// (seam TOOL-38). cfg is copied.
func Mount(svc *subagent.Service, scope *tool.Scope, cfg Config, fault func(error)) (unmount func(), err error) {
	cfg = cfg.clone()
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("delegation tool %q: %w", cfg.ToolName, err)
	}
	m := &mount{svc: svc, scope: scope, cfg: cfg}
	// The hooks come first, so that no change between them and the look falls through.
	remove := svc.AddHooks(subagent.Hooks{
		ProviderAdded: func(p subagent.Provider) error {
			if p.Name() != cfg.Provider {
				return nil
			}
			if err := m.follow(); err != nil && fault != nil {
				fault(fmt.Errorf("delegation tool %q: %w", cfg.ToolName, err))
			}
			return nil
		},
		ProviderRemoved: func(name string) {
			if name == cfg.Provider {
				// A provider of that name may be there again by now; what is wrong with
				// it is told when it is added.
				_ = m.follow()
			}
		},
	}, nil)
	if err := m.follow(); err != nil {
		remove()
		m.close()
		return nil, fmt.Errorf("delegation tool %q: %w", cfg.ToolName, err)
	}
	return sync.OnceFunc(func() {
		remove()
		m.close()
	}), nil
}

// clone fills in the defaults and lets go of what the caller could change.
func (c Config) clone() Config {
	if c.ToolName == "" {
		c.ToolName = DefaultToolName
	}
	if c.Persona != nil {
		persona := *c.Persona
		c.Persona = &persona
	}
	if f := c.ToolFilter; f != nil {
		c.ToolFilter = &session.ToolFilter{Allow: slices.Clone(f.Allow), Deny: slices.Clone(f.Deny)}
	}
	c.OutputSchema = bytes.Clone(c.OutputSchema)
	if !c.ProviderManaged || c.MaxDepth != nil {
		depth := DefaultMaxDepth
		if c.MaxDepth != nil {
			depth = *c.MaxDepth
		}
		c.MaxDepth = &depth
	}
	return c
}

func (c *Config) check() error {
	if c.Provider == "" {
		return errors.New("no provider is named")
	}
	if c.MaxDepth != nil {
		if c.ProviderManaged {
			return errors.New("maxDepth is both a number and provider-managed")
		}
		if *c.MaxDepth < 0 || *c.MaxDepth > jsonx.MaxSafe {
			return &subagent.DepthTypeError{What: "maxDepth", Value: *c.MaxDepth}
		}
	}
	if f := c.ToolFilter; f != nil && f.Allow == nil && f.Deny == nil {
		return errors.New("the tool filter has neither allow nor deny")
	}
	if c.OutputSchema != nil {
		if _, err := structured.Parse(c.OutputSchema); err != nil {
			return err
		}
	}
	return nil
}

// mount is one tool on its way in and out of a scope.
type mount struct {
	svc   *subagent.Service
	scope *tool.Scope
	cfg   Config

	mu         sync.Mutex // guards following
	unregister func()
	mounted    string // the text of the tool that is in the scope
	changes    int    // how often following began
	closed     bool
}

// follow makes the tool what the provider's registration asks for now. Every
// change of a registration is followed after it was made; whoever finds that
// another one began meanwhile looks again, so the last one decides.
func (m *mount) follow() error {
	m.mu.Lock()
	m.changes++
	m.mu.Unlock()
	for {
		m.mu.Lock()
		seen := m.changes
		m.mu.Unlock()
		var c *tool.Compiled
		var err error
		if p, ok := m.svc.Provider(m.cfg.Provider); ok {
			c, err = m.compile(p)
		}
		m.mu.Lock()
		if m.changes != seen {
			m.mu.Unlock()
			continue
		}
		if rerr := m.replaceLocked(c); rerr != nil {
			err = rerr
		}
		m.mu.Unlock()
		return err
	}
}

// replaceLocked takes the tool out of the scope and puts c in; nil leaves it out. A
// tool that is the same stays, so that nobody's tools change for nothing.
func (m *mount) replaceLocked(c *tool.Compiled) (err error) {
	if m.closed {
		c = nil
	}
	// The text is all that a tool has of its provider.
	if m.unregister != nil && c != nil && c.Definition().Description == m.mounted {
		return nil
	}
	if m.unregister != nil {
		m.unregister()
		m.unregister = nil
	}
	if c == nil {
		return nil
	}
	m.mounted = c.Definition().Description
	m.unregister, err = m.scope.RegisterCompiled(c)
	return err
}

func (m *mount) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	_ = m.replaceLocked(nil) // taking out cannot fail
}

// compile returns the tool for a provider, or why that provider cannot serve it; that
// it panics when it is asked is such a reason.
func (m *mount) compile(p subagent.Provider) (c *tool.Compiled, err error) {
	defer func() {
		if v := recover(); v != nil {
			c, err = nil, fmt.Errorf("provider %q panicked: %v", m.cfg.Provider, v)
		}
	}()
	caps := p.Capabilities()
	switch {
	case !m.cfg.ProviderManaged && !caps.DepthLimit:
		return nil, fmt.Errorf("provider %q cannot bound depth: set maxDepth to \"provider-managed\"", m.cfg.Provider)
	case m.cfg.ToolFilter != nil && !caps.ToolFilter:
		return nil, fmt.Errorf("provider %q does not support toolFilter", m.cfg.Provider)
	case m.cfg.Persona != nil && !caps.Persona:
		return nil, fmt.Errorf("provider %q does not support persona", m.cfg.Provider)
	case m.cfg.OutputSchema != nil && !caps.OutputSchema:
		return nil, fmt.Errorf("provider %q does not support outputSchema", m.cfg.Provider)
	}
	def, err := m.definition(p)
	if err != nil {
		return nil, err
	}
	return tool.Compile(def)
}

const (
	descriptionParam = `"description":{"type":"string","description":"Three to six words that name the work, for people who watch."}`
	promptParam      = `"prompt":{"type":"string","description":"The task, complete in itself."}`
	backgroundParam  = `"run_in_background":{"type":"boolean","description":"true returns a job id at once instead of the answer."}`
)

// parameters is the tool's schema (seam TOOL-03, TOOL-34).
func (c *Config) parameters() []byte {
	props := descriptionParam + "," + promptParam
	if c.Background {
		props += "," + backgroundParam
	}
	return []byte(`{"type":"object","properties":{` + props + `},"required":["description","prompt"],"additionalProperties":false}`)
}

// definition words the tool for a provider (seam TOOL-04).
func (m *mount) definition(p subagent.Provider) (tool.Definition, error) {
	names := []string{"delegate.md", "fresh.md", "parallel.md"}
	if p.InheritsParentContext() {
		names[1] = "inherits.md"
	}
	if m.cfg.OutputSchema != nil {
		names = append(names, "schema.md")
	}
	if m.cfg.Background {
		names = append(names, "background.md")
	}
	var parts []string
	if m.cfg.Description != "" {
		parts = append(parts, m.cfg.Description)
	}
	for _, name := range names {
		data, err := texts.ReadFile(name)
		if err != nil {
			return tool.Definition{}, err
		}
		parts = append(parts, strings.TrimSpace(string(data)))
	}
	if m.cfg.OutputSchema != nil {
		parts = append(parts, string(jsonx.AppendRaw(nil, m.cfg.OutputSchema)))
	}
	return tool.Definition{
		Name:        m.cfg.ToolName,
		Description: strings.Join(parts, "\n"),
		Parameters:  m.cfg.parameters(),
		Execute:     m.execute,
		// Delegations of one step overlap (seam TOOL-11), and delegating by itself
		// changes nothing: what the child does is judged call by call.
		ConcurrencySafe: func([]byte) bool { return true },
		ReadOnly:        true,
		Describe:        describe,
	}, nil
}
