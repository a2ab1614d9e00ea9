package structured

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/tool"
)

// Schema is a JSON Schema of an object that lies within the subset that is
// enforced whole (core T26). It is immutable and may serve any number of agents.
//
// The subset: type, one of object, array, string, number, integer, boolean and
// null; for an object properties, required, which names only what properties
// declares, and additionalProperties as true or false; for an array items; enum
// and const of scalars; oneOf of two schemas or more, beside which no other
// constraint stands; and title, description, default and examples, which
// constrain nothing. The root has the type object.
type Schema struct {
	raw  []byte
	tool *tool.Compiled
}

// Parse reads a schema. It copies raw (seam SO-28). A schema outside the subset is
// a *SchemaError with everything that is wrong with it.
func Parse(raw []byte) (*Schema, error) {
	if err := jsonx.Validate(raw); err != nil {
		return nil, &SchemaError{[]Fault{{"", "it is not lossless JSON: " + err.Error()}}}
	}
	c := checker{}
	c.root(raw)
	if len(c.faults) > 0 {
		return nil, &SchemaError{c.faults}
	}
	raw = bytes.Clone(raw)
	compiled, err := tool.Compile(tool.Definition{
		Name: ToolName, Description: toolText, Parameters: raw,
		// It only takes part in the agent's own ending, so no permission forbids it.
		ReadOnly: true,
		Describe: func([]byte) string { return "hand in the answer" },
		Execute: func(_ context.Context, call *tool.Call) (any, error) {
			call.ConcludeTurn()
			return recorded{true}, nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("output schema: %w", err)
	}
	return &Schema{raw: raw, tool: compiled}, nil
}

// recorded is what the model reads of an accepted call (seam SO-07).
type recorded struct {
	Recorded bool `json:"recorded"`
}

// JSON returns the schema as it was given. It must not be modified.
func (s *Schema) JSON() []byte { return s.raw }

// Validate reads an answer that came as text and returns it as compact JSON, every key
// and number as it was written. The error says where it does not satisfy the schema.
func (s *Schema) Validate(text []byte) ([]byte, error) {
	if err := jsonx.Validate(text); err != nil {
		return nil, fmt.Errorf("it is not lossless JSON: %w", err)
	}
	if err := s.tool.ValidateArgs(text); err != nil {
		return nil, err
	}
	return jsonx.Compact(text)
}

// SchemaError refuses a schema. Faults holds every offence, in the order of the
// text, and is never empty.
type SchemaError struct{ Faults []Fault }

// Fault is one offence. Path is the JSON Pointer of the offending place, "" for
// the whole schema.
type Fault struct{ Path, Reason string }

func (f Fault) String() string {
	if f.Path == "" {
		return "at the root: " + f.Reason
	}
	return "at " + f.Path + ": " + f.Reason
}

func (e *SchemaError) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.String()
	}
	return "unsupported output schema:\n" + strings.Join(lines, "\n")
}

// checker collects the faults of one schema, which is known to be lossless JSON.
type checker struct{ faults []Fault }

func (c *checker) fault(at, format string, args ...any) {
	c.faults = append(c.faults, Fault{at, fmt.Sprintf(format, args...)})
}

// member is one keyword of a schema, or one property.
type member struct {
	key string
	raw []byte
}

// members returns the members of an object in their order; ok is false for
// anything else.
func members(raw []byte) (list []member, ok bool) {
	err := jsonx.WalkObject(raw, func(key string, raw []byte) error {
		list = append(list, member{key, raw})
		return nil
	})
	return list, err == nil
}

func elements(raw []byte) (list [][]byte, ok bool) {
	err := jsonx.WalkArray(raw, func(raw []byte) error {
		list = append(list, raw)
		return nil
	})
	return list, err == nil
}

func find(list []member, key string) []byte {
	for _, m := range list {
		if m.key == key {
			return m.raw
		}
	}
	return nil
}

func (c *checker) root(raw []byte) {
	list, ok := members(raw)
	if !ok {
		c.fault("", "a schema must be a JSON object")
		return
	}
	switch is, has := typeOf(list); {
	case !has:
		c.fault("", `the root needs "type": "object"`)
	case is != "object" && is != "":
		c.fault("/type", `the root's type must be "object"`)
	}
	c.keywords("", list, "object")
}

func (c *checker) schema(at string, raw []byte) {
	list, ok := members(raw)
	if !ok {
		c.fault(at, "a schema must be a JSON object")
		return
	}
	is, has := typeOf(list)
	if !has {
		is = "any"
	}
	c.keywords(at, list, is)
}

