package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/offshoot-dev/offshoot/message"
)

// render makes what a model reads of a result: its texts, a line for everything that is
// no text, and the structured value as JSON where no text says the same.
func render(res *sdk.CallToolResult) []message.Block {
	var blocks []message.Block
	told := false
	for _, c := range res.Content {
		text := contentText(c)
		if t, ok := c.(*sdk.TextContent); ok && res.StructuredContent != nil {
			told = told || says(t.Text, res.StructuredContent)
		}
		blocks = append(blocks, message.Text(text))
	}
	if res.StructuredContent != nil && !told {
		blocks = append(blocks, message.Text(structured(res.StructuredContent)))
	}
	if len(blocks) == 0 {
		blocks = append(blocks, message.Text("[the tool returned nothing]"))
	}
	return blocks
}

func joined(blocks []message.Block) string {
	texts := make([]string, len(blocks))
	for i, b := range blocks {
		texts[i] = b.Text
	}
	return strings.Join(texts, "\n")
}

// contentText is a text, or the line that names what is none.
func contentText(c sdk.Content) string {
	switch c := c.(type) {
	case *sdk.TextContent:
		return c.Text
	case *sdk.ImageContent:
		return fmt.Sprintf("[an image, %s, %d bytes, which is not shown]", kind(c.MIMEType), len(c.Data))
	case *sdk.AudioContent:
		return fmt.Sprintf("[a sound, %s, %d bytes, which is not shown]", kind(c.MIMEType), len(c.Data))
	case *sdk.ResourceLink:
		size := ""
		if c.Size != nil {
			size = fmt.Sprintf(", %d bytes", *c.Size)
		}
		return fmt.Sprintf("[the resource %s (%s), %s%s, which is not fetched]", c.URI, c.Name, kind(c.MIMEType), size)
	case *sdk.EmbeddedResource:
		if c.Resource == nil {
			return "[a resource without an address, which is not shown]"
		}
		return fmt.Sprintf("[the resource %s, %s, %d bytes, which is not shown]",
			c.Resource.URI, kind(c.Resource.MIMEType), len(c.Resource.Text)+len(c.Resource.Blob))
	}
	return fmt.Sprintf("[content of a kind that is not known here (%T), which is not shown]", c)
}

func kind(mime string) string {
	if mime == "" {
		return "of unknown type"
	}
	return mime
}

// says reports whether a text is the JSON of a value, as the protocol advises servers to
// send it beside the value.
func says(text string, value any) bool {
	var other any
	return json.Unmarshal([]byte(text), &other) == nil && reflect.DeepEqual(other, value)
}

// structured is a value as JSON. The library has read its numbers as floating point, so
// of large ones the last digits may be wrong, and that is said.
func structured(value any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return fmt.Sprintf("[a structured value that cannot be shown: %v]", err)
	}
	text := strings.TrimSpace(b.String())
	if rounded(value) {
		text += "\n[numbers above 2^53 in this may have been rounded]"
	}
	return text
}

func rounded(value any) bool {
	switch v := value.(type) {
	case float64:
		return v == math.Trunc(v) && math.Abs(v) > 1<<53-1
	case []any:
		for _, item := range v {
			if rounded(item) {
				return true
			}
		}
	case map[string]any:
		for _, item := range v {
			if rounded(item) {
				return true
			}
		}
	}
	return false
}
