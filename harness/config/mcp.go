package config

import (
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// MCPServer is a server whose tools agents get under NAME_TOOL: a program that is started (Command), or a service that is
// asked over HTTP (URL).
type MCPServer struct {
	Name string

	Command string            // looked up in PATH, or absolute
	Args    []string          //
	Env     map[string]string // merged into an environment without secrets; the values may be secret
	EnvFrom map[string]string // variables of the server, each by the variable of this program that holds its value
	Dir     string            // absolute; empty: the folder that is worked in

	URL         string            // absolute
	Headers     map[string]string // sent with every request; the values may be secret
	HeadersFrom map[string]string // headers, each by the variable that holds its value
	KeyEnv      string            // the variable of a key, sent as "Authorization: Bearer KEY"; empty: none

	Timeout    time.Duration // of one call
	Isolate    bool          // whether each agent has one of its own
	TrustHints bool          // whether it is believed that a tool only reads
	Tools      Filter        // by the server's own names
}

// program is a command: a path if it has a separator, else a name that is looked up.
type program string

// arguments are those of a command. Unlike tool filters, those of a later layer replace those of an earlier one.
type arguments []string

// variable is the name of a variable whose value is not rendered.
type variable string

// maxServer is the longest name of a server: it stands in the names of its tools.
const maxServer = 32

func mcpRules() []rule {
	row := func(key string, read func(*yaml.Node) (any, int, string), set func(*MCPServer, any)) rule {
		return rule{path: "mcp.*." + key, read: read, set: func(c *Config, names []string, v any) {
			edit(c.MCP, names[0], func(s *MCPServer) { set(s, v) })
		}}
	}
	table := func(key string, name parser, value parser, field func(*MCPServer) *map[string]string) []rule {
		return []rule{
			{path: "mcp.*." + key, names: name},
			{path: "mcp.*." + key + ".*", read: text(value), set: func(c *Config, names []string, v any) {
				edit(c.MCP, names[0], func(s *MCPServer) { putText(field(s), names[1], v) })
			}},
		}
	}
	folder := row("cwd", text(parseLine), func(s *MCPServer, v any) { s.Dir = v.(string) })
	folder.folder = true
	return slices.Concat(
		[]rule{
			{path: "mcp", policy: refused, names: parseServer},
			{path: "mcp.*", set: func(c *Config, names []string, _ any) {
				edit(c.MCP, names[0], func(s *MCPServer) { s.Name = names[0] })
			}},
			row("command", text(parseProgram), func(s *MCPServer, v any) { s.Command = string(v.(program)) }),
			row("args", argumentList, func(s *MCPServer, v any) { s.Args = v.(arguments) }),
		},
		table("env", parseVariableName, parseSecret, func(s *MCPServer) *map[string]string { return &s.Env }),
		table("envFrom", parseVariableName, parseReference, func(s *MCPServer) *map[string]string { return &s.EnvFrom }),
		[]rule{
			folder,
			row("url", text(parseServerURL), func(s *MCPServer, v any) { s.URL = string(v.(endpoint)) }),
		},
		table("headers", parseHeaderName, parseHeaderValue, func(s *MCPServer) *map[string]string { return &s.Headers }),
		table("headersFrom", parseHeaderName, parseReference, func(s *MCPServer) *map[string]string { return &s.HeadersFrom }),
		[]rule{
			row("keyEnv", text(parseVariable), func(s *MCPServer, v any) { s.KeyEnv = v.(string) }),
			row("timeout", text(parseDuration), func(s *MCPServer, v any) { s.Timeout = v.(time.Duration) }),
			row("isolate", boolean, func(s *MCPServer, v any) { s.Isolate = v.(bool) }),
			row("trustHints", boolean, func(s *MCPServer, v any) { s.TrustHints = v.(bool) }),
			{path: "mcp.*.tools", filter: true},
			row("tools.allow", remoteTools, func(s *MCPServer, v any) { s.Tools.Allow = v.([]string) }),
			row("tools.deny", remoteTools, func(s *MCPServer, v any) { s.Tools.Deny = v.([]string) }),
		},
	)
}

// parseServer takes names of which none can be the beginning of another's tool: there is no _ in them.
func parseServer(text string) (any, string) {
	if _, problem := parseName(text); problem != "" || len(text) > maxServer {
		return nil, fmt.Sprintf("%q is not the name of a server; it is a lower-case letter, then lower-case letters, digits and -, at most %d in all", text, maxServer)
	}
	return text, ""
}

func parseProgram(text string) (any, string) {
	v, problem := parseLine(text)
	if problem != "" {
		return nil, problem
	}
	return program(v.(string)), ""
}

func parseServerURL(text string) (any, string) {
	if _, problem := parseBaseURL(text); problem != "" {
		return nil, problem
	}
	return endpoint(text), "" // with its trailing slash, which may matter to a server
}

func parseVariableName(text string) (any, string) {
	if _, problem := parseVariable(text); problem != "" || text == "" {
		return nil, fmt.Sprintf("%q is not the name of an environment variable", text)
	}
	return text, ""
}

func parseReference(text string) (any, string) {
	if _, problem := parseVariable(text); problem != "" || text == "" {
		return nil, "must be the name of an environment variable of this program"
	}
	return variable(text), ""
}

// parseSecret takes the value of a variable; it may have several lines.
func parseSecret(text string) (any, string) {
	if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }) {
		return nil, "must not hold control characters"
	}
	return secret(text), ""
}