// keywords checks the keywords of a schema whose values are of a type; "" is one
// that cannot be told.
func (c *checker) keywords(at string, list []member, is string) {
	choice := find(list, "oneOf") != nil
	for _, m := range list {
		place := at + "/" + escape(m.key)
		k, known := lookup(m.key)
		if !known {
			c.fault(place, "the keyword is not supported")
			continue
		}
		switch {
		case choice && m.key != "oneOf" && !k.annotates:
			c.fault(place, "no constraint may stand beside oneOf")
		case k.of != "" && k.of != is && is != "":
			c.fault(place, `it needs "type": %q beside it`, k.of)
		}
		k.check(c, place, m.raw, list)
	}
}

// typeOf returns the type that a schema says, "" if that makes no sense.
func typeOf(list []member) (is string, has bool) {
	raw := find(list, "type")
	if raw == nil {
		return "", false
	}
	is, err := jsonx.String(raw)
	if err != nil {
		return "", true // told where the keyword is checked
	}
	return is, true
}

// keyword says how a keyword is checked.
type keyword struct {
	// of is the one type whose values it constrains: beside another type it would be
	// accepted and then ignored.
	of        string
	annotates bool
	check     func(c *checker, at string, raw []byte, beside []member)
}

func lookup(key string) (k keyword, known bool) {
	switch key {
	case "type":
		k.check = checkType
	case "properties":
		k.of, k.check = "object", checkProperties
	case "required":
		k.of, k.check = "object", checkRequired
	case "additionalProperties":
		k.of, k.check = "object", checkBool
	case "items":
		k.of, k.check = "array", func(c *checker, at string, raw []byte, _ []member) { c.schema(at, raw) }
	case "enum":
		k.check = checkEnum
	case "const":
		k.check = checkScalar
	case "oneOf":
		k.check = checkOneOf
	case "title", "description":
		k.annotates, k.check = true, checkText
	case "default":
		k.annotates, k.check = true, func(*checker, string, []byte, []member) {}
	case "examples":
		k.annotates, k.check = true, checkExamples
	}
	return k, k.check != nil
}

func checkType(c *checker, at string, raw []byte, _ []member) {
	types := []string{"object", "array", "string", "number", "integer", "boolean", "null"}
	if name, err := jsonx.String(raw); err != nil || !slices.Contains(types, name) {
		c.fault(at, "it must be one of %s", strings.Join(types, ", "))
	}
}

func checkProperties(c *checker, at string, raw []byte, _ []member) {
	list, ok := members(raw)
	if !ok {
		c.fault(at, "it must be an object of schemas")
	}
	for _, m := range list {
		c.schema(at+"/"+escape(m.key), m.raw)
	}
}

func checkRequired(c *checker, at string, raw []byte, beside []member) {
	names, ok := elements(raw)
	if !ok {
		c.fault(at, "it must be a list of property names")
	}
	declared, _ := members(find(beside, "properties"))
	seen := map[string]bool{}
	for i, raw := range names {
		place := fmt.Sprintf("%s/%d", at, i)
		name, err := jsonx.String(raw)
		switch {
		case err != nil:
			c.fault(place, "it must be the name of a property")
		case seen[name]:
			c.fault(place, "it names %q twice", name)
		case find(declared, name) == nil:
			c.fault(place, "it names %q, which properties does not declare", name)
		}
		seen[name] = err == nil
	}
}

func checkBool(c *checker, at string, raw []byte, _ []member) {
	if _, err := jsonx.Bool(raw); err != nil {
		c.fault(at, "it must be true or false")
	}
}

func checkEnum(c *checker, at string, raw []byte, _ []member) {
	list, ok := elements(raw)
	if !ok || len(list) == 0 {
		c.fault(at, "it must be a list of one scalar or more")
	}
	for i, raw := range list {
		checkScalar(c, fmt.Sprintf("%s/%d", at, i), raw, nil)
	}
}

func checkScalar(c *checker, at string, raw []byte, _ []member) {
	if raw = bytes.TrimSpace(raw); raw[0] == '{' || raw[0] == '[' {
		c.fault(at, "it must be a scalar: a string, a number, true, false or null")
	}
}

func checkOneOf(c *checker, at string, raw []byte, _ []member) {
	list, ok := elements(raw)
	if !ok || len(list) < 2 {
		c.fault(at, "it must be a list of two schemas or more")
	}
	for i, raw := range list {
		c.schema(fmt.Sprintf("%s/%d", at, i), raw)
	}
}

func checkText(c *checker, at string, raw []byte, _ []member) {
	if _, err := jsonx.String(raw); err != nil {
		c.fault(at, "it must be text")
	}
}

func checkExamples(c *checker, at string, raw []byte, _ []member) {
	if _, ok := elements(raw); !ok {
		c.fault(at, "it must be a list")
	}
}

// escape writes a key as a token of a JSON Pointer.
func escape(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
