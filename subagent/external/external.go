// Package external is what the providers of children in other processes are configured
// with, and what they say of the products that they start. Each product has a provider of
// its own: subagent/acp, subagent/codex, subagent/claudecode, subagent/dsh. Floor 6.
package external

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

// Permission is what a product's request for leave gets.
type Permission string

// The permissions.
const (
	// Deny refuses every request. It is the default.
	Deny Permission = "deny"
	// Ask puts each request to the approver of the parent's registry, and refuses at once
	// where there is none.
	Ask Permission = "ask"
	// Allow grants every request, once.
	Allow Permission = "allow"
)

// Valid reports whether p is one of them.
func (p Permission) Valid() bool { return p == Deny || p == Ask || p == Allow }

// The bounds of a Config that says nothing else.
const (
	// DefaultStartTimeout bounds a start: products take up to some ten seconds on a busy
	// machine.
	DefaultStartTimeout = time.Minute
	// DefaultApprovalTimeout is how long a question to a person stands.
	DefaultApprovalTimeout = 10 * time.Minute
)

// Config is what every provider of this kind is configured with. The zero value of a field
// is the provider's default.
type Config struct {
	// Name is the name in the registry of providers; "" is the product's.
	Name string
	// Command is the program, looked up in PATH if it has no separator, and else from the
	// folder that this program works in. Args are all its arguments; nil is what the product
	// needs.
	Command string
	Args    []string
	// Env is merged over this program's environment without its secrets (core W34): what is
	// given here reaches the product, whatever it is called.
	Env map[string]string
	// Dir is the folder to work in; "" is the parent's.
	Dir string
	// Permission is what requests for leave get. The policy in force for the parent is a
	// ceiling: where that asks, Allow asks; where it denies or only reads, everything is
	// denied and the product runs in a mode of its own in which it only reads, or the start
	// is refused with subagent.CodeForbidden.
	Permission Permission
	// Policy is the policy in force for a parent, without what the parent's own log says,
	// which is applied in any case; nil is tool.PolicyAllow. It is called at each start, for
	// several at once.
	Policy func(parent *agent.Agent) tool.Policy
	// Trust returns nil if a product may be started in a folder, given as an absolute path,
	// and the reason if not: products run what a folder tells them to. nil trusts every
	// folder. It is called at each start, for several at once.
	Trust func(dir string) error
	// StartTimeout bounds a start, up to the end of the handshake.
	StartTimeout time.Duration
	// ApprovalTimeout bounds one question to a person.
	ApprovalTimeout time.Duration
	// EOFGrace is how long the product gets to end by itself once its input has ended, and
	// Grace how long from the request to end to its killing.
	EOFGrace, Grace time.Duration
	// Logger gets what nobody can be told otherwise, which may hold what the product said;
	// nil discards it.
	Logger *slog.Logger
}

// Check returns c with the defaults that do not depend on the product, Dir absolute, and
// copies of what the caller may change. An error names the field that makes no sense.
func (c Config) Check() (Config, error) {
	c.Args, c.Env = slices.Clone(c.Args), maps.Clone(c.Env)
	if c.Permission == "" {
		c.Permission = Deny
	}
	if !c.Permission.Valid() {
		return c, fmt.Errorf("permission %q is none of %s, %s and %s", c.Permission, Deny, Ask, Allow)
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
	}{
		{"StartTimeout", &c.StartTimeout, DefaultStartTimeout},
		{"ApprovalTimeout", &c.ApprovalTimeout, DefaultApprovalTimeout},
		{"EOFGrace", &c.EOFGrace, 0},
		{"Grace", &c.Grace, 0},
	} {
		switch {
		case *d.value < 0:
			return c, fmt.Errorf("%s is negative: %s", d.name, *d.value)
		case *d.value == 0:
			*d.value = d.standard
		}
	}
	if c.Dir != "" {
		abs, err := filepath.Abs(c.Dir)
		if err != nil {
			return c, fmt.Errorf("the folder to work in: %w", err)
		}
		c.Dir = abs
		if err := Enterable(abs); err != nil {
			return c, err
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Enterable reports why this process cannot work in a folder, which is an absolute path.
func Enterable(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("the folder to work in: %w", err)
	case !info.IsDir():
		return fmt.Errorf("the folder to work in is no folder: %s", dir)
	}
	if err := mayEnter(dir); err != nil {
		return fmt.Errorf("the folder to work in cannot be entered: %w", &os.PathError{Op: "enter", Path: dir, Err: err})
	}
	return nil
}

// Report is what a product was found to be.
type Report struct {
	// Path is the program.
	Path string
	// About is the product's own name and version; "" if it did not say.
	About string
	// Ready is how long it took from the start to the end of the handshake.
	Ready time.Duration
}

// Features are the words for the capabilities of a provider.
func Features(c subagent.Capabilities) []string {
	var words []string
	for _, w := range []struct {
		has  bool
		word string
	}{{c.OutputSchema, "output schema"}, {c.DepthLimit, "depth limit"}, {c.ToolFilter, "tool filter"}, {c.Persona, "persona"}} {
		if w.has {
			words = append(words, w.word)
		}
	}
	return words
}

// ErrNotFound says that a product's program is not installed.
var ErrNotFound = errors.New("the program is not installed")
