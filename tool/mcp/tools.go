package mcp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/offshoot-dev/offshoot/tool"
)

// maxToolName is the longest name that package tool takes.
const maxToolName = 64

// maxPages bounds the pages of a list of tools: a server that never ends its list must
// end somewhere.
const maxPages = 64

// offer is one tool of the server as the agents get it. It is immutable.
type offer struct {
	remote   string // the server's name of it
	name     string // in the scope
	compiled *tool.Compiled
	print    [sha256.Size]byte // of what a model gets to know, and of its harmlessness
}

// plain reports whether a tool's name may hold r.
func plain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-'
}

// ToolName is the name under which a server's tool is registered: the server's name, a
// '_', and the tool's own name with a '_' for every character that a tool's name cannot
// hold. A name that is too long is cut, and ends in a digest of the whole.
func ToolName(server, remote string) string {
	name := server + "_" + strings.Map(func(r rune) rune {
		if plain(r) {
			return r
		}
		return '_'
	}, remote)
	if len(name) > maxToolName {
		sum := sha256.Sum256([]byte(remote))
		name = fmt.Sprintf("%s_%x", name[:maxToolName-9], sum[:4])
	}
	return name
}

// list asks a server for its tools. strict refuses a filter that names what the server
// does not offer; otherwise that is only told, since the server may offer it again.
func (s *Set) list(ctx context.Context, c *conn, strict bool) (offers []*offer, left []LeftOut, err error) {
	var tools []*sdk.Tool
	cursor := ""
	for page := 0; ; page++ {
		if page == maxPages {
			return nil, nil, s.errorf("its list of tools does not end after %d pages", maxPages)
		}
		res, err := c.session.ListTools(ctx, &sdk.ListToolsParams{Cursor: cursor})
		if err != nil {
			return nil, nil, s.errorf("it does not tell its tools: %w", c.explain(ctx, err))
		}
		tools = append(tools, res.Tools...)
		if cursor = res.NextCursor; cursor == "" {
			break
		}
	}
	if err := s.checkFilter(tools); err != nil {
		if strict {
			return nil, nil, err
		}
		s.opts.Logger.Warn("the filter of an MCP server", "error", err)
	}
	taken := map[string]string{}
	for _, t := range tools {
		if t == nil || s.server.Allow != nil && !slices.Contains(s.server.Allow, t.Name) || slices.Contains(s.server.Deny, t.Name) {
			continue
		}
		if len(taken) == MaxTools {
			return nil, nil, s.errorf("it offers more than %d tools; choose some of them with an allow list", MaxTools)
		}
		name := ToolName(s.server.Name, t.Name)
		if other, twice := taken[name]; twice {
			return nil, nil, s.errorf("its tools %q and %q would both be named %s; leave one of them out with a deny list", other, t.Name, name)
		}
		taken[name] = t.Name
		o, err := s.offer(name, t)
		if err != nil {
			left = append(left, LeftOut{t.Name, strings.Join(strings.Fields(err.Error()), " ")})
			continue
		}
		offers = append(offers, o)
	}
	slices.SortFunc(offers, func(a, b *offer) int { return strings.Compare(a.name, b.name) })
	return offers, left, nil
}

// checkFilter refuses names that the server does not offer.
func (s *Set) checkFilter(tools []*sdk.Tool) error {
	var known, unknown []string
	for _, t := range tools {
		if t != nil {
			known = append(known, t.Name)
		}
	}
	for _, name := range slices.Concat(s.server.Allow, s.server.Deny) {
		if !slices.Contains(known, name) {
			unknown = append(unknown, fmt.Sprintf("%q", name))
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(known)
	return s.errorf("its filter names %s, which it does not offer; it offers %s", strings.Join(unknown, ", "), strings.Join(known, ", "))
}

// offer makes a definition of what a server says of a tool.
func (s *Set) offer(name string, t *sdk.Tool) (*offer, error) {
	if t.Name == "" {
		return nil, errors.New("it has no name")
	}
	var schema bytes.Buffer
	enc := json.NewEncoder(&schema)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(t.InputSchema); err != nil {
		return nil, err
	}
	if schema.Len() > MaxSchema {
		return nil, fmt.Errorf("its schema has %d bytes; the most is %d", schema.Len(), MaxSchema)
	}
	description := t.Description
	if description == "" {
		description = t.Title
	}
	def := tool.Definition{
		Name:        name,
		Description: tool.Clip(strings.TrimSpace(description), MaxDescription),
		Parameters:  bytes.TrimSpace(schema.Bytes()),
		Timeout:     s.server.Timeout,
		ReadOnly:    s.server.TrustHints && t.Annotations != nil && t.Annotations.ReadOnlyHint,
		Execute: func(ctx context.Context, call *tool.Call) (any, error) {
			return s.execute(ctx, call, t.Name)
		},
		Describe: func([]byte) string { return s.server.Name + ": " + t.Name },
	}
	if def.ReadOnly {
		def.ConcurrencySafe = func([]byte) bool { return true }
	}
	compiled, err := tool.Compile(def)
	if err != nil {
		return nil, err
	}
	print := sha256.Sum256(fmt.Appendf(nil, "%q %q %t", def.Description, def.Parameters, def.ReadOnly))
	return &offer{remote: t.Name, name: name, compiled: compiled, print: print}, nil
}

// execute makes one call.
func (s *Set) execute(ctx context.Context, call *tool.Call, remote string) (any, error) {
	client, err := s.clientOf(call)
	if err != nil {
		return nil, err
	}
	var res *sdk.CallToolResult
	for again := true; ; again = false {
		c, err := client.get(ctx)
		if err != nil {
			return nil, err
		}
		res, err = c.call(ctx, remote, call.Args)
		if err == nil {
			break
		}
		if !again || !errors.Is(err, errUnsent) {
			return nil, s.errorf("%w", err)
		}
	}
	content := render(res)
	if res.IsError {
		return nil, tool.Errorf(tool.CodeToolFailed, "%s", joined(content))
	}
	return content, nil
}