func argumentList(n *yaml.Node) (any, int, string) {
	items, line, problem := texts(n, "arguments", func(text string) (any, string) {
		if strings.ContainsRune(text, 0) {
			return nil, "must not hold the character U+0000"
		}
		return text, ""
	})
	return arguments(items), line, problem
}

// remoteTools takes the names that a server gives to its tools.
func remoteTools(n *yaml.Node) (any, int, string) {
	items, line, problem := texts(n, "tool names", parseLine)
	return items, line, problem
}

// texts reads a list of texts; the list is never nil.
func texts(n *yaml.Node, what string, parse parser) ([]string, int, string) {
	if n.Kind != yaml.SequenceNode {
		return nil, n.Line, "must be a list of " + what + ", not " + describe(n)
	}
	list := []string{}
	for _, item := range n.Content {
		v, line, problem := text(parse)(item)
		if problem != "" {
			return nil, line, problem
		}
		list = append(list, v.(string))
	}
	return list, n.Line, ""
}

// checkServers wants one way to each server, nothing that belongs to the other way, and tools whose names are no others'.
func checkServers(m settings, f *faults) {
	ways := map[string][]string{
		"command": {"args", "env", "envFrom", "cwd"},
		"url":     {"headers", "headersFrom", "keyEnv"},
	}
	for _, name := range m.entries("mcp") {
		key := "mcp." + name
		at := m[key].source
		_, local := m[key+".command"]
		_, remote := m[key+".url"]
		switch {
		case local && remote:
			f.at(m[key+".url"].source, key+".url", "a server is started with command or asked at url, not both")
		case !local && !remote:
			f.at(at, key, "needs command, or url")
		case local:
			foreign(m, key, "command", ways["url"], f)
		default:
			foreign(m, key, "url", ways["command"], f)
		}
		checkSent(m, key, f)
		for _, tool := range slices.Concat(modelTools(), []string{agentToolPrefix}) {
			if strings.HasPrefix(tool, name+"_") {
				f.at(at, key, "the name is taken by this program's own tools (%s)", strings.TrimSuffix(tool, "_"))
				break
			}
		}
		for _, provider := range m.entries("providers") {
			if tool := m["providers."+provider+".toolName"]; strings.HasPrefix(tool.value.(string), name+"_") {
				f.at(at, key, "the name is taken by the tool %s of provider %s (%s)", tool.value, provider, m["providers."+provider].source)
			}
		}
	}
}

// foreign refuses keys that mean nothing for a server that is reached in one way.
func foreign(m settings, key, way string, others []string, f *faults) {
	for _, other := range others {
		if s, ok := m[key+"."+other]; ok {
			f.at(s.source, s.key, "means nothing for a server with %s", way)
		}
	}
}

// checkSent wants one value for each header and variable.
func checkSent(m settings, key string, f *faults) {
	seen := map[string]string{}
	if s, ok := m[key+".keyEnv"]; ok && s.value != "" {
		seen["headers Authorization"] = s.key
	}
	for _, s := range m.sorted() {
		if len(s.names) != 2 || s.isSection() || !strings.HasPrefix(s.key, key+".") {
			continue
		}
		slot := "env " + s.names[1]
		if strings.HasPrefix(s.key, key+".headers") {
			header := textproto.CanonicalMIMEHeaderKey(s.names[1])
			slot = "headers " + header
			if strings.HasPrefix(header, "Mcp-") || slices.Contains([]string{"Accept", "Content-Type", "Content-Length", "Host", "Last-Event-Id"}, header) {
				f.at(s.source, s.key, "belongs to the protocol and cannot be set")
			}
		}
		if other, twice := seen[slot]; twice {
			f.at(s.source, s.key, "is set by %s already", other)
		}
		seen[slot] = s.key
	}
}

// Secrets returns the environment and the headers of a server, with what they take from variables of env. A variable that
// is not set is an *Error of KindUsage that stands where it is named.
func (e *Effective) Secrets(server string, env Environ) (environ, headers map[string]string, err error) {
	s := e.Config.MCP[server]
	fill := func(section string, given, from map[string]string) (map[string]string, error) {
		all := map[string]string{}
		for name, value := range given {
			all[name] = value
		}
		for name, variable := range from {
			value, ok := env.get(variable)
			if !ok {
				return nil, e.Fault("mcp."+server+"."+section+"."+name, "%s is not set", variable)
			}
			all[name] = value
		}
		return all, nil
	}
	if environ, err = fill("envFrom", s.Env, s.EnvFrom); err != nil {
		return nil, nil, err
	}
	if headers, err = fill("headersFrom", s.Headers, s.HeadersFrom); err != nil {
		return nil, nil, err
	}
	if s.KeyEnv != "" {
		key, ok := env.get(s.KeyEnv)
		if !ok {
			return nil, nil, e.Fault("mcp."+server+".keyEnv", "%s is not set", s.KeyEnv)
		}
		headers["Authorization"] = "Bearer " + key
	}
	return environ, headers, nil
}
