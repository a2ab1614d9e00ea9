// Package files is the model-facing tools for a session's files: list, read,
// write, edit and search.
//
// They see the caller's working directory and nothing outside it: every path goes
// through os.Root, so neither ".." nor a link leads out. What they return is
// bounded, and so is the memory that they take for it. Floor 6.
package files

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

//go:embed list.md
var listText string

//go:embed read.md
var readText string

//go:embed write.md
var writeText string

//go:embed edit.md
var editText string

//go:embed search.md
var searchText string

// Options bound what the tools return. A number that is not positive has its default.
type Options struct {
	// ListEntries is the most entries of one listing (500).
	ListEntries int
	// ReadLines and ReadBytes bound one reading (2000 lines, 48 KiB); LineBytes is
	// where a longer line is cut (4096).
	ReadLines int
	ReadBytes int
	LineBytes int
	// EditBytes is the size of the largest file that can be edited (8 MiB).
	EditBytes int64
	// SearchMatches is the most lines that a search returns (200), SearchFileBytes
	// the size of the largest file that it looks into (4 MiB).
	SearchMatches   int
	SearchFileBytes int64
	// Spill returns the text of a tool result that was too long, which read takes by
	// its name (session.SpillRef) in place of a path. It decides whether the call's
	// caller may read it; its error goes to the model. It may be called concurrently.
	// nil: there are none.
	Spill func(ctx context.Context, call *tool.Call, ref session.SpillRef) (string, error)
}

func (o Options) withDefaults() Options {
	set := func(n *int, def int) {
		if *n <= 0 {
			*n = def
		}
	}
	set(&o.ListEntries, 500)
	set(&o.ReadLines, 2000)
	set(&o.ReadBytes, 48<<10)
	set(&o.LineBytes, 4096)
	set(&o.SearchMatches, 200)
	if o.EditBytes <= 0 {
		o.EditBytes = 8 << 20
	}
	if o.SearchFileBytes <= 0 {
		o.SearchFileBytes = 4 << 20
	}
	return o
}

// output is what a tool returns: the text for the model and metadata for the log.
type output struct {
	text string
	meta any
}

// Tools returns the five definitions. list, read and search only read and may
// overlap other calls.
func Tools(opts Options) []tool.Definition {
	o := opts.withDefaults()
	const path = `"path":{"type":"string","minLength":1,"description":"Relative to the working directory."}`
	return []tool.Definition{
		define("list", listText, `{"type":"object","properties":{`+path+`},"additionalProperties":false}`, true, inDir(o.list)),
		define("read", readText, `{"type":"object","properties":{`+path+`,`+
			`"offset":{"type":"integer","minimum":1,"description":"First line, counted from 1."},`+
			`"limit":{"type":"integer","minimum":1,"description":"Number of lines."}},"required":["path"],"additionalProperties":false}`, true, o.read),
		define("write", writeText, `{"type":"object","properties":{`+path+`,"content":{"type":"string"}},`+
			`"required":["path","content"],"additionalProperties":false}`, false, inDir(o.write)),
		define("edit", editText, `{"type":"object","properties":{`+path+`,`+
			`"old":{"type":"string","minLength":1},"new":{"type":"string"},"replace_all":{"type":"boolean"}},`+
			`"required":["path","old","new"],"additionalProperties":false}`, false, inDir(o.edit)),
		define("search", searchText, `{"type":"object","properties":{"pattern":{"type":"string","minLength":1,"description":"RE2 regular expression."},`+
			path+`,"glob":{"type":"string","minLength":1}},"required":["pattern"],"additionalProperties":false}`, true, inDir(o.search)),
	}
}

// body is what a tool does.
type body[A any] func(ctx context.Context, call *tool.Call, args *A) (*output, error)

// inDir opens the caller's directory for a body.
func inDir[A any](fn func(ctx context.Context, d *dir, args *A) (*output, error)) body[A] {
	return func(ctx context.Context, call *tool.Call, args *A) (*output, error) {
		d, err := openDir(ctx, call.Cwd)
		if err != nil {
			return nil, err
		}
		defer d.close()
		out, err := fn(ctx, d, args)
		return out, explain(err)
	}
}

// define builds one definition.
func define[A any](name, text, schema string, readOnly bool, do body[A]) tool.Definition {
	d := tool.Definition{
		Name:        name,
		Description: strings.TrimSpace(text),
		Parameters:  []byte(schema),
		ReadOnly:    readOnly,
		Output:      tool.Output{Render: render, Meta: meta},
		Describe:    func(raw []byte) string { return describe(name, raw) },
		Execute: func(ctx context.Context, call *tool.Call) (any, error) {
			var args A
			if err := json.Unmarshal(call.Args, &args); err != nil {
				return nil, tool.Errorf(tool.CodeInvalidArgs, "%s: %w", name, err)
			}
			out, err := do(ctx, call, &args)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			return out, nil
		},
	}
	if readOnly {
		d.ConcurrencySafe = func([]byte) bool { return true }
	}
	return d
}

func render(value any) ([]message.Block, error) {
	out, ok := value.(*output)
	if !ok {
		return nil, fmt.Errorf("unexpected value %T", value)
	}
	return []message.Block{message.Text(out.text)}, nil
}

func meta(value any) ([]byte, error) {
	out, ok := value.(*output)
	if !ok {
		return nil, fmt.Errorf("unexpected value %T", value)
	}
	return json.Marshal(out.meta)
}

func describe(name string, raw []byte) string {
	var args struct{ Path, Pattern string }
	if json.Unmarshal(raw, &args) != nil {
		return ""
	}
	switch {
	case name == "search" && args.Path != "":
		return fmt.Sprintf("search %q in %s", args.Pattern, args.Path)
	case name == "search":
		return fmt.Sprintf("search %q", args.Pattern)
	case args.Path == "":
		return name + " ."
	}
	return name + " " + args.Path
}
