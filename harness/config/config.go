package config

import (
	"strconv"
	"time"
)

// Config is the merged, validated configuration. It is plain data: a reader must not change its maps, slices or pointed-to
// values while another goroutine reads them. A nil pointer means that nothing was said.
type Config struct {
	Version     int
	Model       *ModelRef // see ChooseModel
	Routes      map[string]Route
	Tools       Tools
	Permissions Permissions
	Agents      map[string]Agent    // "default" is always there: the root agent
	Claude      bool                // whether the agent files of Claude Code are read too
	Providers   map[string]Provider // the delegation tools
	Subagents   Subagents
	MCP         map[string]MCPServer
	Compaction  Compaction
	Limits      Limits
	Store       Store
	Recovery    Recovery
}

// ModelRef names a model by its route. An empty Model means the route's default model.
type ModelRef struct {
	Route string
	Model string
}

// ParseModelRef parses "ROUTE:MODEL" or "ROUTE"; the route ends at the first colon, so a model may hold colons. Whether the
// route exists is not checked. The error is an *Error of KindUsage.
func ParseModelRef(s string) (ModelRef, error) {
	v, problem := parseModel(s)
	if problem != "" {
		return ModelRef{}, &Error{Kind: KindUsage, Key: "model", Msg: problem}
	}
	return v.(ModelRef), nil
}

// String is "ROUTE:MODEL", or "ROUTE" for the route's default model.
func (r ModelRef) String() string {
	if r.Model == "" {
		return r.Route
	}
	return r.Route + ":" + r.Model
}

// Filter restricts tools by name. A nil list was not given; an empty Allow hides everything (seam COMP-13). Allow is applied
// before Deny.
type Filter struct {
	Allow []string
	Deny  []string
}

// Tools are the deployment's own tools. Filter restricts every agent.
type Tools struct {
	Shell  ShellTool
	Files  FilesTool
	Filter Filter
}

// ShellTool configures the bash tool.
type ShellTool struct {
	Enabled        bool
	Timeout        time.Duration // the longest that one command may run
	MaxOutputBytes int           // what is kept of a command's output; the rest is lost
}

// FilesTool configures read, list, write, edit and search.
type FilesTool struct{ Enabled bool }

// Permission is what happens when a tool needs leave.
type Permission string

// The permissions. The empty Permission means that nothing was said: ask on a terminal, read-only elsewhere.
const (
	PermissionAsk      Permission = "ask"
	PermissionAllow    Permission = "allow"
	PermissionDeny     Permission = "deny"
	PermissionReadOnly Permission = "read-only"
)

// ParsePermission parses one of the permissions. The error is an *Error of KindUsage.
func ParsePermission(s string) (Permission, error) {
	if _, problem := oneOf(permissionNames()...)(s); problem != "" {
		return "", &Error{Kind: KindUsage, Key: "permissions.mode", Msg: problem}
	}
	return Permission(s), nil
}

func permissionNames() []string {
	return []string{string(PermissionAsk), string(PermissionAllow), string(PermissionDeny), string(PermissionReadOnly)}
}

// Permissions is the policy of a run.
type Permissions struct{ Mode Permission }

// Compaction says whether conversations that come near their model's window are summed
// up by themselves. Where it is off, a request that is too long fails.
type Compaction struct{ Auto bool }

// DefaultAgent is the name of the root agent's definition.
const DefaultAgent = "default"

// Agent is an agent definition. An absent Persona inherits the deployment's; an empty one shadows it with nothing (seam
// COMP-09). Every agent but the default one becomes a delegation tool: see ToolName.
type Agent struct {
	Name        string
	Description *string
	Provider    string // who starts it: a kind of this program, or the name of a product; empty for the default agent
	Persona     *string
	Template    *bool // whether Persona is a template; nil: it is, but for a folder that is not trusted
	Tools       *Filter
	Model       *ModelRef
	MaxTokens   *int  // per model call, at least 1
	Background  *bool // whether its tool may run it in the background; nil is true. Not for the root
	// BackgroundMode is what its tool starts; empty for the default agent.
	BackgroundMode BackgroundMode
	// OutputSchema is the form of this agent's answers, as compact JSON; nil is text.
	OutputSchema []byte
	MaxDepth     Depth // nothing for the default agent
}

// agentToolPrefix stands before the name of an agent in the name of its tool.
const agentToolPrefix = "subagent_"

// ToolName is the name of the tool that starts the agent.
func (a Agent) ToolName() string { return agentToolPrefix + a.Name }

