package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	textmessage "golang.org/x/text/message"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
)

// maxName is the longest tool name that every model endpoint takes.
const maxName = 64

// schemaURL names a schema inside error texts; nothing is ever loaded from it.
const schemaURL = "urn:offshoot:tool"

// Compiled is a Definition that passed every check, with its schemas compiled. It
// is immutable and may be registered in any number of scopes.
type Compiled struct {
	def    *Definition
	params *jsonschema.Schema
	output *jsonschema.Schema // nil: any value
}

// Definition returns the definition. It must not be modified.
func (c *Compiled) Definition() *Definition { return c.def }

// ValidateArgs checks lossless JSON against the schema of the parameters. The error says
// everything that is wrong, one fault a line.
func (c *Compiled) ValidateArgs(args []byte) error { return validate(c.params, args) }

// Compile checks a definition (core T1) and compiles its schemas. It is refused
// when the name is not 1 to 64 ASCII letters, digits, '_' or '-' with a letter or
// digit first, when Execute is missing, when Timeout is negative, when Parameters is
// not a valid JSON Schema whose type is "object", or when Output.Schema is not a
// valid JSON Schema. References to other documents are refused: a schema may come
// from outside, and no schema makes this process read a file.
func Compile(def Definition) (*Compiled, error) {
	if err := checkName(def.Name); err != nil {
		return nil, fmt.Errorf("define tool: %w", err)
	}
	fail := func(err error) (*Compiled, error) { return nil, fmt.Errorf("define tool %q: %w", def.Name, err) }
	if def.Execute == nil {
		return fail(errors.New("no Execute"))
	}
	if def.Timeout < 0 {
		return fail(fmt.Errorf("negative timeout %v", def.Timeout))
	}
	def.Parameters = bytes.Clone(def.Parameters)
	params, err := compileSchema(def.Parameters, true)
	if err != nil {
		return fail(fmt.Errorf("parameters: %w", err))
	}
	c := &Compiled{def: &def, params: params}
	if def.Output.Schema != nil {
		if c.output, err = compileSchema(def.Output.Schema, false); err != nil {
			return fail(fmt.Errorf("output schema: %w", err))
		}
	}
	return c, nil
}

func checkName(name string) error {
	if name == "" {
		return errors.New("no name")
	}
	if len(name) > maxName {
		return fmt.Errorf("name %q is longer than %d bytes", name, maxName)
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '_' || c == '-'):
		default:
			return fmt.Errorf("name %q has %q at byte %d", name, c, i)
		}
	}
	return nil
}

// sealedLoader refuses every reference out of the document.
type sealedLoader struct{}

func (sealedLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("reference to %q: a schema must be self-contained", url)
}

func compileSchema(raw []byte, object bool) (*jsonschema.Schema, error) {
	if err := jsonx.Validate(raw); err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	if object {
		if m, ok := doc.(map[string]any); !ok || m["type"] != "object" {
			return nil, errors.New(`the schema's type is not "object"`)
		}
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(sealedLoader{})
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, err
	}
	return c.Compile(schemaURL)
}

// validate checks a JSON text against sch and describes every failure, one a line.
func validate(sch *jsonschema.Schema, raw []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	err = sch.Validate(v)
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return err
	}
	var lines []string
	printer := textmessage.NewPrinter(language.English)
	var walk func(e *jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 {
			at := "/" + strings.Join(e.InstanceLocation, "/")
			lines = append(lines, fmt.Sprintf("at %s: %s", at, e.ErrorKind.LocalizedString(printer)))
		}
		for _, cause := range e.Causes {
			walk(cause)
		}
	}
	walk(ve)
	slices.Sort(lines) // the library walks maps, so its own order is not stable
	return errors.New(strings.Join(slices.Compact(lines), "\n"))
}

// encodeJSON encodes v without HTML escaping.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return jsonx.Compact(b.Bytes())
}
