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
	"github.com/offshoot-dev/offshoot/prompt"
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
	// Continuable starts continuable children (seam TOOL-29…32, amendment P41): the
	// provider must be a subagent.ContinuablePreparer, none of its capabilities is asked
	// for, and Jobs is not used. With Background a call returns the child's id at once,
	// unless it says that it waits; without, every call waits. It excludes OutputSchema.
	Continuable bool
	// Prompts, if set, gets the section "tool:<ToolName>" of a continuable tool with
	// Background: when to wait and when not (seam TOOL-33). It says nothing to agents that
	// do not see the tool, and it stays until the unmount, so that the name is taken.
	Prompts *prompt.Scope
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
	if err := m.guide(); err != nil {
		return nil, fmt.Errorf("delegation tool %q: %w", cfg.ToolName, err)
	}
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
		if c.Continuable {
			return errors.New("a continuable subagent has no outputSchema: it answers every message that it is sent, not one question")
		}
		if _, err := structured.Parse(c.OutputSchema); err != nil {
			return err
		}
	}
	return nil
}

// mount is one tool on its way in and out of a scope.
type mount struct {
	svc    *subagent.Service
	scope  *tool.Scope
	cfg    Config
	silent func() // takes the prompt section away; nil without one

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
	if m.silent != nil {
		m.silent()
	}
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
	if m.cfg.Continuable {
		// The service composes the child: the capabilities do not bound it (seam CAP-06).
		if _, ok := p.(subagent.ContinuablePreparer); !ok {
			return nil, fmt.Errorf("provider %q has no continuable subagents: set continuable to false, or choose another provider", m.cfg.Provider)
		}
		caps = subagent.Capabilities{DepthLimit: true, ToolFilter: true, Persona: true}
	}
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
	waitParam        = `"run_in_background":{"type":"boolean","description":"false waits for the answer. true, the default, returns the subagent's id at once."}`
)

// parameters is the tool's schema (seam TOOL-03, TOOL-34).
func (c *Config) parameters() []byte {
	props := descriptionParam + "," + promptParam
	switch {
	case c.Background && c.Continuable:
		props += "," + waitParam
	case c.Background:
		props += "," + backgroundParam
	}
	return []byte(`{"type":"object","properties":{` + props + `},"required":["description","prompt"],"additionalProperties":false}`)
}

// definition words the tool for a provider (seam TOOL-04).
func (m *mount) definition(p subagent.Provider) (tool.Definition, error) {
	names := []string{"delegate.md", "fresh.md", "parallel.md"}
	if m.cfg.Continuable {
		names = m.continuableTexts()
	}
	if p.InheritsParentContext() {
		names[1] = "inherits.md"
	}
	if m.cfg.OutputSchema != nil {
		names = append(names, "schema.md")
	}
	if m.cfg.Background && !m.cfg.Continuable {
		names = append(names, "background.md")
	}
	var parts []string
	if m.cfg.Description != "" {
		parts = append(parts, m.cfg.Description)
	}
	for _, name := range names {
		text, err := read(name)
		if err != nil {
			return tool.Definition{}, err
		}
		parts = append(parts, text)
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
		Describe:        m.cfg.describe,
	}, nil
}

// read returns one of the texts that models read.
func read(name string) (string, error) {
	data, err := texts.ReadFile(name)
	return strings.TrimSpace(string(data)), err
}
