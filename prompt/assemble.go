package prompt

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// AssembleOptions is what one assembly is told beside its variables.
type AssembleOptions struct {
	// Scope reaches the render functions unread; an agent passes itself.
	Scope any
	// ToolVisible says which tools the agent can see; nil means none.
	ToolVisible func(name string) bool
}

// Assemble renders what is visible from s for one agent at one moment. vars are the
// variables that the caller supplies (provider, model, cwd: of the agent itself, core P10);
// it is read only during the call, and a name in it that is also registered is an error. The
// agent loop calls Assemble once per step; retries within the step reuse the result (core P5).
//
// Any failure, of a template, a function or the chain of transforms, gives an error that names
// the part, and no partial prompt. Everything is rendered anew on each call, but what came
// out the same as the last time is the same memory: an unchanged prompt costs one copy into
// a scratch buffer, and its agents share one string.
func (s *Scope) Assemble(vars map[string]string, opts AssembleOptions) (Assembly, error) {
	v, err := s.currentView()
	if err != nil {
		return Assembly{}, fmt.Errorf("assemble prompt: %w", err)
	}
	a, err := v.assemble(s.reg, vars, opts)
	if err != nil {
		return Assembly{}, fmt.Errorf("assemble prompt: %w", err)
	}
	return a, nil
}

func (v *view) assemble(reg *Registry, vars map[string]string, opts AssembleOptions) (Assembly, error) {
	if v.invalid != nil {
		return Assembly{}, v.invalid
	}
	for _, known := range v.variables {
		if _, twice := vars[known.name]; twice {
			return Assembly{}, fmt.Errorf("supplied variable %q: %w", known.name, ErrDuplicate)
		}
	}
	out := reg.scratch.Get().(*scratch)
	defer reg.release(out)
	r := &out.resolver
	var rc RenderContext
	if v.dynamic {
		r = &resolver{} // a function may keep what it is given
		rc = RenderContext{Scope: opts.Scope, Vars: r.vars, ToolVisible: opts.ToolVisible}
		if rc.ToolVisible == nil {
			rc.ToolVisible = func(string) bool { return false }
		}
	}
	r.supplied, r.registered = vars, v.variables
	if err := v.renderSections(out, r, rc); err != nil {
		return Assembly{}, err
	}
	system := out.cut()
	out.begin(contextHeader)
	for _, e := range v.contexts {
		if err := out.add(e, r, rc); err != nil {
			return Assembly{}, err
		}
	}
	a := v.share(reg, system, out.cut())
	if len(v.transforms) > 0 {
		return v.transform(a)
	}
	return a, nil
}

func (v *view) renderSections(out *scratch, r *resolver, rc RenderContext) error {
	out.begin("")
	if v.complete != nil {
		if err := out.add(v.complete, r, rc); err != nil || out.any() {
			return err
		}
	}
	for _, e := range v.sections {
		if e == v.complete {
			continue // rendered blank above
		}
		if err := out.add(e, r, rc); err != nil {
			return err
		}
	}
	return nil
}

// share gives the result, taking from the last one what did not change: from the
// view's own or, the first time, from the one that the registry made most recently,
// which among the children of one parent is a sibling's.
func (v *view) share(reg *Registry, system, snapshot rendering) Assembly {
	last := v.last.Load()
	if last == nil {
		last = reg.recent.Load()
	}
	if last == nil {
		last = &Assembly{}
	}
	a := *last
	sameSystem, sameSnapshot := last.sameSections(system), last.sameContexts(snapshot)
	if sameSystem && sameSnapshot {
		v.last.CompareAndSwap(nil, last)
		return a
	}
	if !sameSystem {
		a.System, a.Sections = system.sections()
	}
	if !sameSnapshot {
		a.snapshot, a.Contexts = snapshot.contexts()
	}
	kept := a
	v.last.Store(&kept)
	reg.recent.Store(&kept)
	return a
}

