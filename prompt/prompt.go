// Package prompt builds what an agent says about itself before a model reads the
// conversation: the sections of the system prompt and the runtime contexts beside it.
//
// Sections, contexts, variables and transforms are registered in layered scopes. A nearer
// layer shadows a farther one by name, so that a child agent can carry its own persona
// without its parent or its siblings seeing it. Text is a template with strict {{variable}}
// interpolation, done at assembly and never at registration: the values are those of the
// agent for which the prompt is assembled.
//
// The package does not decide when a prompt is assembled, does not store it, and knows
// neither models nor tools. Floor 2.
package prompt

import "strings"

// Names and orders that other parts agree on (core P2, P9; seam COMP-22, SO-04, TOOL-33).
const (
	// SectionIdentity says who the agent is.
	SectionIdentity = "harness:identity"
	// SectionPersona is the deployment's slot. The composition root always registers it, even
	// empty, and a child's persona shadows it (core P3, seam COMP-08).
	SectionPersona = "deployment:persona"
	// SectionToolPrefix begins the name of the guidance of one tool: "tool:<name>".
	SectionToolPrefix = "tool:"
	// SectionStructuredOutput tells a child to finish through its capture tool.
	SectionStructuredOutput = SectionToolPrefix + "structured_output"

	// ContextDelegation states the limits under which a delegated child works.
	ContextDelegation = "subagent:delegation"

	OrderIdentity         = -100
	OrderPersona          = 0
	OrderToolGuidance     = 100 // tool guidance takes 100 to 199
	OrderStructuredOutput = 190
	OrderDelegation       = 120 // among the contexts
)

// Variables that the agent loop supplies to every assembly; no one else may register them
// (core P4). One that the agent lacks (a child without a directory) is left out of the map.
const (
	VarProvider = "provider"
	VarModel    = "model"
	VarCwd      = "cwd"
)

// Section is one part of the system prompt (core P1). It is copied when it is added.
type Section struct {
	// Name is unique within its layer; the same name in a nearer layer shadows.
	Name string
	// Order sorts the visible sections, ties by registration. NaN is refused.
	Order float64
	// Text is a template, unless Literal. Empty text is a slot that shadows and says nothing.
	Text string
	// Render, when set, is used instead of Text, once per assembly. Its result is a template
	// too, unless Literal; a blank result drops the section. It runs on the goroutine of
	// Assemble without any lock; an error or a panic fails that assembly.
	Render func(RenderContext) (string, error)
	// Literal text is taken as it is: "{{" has no meaning in it (seam COMP-36).
	Literal bool
	// Complete replaces every other section while it renders something (core P7); the others
	// are then not rendered at all. At most one visible section may be complete: two fail the
	// assembly with ErrTwoComplete. Contexts are not touched.
	Complete bool
}

// Context is one part of the runtime context, which reaches the model as a message and not as
// part of the system prompt (core P6). The fields mean what they mean in Section.
type Context struct {
	Name    string
	Order   float64
	Text    string
	Render  func(RenderContext) (string, error)
	Literal bool
}

// RenderContext is what a render function may look at. It must not be kept beyond the call
// or shared with another goroutine.
type RenderContext struct {
	// Scope is the caller's AssembleOptions.Scope, unread.
	Scope any
	// Vars gives the value of a variable; false when it is unknown or has no value now.
	Vars func(name string) (string, bool)
	// ToolVisible says whether the agent can see a tool. It is never nil.
	ToolVisible func(name string) bool
}

// Identity is the identity section holding text, a template.
func Identity(text string) Section {
	return Section{Name: SectionIdentity, Order: OrderIdentity, Text: text}
}

// Persona is the persona section holding text: a template, or plain text when literal
// (seam COMP-10, COMP-36). With empty text it is the empty slot of core P3, or, in a child's
// layer, a persona that shadows the deployment's with nothing (seam COMP-09).
func Persona(text string, literal bool) Section {
	return Section{Name: SectionPersona, Order: OrderPersona, Text: text, Literal: literal}
}

// Delegation is the context that every delegated child carries (core P9, seam COMP-22).
func Delegation() Context {
	return Context{Name: ContextDelegation, Order: OrderDelegation, Text: DelegationContext, Literal: true}
}

func isBlank(text string) bool { return strings.TrimSpace(text) == "" }
