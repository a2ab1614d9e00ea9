package prompt

import "strings"

const (
	groupOpen  = "{{"
	groupClose = "}}"
)

// template is a text and where its variables stand. One with a malformed group keeps the
// problem instead: it fails the assemblies that use it, not the registration (core P4).
type template struct {
	text      string
	holes     []hole
	malformed *string // the inside of the first malformed group
}

// hole is one {{name}} group: text[start:end], with its name.
type hole struct {
	start, end int
	name       string
}

// compile makes the template of a text; a verbatim one has no groups.
func compile(text string, verbatim bool) template {
	if verbatim {
		return template{text: text}
	}
	return parse(text)
}

// parse finds the groups of a text. A group runs from "{{" to the next "}}"; a "{{" that no
// "}}" follows, and a "}}" alone, are plain text.
func parse(text string) template {
	t := template{text: text}
	for at := 0; ; {
		open := strings.Index(text[at:], groupOpen)
		if open < 0 {
			return t
		}
		start := at + open
		inside := text[start+len(groupOpen):]
		size := strings.Index(inside, groupClose)
		if size < 0 {
			return t
		}
		name := inside[:size]
		if !isVariableName(name) {
			t.malformed = &name
			return t
		}
		at = start + len(groupOpen) + size + len(groupClose)
		t.holes = append(t.holes, hole{start: start, end: at, name: name})
	}
}

// append writes the text to dst with every group replaced. What a variable brings in is never
// looked at again. On failure it names the variable.
func (t *template) append(dst []byte, r *resolver) (out []byte, variable string, err error) {
	if t.malformed != nil {
		return dst, excerpt(*t.malformed), ErrMalformedGroup
	}
	at := 0
	for _, h := range t.holes {
		value, err := r.lookup(h.name)
		if err != nil {
			return dst, h.name, err
		}
		dst = append(dst, t.text[at:h.start]...)
		dst = append(dst, value...)
		at = h.end
	}
	return append(dst, t.text[at:]...), "", nil
}

// isVariableName reports whether name is [a-z][a-z0-9_]*.
func isVariableName(name string) bool {
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z':
		case i > 0 && ('0' <= c && c <= '9' || c == '_'):
		default:
			return false
		}
	}
	return name != ""
}

// resolver gives the values of one assembly. A registered function is asked once, so that
// all sections of one prompt agree.
type resolver struct {
	supplied   map[string]string
	registered []*variable
	known      []binding
	first      [4]binding // room for known, so that it costs no allocation of its own
}

type binding struct {
	name, value string
	err         error
}

func (r *resolver) lookup(name string) (string, error) {
	if value, ok := r.supplied[name]; ok {
		return value, nil
	}
	for i := range r.known {
		if b := &r.known[i]; b.name == name {
			return b.value, b.err
		}
	}
	for _, v := range r.registered {
		if v.name != name {
			continue
		}
		b := binding{name: name}
		b.value, b.err = v.ask()
		if r.known == nil {
			r.known = r.first[:0]
		}
		r.known = append(r.known, b)
		return b.value, b.err
	}
	if isSupplied(name) {
		return "", ErrUndefinedVariable
	}
	return "", ErrUnknownVariable
}

func (r *resolver) vars(name string) (string, bool) {
	value, err := r.lookup(name)
	return value, err == nil
}

func (v *variable) ask() (value string, err error) {
	defer contain(&err)
	value, ok := v.value()
	if !ok {
		return "", ErrUndefinedVariable
	}
	return value, nil
}

// isSupplied reports whether the agent loop gives this variable.
func isSupplied(name string) bool {
	return name == VarProvider || name == VarModel || name == VarCwd
}