// transform runs the interception chain over a copy of what was rendered (core P7).
func (v *view) transform(rendered Assembly) (Assembly, error) {
	a := &Assembly{System: rendered.System, Sections: slices.Clone(rendered.Sections), Contexts: slices.Clone(rendered.Contexts)}
	complete, err := completeSection(a.Sections)
	if err != nil {
		return Assembly{}, err
	}
	for i, t := range v.transforms {
		if err := t.step(a, complete); err != nil {
			return Assembly{}, fmt.Errorf("transform %d: %w", i, err)
		}
	}
	a.snapshot = contextText(a.Contexts)
	return *a, nil
}

// step runs one transform and holds it to its rules; complete names the complete section
// that came in, if any.
func (t *transform) step(a *Assembly, complete string) error {
	before := a.System
	if err := t.run(a); err != nil {
		return err
	}
	a.Sections = slices.DeleteFunc(a.Sections, func(s RenderedSection) bool { return isBlank(s.Text) })
	a.Contexts = slices.DeleteFunc(a.Contexts, func(c RenderedContext) bool { return isBlank(c.Text) })
	after, err := completeSection(a.Sections)
	switch {
	case err != nil:
		return err
	case complete != "" && after != complete:
		return fmt.Errorf("lost the complete section %q", complete)
	case after != complete:
		return fmt.Errorf("made section %q complete", after)
	}
	joined := joinSections(a.Sections)
	if a.System != before && a.System != joined {
		return errors.New("edited System, which follows from Sections")
	}
	a.System = joined
	return nil
}

func (t *transform) run(a *Assembly) (err error) {
	defer contain(&err)
	return t.apply(a)
}

// completeSection names the complete section, "" when there is none.
func completeSection(sections []RenderedSection) (name string, err error) {
	for _, s := range sections {
		if !s.Complete {
			continue
		}
		if name != "" {
			return "", fmt.Errorf("sections %q and %q: %w", name, s.Name, ErrTwoComplete)
		}
		name = s.Name
	}
	return name, nil
}

// separator is the one blank line between parts.
const separator = "\n\n"

// scratch is the reusable memory of an assembly: parts are written one after another, the
// system prompt first, then the snapshot of the contexts.
type scratch struct {
	buf   []byte
	spans []span
	start int // of the current rendering in buf
	from  int // of the current rendering in spans

	resolver resolver // where no function sees it
}

// span is one rendered part, its bounds relative to its rendering.
type span struct {
	entry      *entry
	start, end int
}

// rendering is a finished run of parts; it is valid until the scratch is released.
type rendering struct {
	text  []byte
	spans []span
}

// release puts the scratch back, without the entries it points at and unless one huge prompt
// has blown it up.
func (r *Registry) release(out *scratch) {
	const keep = 1 << 20
	if cap(out.buf) > keep {
		return
	}
	clear(out.spans)
	*out = scratch{buf: out.buf[:0], spans: out.spans[:0]}
	r.scratch.Put(out)
}

func (w *scratch) begin(header string) {
	w.start, w.from = len(w.buf), len(w.spans)
	w.buf = append(w.buf, header...)
}

func (w *scratch) any() bool { return len(w.spans) > w.from }

func (w *scratch) cut() rendering {
	if !w.any() {
		return rendering{}
	}
	return rendering{text: w.buf[w.start:], spans: w.spans[w.from:]}
}

// add renders one part behind the others and drops it again if it is blank.
func (w *scratch) add(e *entry, r *resolver, rc RenderContext) error {
	t := e.text
	if e.render != nil {
		text, err := e.call(rc)
		if err != nil {
			return fmt.Errorf("%s %q: %w", e.kind, e.name, err)
		}
		t = compile(text, e.literal)
	}
	mark := len(w.buf)
	if mark > w.start {
		w.buf = append(w.buf, separator...)
	}
	start := len(w.buf)
	buf, variable, err := t.append(w.buf, r)
	if err != nil {
		return &VariableError{Kind: e.kind, Name: e.name, Variable: variable, Problem: err}
	}
	if len(bytes.TrimSpace(buf[start:])) == 0 {
		w.buf = buf[:mark]
		return nil
	}
	w.buf = buf
	w.spans = append(w.spans, span{entry: e, start: start - w.start, end: len(buf) - w.start})
	return nil
}

func (e *entry) call(rc RenderContext) (text string, err error) {
	defer contain(&err)
	return e.render(rc)
}