// Provider binds one provider of children to one delegation tool (seam TOOL-01, TOOL-40).
type Provider struct {
	Name        string
	Provider    string // the kind: spawn, fork, codex, …
	ToolName    string
	Description *string
	Persona     *string
	ToolFilter  *Filter
	Model       *ModelRef
	MaxTokens   *int // per model call, at least 1
	MaxDepth    Depth
	Background  bool // whether its tool may run children in the background
	// BackgroundMode is what its tool starts.
	BackgroundMode BackgroundMode
	// OutputSchema is the form of the children's answers, as compact JSON; nil is text.
	OutputSchema []byte
	// Product is how its product is started, if its children are one. Its model is then the product's own word for one:
	// Model.String().
	Product Product
}

// BackgroundMode is the kind of child that a delegation tool starts (seam TOOL-40).
type BackgroundMode string

// The background modes.
const (
	// ModeOneShot: a child takes one task and is over with it; in the background it is a job of its parent.
	ModeOneShot BackgroundMode = "one-shot"
	// ModeContinuable: a child outlives its task and the process, and takes more by messages. It runs in the background
	// unless a call asks to wait.
	ModeContinuable BackgroundMode = "continuable"
)

// Subagents is what continuable children and their parents tell one another.
type Subagents struct {
	ReportDelivery ReportDelivery
	Notices        bool // whether a parent is told what a child came to when it settles (seam REP-10)
	Interrupt      bool // whether a model may stop the turn of an agent below it (seam CAN-16)
}

// ReportDelivery is how the report of a continuable child reaches its parent (seam RT-09).
type ReportDelivery string

// The deliveries.
const (
	ReportQuiet    ReportDelivery = "quiet"     // it is read with the next step that something else makes
	ReportWakeup   ReportDelivery = "wakeup"    // it is a turn of its own, behind the open one
	ReportNextStep ReportDelivery = "next-step" // it joins the next step of the open turn, or opens a turn
)

// Delegation returns a provider with what it does not say itself. A fork goes on from the conversation that it was
// delegated in: unless it names a persona or a tool filter, it has those of the root agent, so that its requests begin as
// the root's do and one entry in a model's prompt cache serves both. personaKey says where the persona stands.
func (c *Config) Delegation(name string) (p Provider, personaKey string) {
	p, personaKey = c.Providers[name], "providers."+name+".persona"
	c.asRoot(p.Provider, &p.Persona, &p.ToolFilter, &personaKey)
	return p, personaKey
}

// Subagent returns an agent definition as Delegation returns a provider.
func (c *Config) Subagent(name string) (a Agent, personaKey string) {
	a, personaKey = c.Agents[name], "agents."+name+".persona"
	c.asRoot(a.Provider, &a.Persona, &a.Tools, &personaKey)
	return a, personaKey
}

// asRoot gives a fork what it does not say itself.
func (c *Config) asRoot(kind string, persona **string, filter **Filter, personaKey *string) {
	if kind != forkKind {
		return
	}
	root := c.Agents[DefaultAgent]
	if *persona == nil {
		*persona, *personaKey = root.Persona, "agents."+DefaultAgent+".persona"
	}
	if *filter == nil {
		*filter = root.Tools
	}
}

// ProviderManaged is the written form of a Depth that leaves the cap to the provider (seam TOOL-25).
const ProviderManaged = "provider-managed"

// Depth is a cap on a child's depth: Max, inclusive, or none of ours when Managed.
type Depth struct {
	Managed bool
	Max     int
}

// String is the written form.
func (d Depth) String() string {
	if d.Managed {
		return ProviderManaged
	}
	return strconv.Itoa(d.Max)
}

// Limits bound what a model can create. All are positive but MaxDepth, which may be 0: no delegation.
type Limits struct {
	MaxDepth           int // of any child, whatever its provider allows
	MaxChildren        int // of one agent, live at once
	MaxLive            int // agents of one process, live at once
	MaxJobs            int // background jobs of one agent that are not over
	MaxParallelTools   int // tool calls of one step that run at once
	MaxToolResultBytes int // of one tool result, as the model reads it
	MaxSpillBytes      int // of the text that the log keeps of a result that was longer
	MaxTurnSteps       int // model calls of one turn
}

// The drivers of a store.
const (
	DriverSQLite = "sqlite"
	DriverMemory = "memory"
)

// Store is where sessions are kept.
type Store struct {
	Driver      string
	Path        string // absolute; empty for memory
	Synchronous string // full or normal; empty for memory
}

// Recovery is what a start does with trees that an earlier process left.
type Recovery struct{ OnStart string }
