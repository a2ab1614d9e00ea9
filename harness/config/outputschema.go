package config

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/structured"
)

// jsonText is a value that is kept as compact JSON.
type jsonText string

// outputSchema reads a JSON Schema that is written as YAML. Every fault of the schema
// is in the one problem.
func outputSchema(n *yaml.Node) (any, int, string) {
	if n.Kind != yaml.MappingNode {
		return nil, n.Line, "must be a JSON Schema, written as a mapping, not " + describe(n)
	}
	raw, line, problem := appendJSON(nil, n)
	if problem != "" {
		return nil, line, problem
	}
	_, err := structured.Parse(raw)
	if refused, ok := errors.AsType[*structured.SchemaError](err); ok {
		faults := make([]string, len(refused.Faults))
		for i, f := range refused.Faults {
			faults[i] = f.String()
		}
		return nil, n.Line, "is not supported: " + strings.Join(faults, "; ")
	}
	if err != nil {
		return nil, n.Line, "is not supported: " + err.Error()
	}
	return jsonText(raw), n.Line, ""
}

// appendJSON writes a node as JSON, in its order. The document has neither aliases
// nor keys that are no text. A scalar must mean in JSON what it means in YAML.
func appendJSON(buf []byte, n *yaml.Node) (_ []byte, line int, problem string) {
	switch n.Kind {
	case yaml.MappingNode:
		buf = append(buf, '{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				buf = append(buf, ',')
			}
			buf = append(jsonx.AppendString(buf, n.Content[i].Value), ':')
			if buf, line, problem = appendJSON(buf, n.Content[i+1]); problem != "" {
				return nil, line, problem
			}
		}
		return append(buf, '}'), 0, ""
	case yaml.SequenceNode:
		buf = append(buf, '[')
		for i, item := range n.Content {
			if i > 0 {
				buf = append(buf, ',')
			}
			if buf, line, problem = appendJSON(buf, item); problem != "" {
				return nil, line, problem
			}
		}
		return append(buf, ']'), 0, ""
	}
	switch n.ShortTag() {
	case "!!str":
		return jsonx.AppendString(buf, n.Value), 0, ""
	case "!!null":
		return append(buf, "null"...), 0, ""
	case "!!bool", "!!int", "!!float":
		if jsonx.Validate([]byte(n.Value)) == nil {
			return append(buf, n.Value...), 0, ""
		}
	}
	return nil, n.Line, fmt.Sprintf("%q has no counterpart in JSON; quote it if it is text", n.Value)
}
