package prompt

import "strings"

// Assembly is one assembled prompt. It may share memory with other assemblies: outside a
// transform its slices must not be modified.
type Assembly struct {
	// System is the system prompt: the text of Sections, one blank line between two. Empty
	// when there are none.
	System string
	// Contexts and Sections are the rendered parts in their order; blank ones are not there.
	Contexts []RenderedContext
	Sections []RenderedSection

	snapshot string // what ContextText gives, when Assemble has made it already
}

// RenderedSection is one section as it stands in the system prompt.
type RenderedSection struct {
	Name     string
	Order    float64
	Text     string
	Complete bool
}

// RenderedContext is one context as it stands in the snapshot.
type RenderedContext struct {
	Name  string
	Order float64
	Text  string
}

// ContextText returns the snapshot of all contexts as the text of one message, which says
// that it supersedes earlier ones (core P6); "" when there are no contexts.
func (a Assembly) ContextText() string {
	if a.snapshot != "" {
		return a.snapshot
	}
	return contextText(a.Contexts)
}

// NextContext decides what the agent must be told now (core P6). retained is the newest
// snapshot text that its history still holds, "" when there never was one or compaction has
// removed it. send is false when nothing needs saying; otherwise text is the new snapshot
// or, once after the contexts have become empty, NoContext.
func (a Assembly) NextContext(retained string) (text string, send bool) {
	text = a.ContextText()
	if text == "" {
		if retained == "" {
			return "", false
		}
		text = NoContext
	}
	if text == retained {
		return "", false
	}
	return text, true
}

func contextText(contexts []RenderedContext) string {
	if len(contexts) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(contextHeader)
	for _, c := range contexts {
		b.WriteString(separator)
		b.WriteString(c.Text)
	}
	return b.String()
}

func joinSections(sections []RenderedSection) string {
	var b strings.Builder
	for i, s := range sections {
		if i > 0 {
			b.WriteString(separator)
		}
		b.WriteString(s.Text)
	}
	return b.String()
}

// sameSections reports whether a rendering is what a holds already.
func (a *Assembly) sameSections(r rendering) bool {
	if a.System != string(r.text) || len(a.Sections) != len(r.spans) {
		return false
	}
	for i, s := range r.spans {
		if have := &a.Sections[i]; have.Name != s.entry.name || have.Order != s.entry.order ||
			have.Complete != s.entry.complete || len(have.Text) != s.end-s.start {
			return false
		}
	}
	return true
}

func (a *Assembly) sameContexts(r rendering) bool {
	if a.snapshot != string(r.text) || len(a.Contexts) != len(r.spans) {
		return false
	}
	for i, s := range r.spans {
		if have := &a.Contexts[i]; have.Name != s.entry.name || have.Order != s.entry.order || len(have.Text) != s.end-s.start {
			return false
		}
	}
	return true
}

// sections turns a rendering into its text and the parts, which are slices of that text.
func (r rendering) sections() (string, []RenderedSection) {
	if len(r.spans) == 0 {
		return "", nil
	}
	text := string(r.text)
	parts := make([]RenderedSection, len(r.spans))
	for i, s := range r.spans {
		parts[i] = RenderedSection{Name: s.entry.name, Order: s.entry.order, Text: text[s.start:s.end], Complete: s.entry.complete}
	}
	return text, parts
}

func (r rendering) contexts() (string, []RenderedContext) {
	if len(r.spans) == 0 {
		return "", nil
	}
	text := string(r.text)
	parts := make([]RenderedContext, len(r.spans))
	for i, s := range r.spans {
		parts[i] = RenderedContext{Name: s.entry.name, Order: s.entry.order, Text: text[s.start:s.end]}
	}
	return text, parts
}
