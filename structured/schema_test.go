package structured_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/structured"
)

// T26, REQ-03, REQ-04: everything that is wrong with a schema is listed, each at its
// place, in the order of the text; what lies within the subset is taken.
func TestT26Subset(t *testing.T) {
	for _, c := range []struct {
		name, schema string
		want         []string
	}{
		{"an empty object", `{"type":"object"}`, nil},
		{"every keyword", `{
			"type": "object", "title": "A", "description": "B", "default": {"n": 1}, "examples": [{}, 2],
			"properties": {
				"text": {"type": "string", "enum": ["a", "b"], "const": "a"},
				"number": {"type": "number", "const": 1.50}, "whole": {"type": "integer", "enum": [1, null, true, "x"]},
				"flag": {"type": "boolean"}, "nothing": {"type": "null"}, "anything": {}, "said": {"description": "any value"},
				"list": {"type": "array", "items": {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": true}},
				"choice": {"title": "C", "description": "D", "default": 1, "examples": [], "oneOf": [{"type": "string"}, {"oneOf": [{"const": 1}, {"const": 2}]}]},
				"a/b~c": {"type": "string"}
			},
			"required": ["text", "a/b~c"], "additionalProperties": false
		}`, nil},
		{"no JSON", `{"type":"object",}`, []string{"at the root: it is not lossless JSON"}},
		{"nothing", ``, []string{"at the root: it is not lossless JSON"}},
		{"a key twice", `{"type":"object","type":"object"}`, []string{"at the root: it is not lossless JSON"}},
		{"an unsafe number", `{"type":"object","default":9007199254740993}`, []string{"at the root: it is not lossless JSON"}},
		{"no object", `true`, []string{"at the root: a schema must be a JSON object"}},
		{"no type", `{"properties":{"a":{}},"required":["a"]}`, []string{`at the root: the root needs "type": "object"`}},
		{"another type", `{"type":"array","items":{"type":"string"}}`, []string{`at /type: the root's type must be "object"`, `at /items: it needs "type": "array" beside it`}},
		{"two types", `{"type":["object","null"],"properties":{"a":{}}}`, []string{"at /type: it must be one of object, array,"}},
		{"everything at once", `{
			"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "minProperties": 1,
			"properties": {
				"a": {"type": "string", "pattern": "x", "minLength": 1},
				"b": {"$ref": "#/$defs/b"},
				"c": true,
				"d/e~f": {"type": "array", "items": [{"type": "string"}], "uniqueItems": true},
				"g": {"properties": {"h": {"type": "strnig"}}, "required": ["h"]},
				"i": {"type": "string", "items": {}},
				"j": {"oneOf": [{"type": "string"}], "type": "string", "title": "fine"},
				"k": {"oneOf": [{"const": [1]}, {"anyOf": [{"nor": "this"}]}]},
				"l": {"enum": [{}, 1, []]}, "m": {"enum": []}, "n": {"enum": "x"},
				"o": {"title": 1, "description": null, "examples": {}},
				"p": {"type": "object", "additionalProperties": {"type": "string"}, "required": "q", "properties": []},
				"r": {"oneOf": {}}
			},
			"required": ["a", "z", "a", 1], "$defs": {"b": {"type": "string"}}
		}`, []string{
			"at /$schema: the keyword is not supported",
			"at /minProperties: the keyword is not supported",
			"at /properties/a/pattern: the keyword is not supported",
			"at /properties/a/minLength: the keyword is not supported",
			"at /properties/b/$ref: the keyword is not supported",
			"at /properties/c: a schema must be a JSON object",
			"at /properties/d~1e~0f/items: a schema must be a JSON object",
			"at /properties/d~1e~0f/uniqueItems: the keyword is not supported",
			`at /properties/g/properties: it needs "type": "object" beside it`,
			"at /properties/g/properties/h/type: it must be one of",
			`at /properties/g/required: it needs "type": "object" beside it`,
			`at /properties/i/items: it needs "type": "array" beside it`,
			"at /properties/j/oneOf: it must be a list of two schemas or more",
			"at /properties/j/type: no constraint may stand beside oneOf",
			"at /properties/k/oneOf/0/const: it must be a scalar",
			"at /properties/k/oneOf/1/anyOf: the keyword is not supported",
			"at /properties/l/enum/0: it must be a scalar",
			"at /properties/l/enum/2: it must be a scalar",
			"at /properties/m/enum: it must be a list of one scalar or more",
			"at /properties/n/enum: it must be a list of one scalar or more",
			"at /properties/o/title: it must be text",
			"at /properties/o/description: it must be text",
			"at /properties/o/examples: it must be a list",
			"at /properties/p/additionalProperties: it must be true or false",
			"at /properties/p/required: it must be a list of property names",
			"at /properties/p/properties: it must be an object of schemas",
			"at /properties/r/oneOf: it must be a list of two schemas or more",
			`at /required/1: it names "z", which properties does not declare`,
			`at /required/2: it names "a" twice`,
			"at /required/3: it must be the name of a property",
			"at /$defs: the keyword is not supported",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := structured.Parse([]byte(c.schema))
			if c.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				if got := string(s.JSON()); got != c.schema {
					t.Errorf("SO-02: JSON() = %s", got)
				}
				return
			}
			var refused *structured.SchemaError
			if !errors.As(err, &refused) {
				t.Fatalf("Parse = %v, want a SchemaError", err)
			}
			var got []string
			for i, f := range refused.Faults {
				line := f.String()
				if i < len(c.want) && strings.HasPrefix(line, c.want[i]) {
					line = c.want[i]
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			if lines := strings.Count(err.Error(), "\n"); lines != len(c.want) {
				t.Errorf("the error has %d lines for %d faults: %v", lines, len(c.want), err)
			}
		})
	}
}

// SO-28, T31: what is done to the text afterwards does not reach the schema.
func TestSO28Copied(t *testing.T) {
	const text = `{"type":"object"}`
	raw := []byte(text)
	s, err := structured.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	raw[2] = 'X'
	if string(s.JSON()) != text {
		t.Errorf("JSON() = %s", s.JSON())
	}
}

// Whatever the text is, it is taken or refused with a list of faults: what passes
// the check also compiles.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"type":"object","properties":{"a":{"type":"array","items":{"oneOf":[{"const":1},{"enum":["x",null]}]}}},"required":["a"],"additionalProperties":false}`,
		`{"type":"object","properties":{"":{"title":"x","default":{}}}}`, `{"type":"object","required":[]}`, `{"type":"object","enum":[1,1]}`, `[]`, ``,
		`{"type":"object","properties":{"$ref":{"type":"string"},"type":{}},"required":["type"]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := structured.Parse(raw)
		var refused *structured.SchemaError
		switch {
		case err == nil && string(s.JSON()) != string(raw):
			t.Errorf("JSON() = %s of %s", s.JSON(), raw)
		case err != nil && (!errors.As(err, &refused) || len(refused.Faults) == 0):
			t.Errorf("%s: %v", raw, err)
		}
	})
}
