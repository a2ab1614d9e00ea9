package config_test

import (
	"strings"
	"testing"
)

// TestRefusals: everything that a file may not say, with its line (core C6, seam TOOL-23, TOOL-24, TOOL-27, COMP-13). The
// files are the user's own, which no rule of trust concerns.
func TestRefusals(t *testing.T) {
	const anInt = "must be a whole number from "
	tests := []struct {
		name, yaml, want string // want: "LINE: part of the message"
	}{
		// The document.
		{"syntax", "model: [", "1: is not valid YAML"},
		{"unclosed on a later line", "version: 1\nmodel: vllm\ntools: {deny: [a}\n", "3: is not valid YAML"},
		{"no colon", "version: 1\nmodel vllm\n", "2: is not valid YAML"},
		{"unknown alias", "version: 1\nmodel: *m\n", "is not valid YAML: unknown anchor 'm' referenced"},
		{"syntax line", "version: 1\nmodel: a: b\n", "2: is not valid YAML: mapping values are not allowed"},
		{"tab", "limits:\n\tmaxDepth: 1\n", "2: is not valid YAML"},
		{"not a mapping", "\n- a\n", "2: the file must be a mapping of keys to values, not a list"},
		{"scalar", "hello", "1: the file must be a mapping of keys to values, not text"},
		{"second document", "version: 1\n---\nversion: 1\n", "2: a second document begins here"},
		{"trailing junk", "{version: 1}\n}\n", "2: is not valid YAML"},
		{"after the end", "version: 1\n...\njunk\n", "3: is not valid YAML"},
		{"duplicate", "version: 1\nmodel: vllm\nversion: 1\n", `3: duplicate key "version"; it is already on line 1`},
		{"quoted duplicate", "limits:\n  maxDepth: 1\n  'maxDepth': 2\n", `3: duplicate key "maxDepth"; it is already on line 2`},
		{"anchor", "model: &m vllm\n", "1: anchor &m: anchors are not supported"},
		{"alias", "agents:\n  default: {persona: &a x}\n  b: {persona: *a}\n", "2: anchor &a: anchors are not supported"},
		{"alias bomb", "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b]\n", "1: anchor &a"},
		{"merge", "agents:\n  default:\n    <<: {persona: x}\n", "3: merge keys"},
		{"own tag", "model: !secret vllm\n", "1: tag !secret"},
		{"number as key", "agents:\n  1: {}\n", "2: a key must be plain text, not a number"},
		{"list as key", "? [a]\n: 1\n", "1: a key must be plain text, not a list"},
		{"latin-1", "model: vllm\n# caf\xe9\n", "2: is not UTF-8 text"},
		{"escape sequence", "model: vllm\n# \x1b[2J\n", "2: holds the control character U+001B"},
		// Keys.
		{"unknown", "modell: vllm\n", `1: unknown key "modell" at the top level; known here: version, model,`},
		{"unknown deeper", "tools:\n  shell:\n    tmeout: 1s\n", `3: unknown key "tmeout" in tools.shell; known here: enabled, timeout, maxOutputBytes`},
		{"unknown in a named entry", "agents:\n  a:\n    modell: x\n", `3: unknown key "modell" in agents.a; known here: description, provider, persona,`},
		{"key of nowhere", "providers:\n  spawn: {provider: spawn, enableRunInBackground: true}\n", `2: unknown key "enableRunInBackground" in providers.spawn`},
		{"section as value", "limits: 5\n", "1: limits: must be a mapping of keys to values, not a number"},
		{"value as section", "model: {a: b}\n", "1: model: must be text, not a mapping"},
		{"no value", "model:\n", "1: model: has no value"},
		// MCP servers.
		{"mcp name", "mcp:\n  a_b: {command: x}\n", `2: mcp: "a_b" is not the name of a server`},
		{"mcp long name", "mcp:\n  " + strings.Repeat("a", 33) + ": {command: x}\n", `2: mcp: "` + strings.Repeat("a", 33) + `" is not the name of a server`},
		{"mcp own name", "mcp:\n  send: {command: x}\n", "2: mcp.send: the name is taken by this program's own tools (send_message)"},
		{"mcp agent name", "mcp:\n  subagent: {command: x}\n", "2: mcp.subagent: the name is taken by this program's own tools (subagent)"},
		{"mcp provider name", "mcp:\n  ask: {command: x}\nproviders: {a: {provider: spawn, toolName: ask_me}}\n", "2: mcp.ask: the name is taken by the tool ask_me of provider a"},
		{"mcp no way", "mcp:\n  a: {timeout: 3s}\n", "2: mcp.a: needs command, or url"},
		{"mcp two ways", "mcp:\n  a:\n    command: x\n    url: http://h\n", "4: mcp.a.url: a server is started with command or asked at url, not both"},
		{"mcp headers of a command", "mcp:\n  a:\n    command: x\n    headers: {A: b}\n", "4: mcp.a.headers: means nothing for a server with command"},
		{"mcp arguments of a url", "mcp:\n  a:\n    url: http://h\n    args: [b]\n", "4: mcp.a.args: means nothing for a server with url"},
		{"mcp url", "mcp:\n  a:\n    url: ftp://h\n", "3: mcp.a.url: must be an absolute http or https URL"},
		{"mcp key in a url", "mcp:\n  a:\n    url: http://h?key=geheim\n", "3: mcp.a.url: must be an absolute http or https URL without a query"},
		{"mcp arguments", "mcp: {a: {command: x, args: --all}}\n", "1: mcp.a.args: must be a list of arguments, not text"},
		{"mcp variable", "mcp: {a: {command: x, env: {A=B: c}}}\n", `1: mcp.a.env: "A=B" is not the name of an environment variable`},
		{"mcp reference", "mcp: {a: {command: x, envFrom: {A: $B}}}\n", "1: mcp.a.envFrom.A: must be the name of an environment variable"},
		{"mcp variable twice", "mcp:\n  a:\n    command: x\n    env: {A: b}\n    envFrom: {A: B}\n", "5: mcp.a.envFrom.A: is set by mcp.a.env.A already"},
		{"mcp header twice", "mcp:\n  a:\n    url: http://h\n    headers: {authorization: b}\n    keyEnv: B\n", "4: mcp.a.headers.authorization: is set by mcp.a.keyEnv already"},
		{"mcp header of the protocol", "mcp:\n  a:\n    url: http://h\n    headers: {mcp-session-id: b}\n", "4: mcp.a.headers.mcp-session-id: belongs to the protocol"},
		{"mcp filter", "mcp: {a: {command: x, tools: {}}}\n", "1: mcp.a.tools: must name allow or deny"},
		{"mcp unknown", "mcp: {a: {command: x, transport: sse}}\n", `1: unknown key "transport" in mcp.a; known here: command, args, env, envFrom, cwd, url, headers, headersFrom, keyEnv, timeout, isolate, trustHints, tools`},
		// Scalars.
		{"version text", "version: '1'\n", "1: version: must be a whole number, not text"},
		{"version", "version: 2\n", "1: version: this program reads version 1 only"},
		{"yes is text", "tools: {shell: {enabled: yes}}\n", "1: tools.shell.enabled: must be true or false, not text"},
		{"duration number", "tools: {shell: {timeout: 30}}\n", "1: tools.shell.timeout: must be text, not a number"},
		{"duration", "tools: {shell: {timeout: 30 s}}\n", "1: tools.shell.timeout: must be a duration"},
		{"no duration", "tools: {shell: {timeout: 0s}}\n", "1: tools.shell.timeout: must be a duration"},
		{"octal", "limits: {maxLive: 010}\n", "1: limits.maxLive: " + anInt + "1"},
		{"hexadecimal", "limits: {maxLive: 0x10}\n", "1: limits.maxLive: " + anInt + "1"},
		{"zero", "limits: {maxChildren: 0}\n", "1: limits.maxChildren: " + anInt + "1"},
		{"fraction", "limits: {maxLive: 1.5}\n", "1: limits.maxLive: " + anInt + "1"},
		{"huge", "limits: {maxLive: 99999999999999999999}\n", "1: limits.maxLive: " + anInt + "1"},
		{"list", "limits: {maxLive: [1]}\n", "1: limits.maxLive: must be a whole number, not a list"},
		{"permission", "permissions: {mode: yolo}\n", `1: permissions.mode: unknown value "yolo"; must be one of ask, allow, deny, read-only`},
		{"driver", "store: {driver: postgres}\n", `1: store.driver: unknown value "postgres"; must be one of sqlite, memory`},
		{"recovery", "recovery: {onStart: all}\n", `1: recovery.onStart: unknown value "all"; must be one of none`},
		{"persona escape", `agents: {default: {persona: "\e[2J"}}`, "1: agents.default.persona: must not hold the control character U+001B"},
		{"maxTokens", "agents: {default: {maxTokens: 0}}\n", "1: agents.default.maxTokens: " + anInt + "1"},
		{"background of the root", "agents: {default: {background: false}}\n", "1: agents.default.background: default is the root agent"},
		{"background mode of the root", "agents: {default: {backgroundMode: one-shot}}\n", "1: agents.default.backgroundMode: default is the root agent"},
		{"background mode", "providers: {spawn: {provider: spawn, backgroundMode: job}}\n", `1: providers.spawn.backgroundMode: unknown value "job"; must be one of one-shot, continuable`},
		{"background mode of an agent", "agents: {a: {backgroundMode: true}}\n", "1: agents.a.backgroundMode: must be text, not true or false"},
		{"a form for what has no answer", "providers:\n  spawn:\n    provider: spawn\n    backgroundMode: continuable\n    outputSchema: {type: object}\n",
			"5: providers.spawn.outputSchema: a continuable child (providers.spawn.backgroundMode) has no single answer to give a form to"},
		{"report delivery", "subagents: {reportDelivery: loud}\n", `1: subagents.reportDelivery: unknown value "loud"; must be one of quiet, wakeup, next-step`},
		{"notices", "subagents: {notices: never}\n", "1: subagents.notices: must be true or false"},
		{"unknown of subagents", "subagents: {report: quiet}\n", `1: unknown key "report" in subagents; known here: reportDelivery, notices, interrupt`},
		{"background", "providers: {spawn: {provider: spawn, background: one-shot}}\n", "1: providers.spawn.background: must be true or false"},
		// Models and routes.
		{"model shape", "model: ':x'\n", `1: model: ":x" is not a model; write ROUTE:MODEL`},
		{"model id", "model: 'vllm:'\n", `1: model: "vllm:" is not a model`},
		{"model space", "model: 'vllm: x'\n", `1: model: "vllm: x" is not a model`},
		{"unknown route", "\nmodel: gpt-5:x\n", `2: model: unknown route "gpt-5"; the routes are anthropic, openai, deepseek, openrouter, ollama, vllm, llamacpp, demo`},
		{"unknown route of an agent", "agents:\n  a:\n    model: nope\n", `3: agents.a.model: unknown route "nope"`},
		{"unknown route of a provider", "providers: {spawn: {provider: spawn, model: nope}}", `1: providers.spawn.model: unknown route "nope"`},
		{"route without dialect", "routes:\n  x: {baseURL: 'http://a'}\n", "2: routes.x: a route of your own needs dialect"},
		{"route without URL", "routes:\n  x: {dialect: vllm}\n", "2: routes.x: a route of your own needs baseURL"},
		{"dialect", "routes: {x: {dialect: grok, baseURL: 'http://a'}}\n", `1: routes.x.dialect: unknown value "grok"; must be one of anthropic, openai, deepseek, openrouter, ollama, vllm, llamacpp`},
		{"URL", "routes: {openai: {baseURL: api.openai.com}}\n", "1: routes.openai.baseURL: must be an absolute http or https URL"},
		{"URL scheme", "routes: {openai: {baseURL: 'ftp://x'}}\n", "1: routes.openai.baseURL: must be an absolute http or https URL"},
		{"URL port", "routes: {openai: {baseURL: 'http://x:99999'}}\n", "1: routes.openai.baseURL: must have a port"},
		{"URL query", "routes: {openai: {baseURL: 'http://x?y'}}\n", "1: routes.openai.baseURL: must be an absolute"},
		{"key instead of its variable", "routes: {openai: {keyEnv: sk-123}}\n", "1: routes.openai.keyEnv: must be the name of an environment variable"},
		{"route name", "routes: {'a:b': {}}\n", `1: routes: "a:b" is not a name`},
		{"header name", "routes: {openai: {headers: {'a b': x}}}\n", `1: routes.openai.headers: "a b" is not a header name`},
		{"header value", "routes: {openai: {headers: {a: \"x\\r\\nb: c\"}}}\n", "1: routes.openai.headers.a: must be one line"},
		{"header twice", "routes: {openai: {headers: {X-A: x, x-a: y}}}\n", "1: routes.openai.headers.x-a: is the same header"},
		{"demo", "routes:\n  demo: {model: other}\n", "2: routes.demo: the embedded demo cannot be configured"},
		// Agents, providers, filters.
		{"agent name", "agents:\n  Reviewer: {}\n", `2: agents: "Reviewer" is not a name`},
		{"filter without a list", "agents:\n  a:\n    tools: {}\n", "3: agents.a.tools: must name allow or deny"},
		{"filter commented out", "providers:\n  spawn:\n    provider: spawn\n    toolFilter:\n", "4: providers.spawn.toolFilter: must name allow or deny"},
		{"list without value", "tools:\n  allow:\n", "2: tools.allow: has no value"},
		{"list of one", "tools: {deny: bash}\n", "1: tools.deny: must be a list of tool names, not text"},
		{"list of numbers", "tools:\n  deny:\n  - bash\n  - 5\n", "4: tools.deny: must be text, not a number"},
		{"list twice", "tools:\n  deny: [bash,\n    bash]\n", `3: tools.deny: names "bash" twice`},
		{"tool name", "tools: {deny: ['b sh']}\n", `1: tools.deny: "b sh" is not a tool name`},
		{"schema as text", "agents: {x: {outputSchema: s.json}}\n", "1: agents.x.outputSchema: must be a JSON Schema, written as a mapping, not text"},
		{"schema", "agents:\n  x:\n    outputSchema:\n      type: array\n      minItems: 1\n", `4: agents.x.outputSchema: is not supported: at /type: the root's type must be "object"; at /minItems: the keyword is not supported`},
		{"schema with a date", "providers:\n  a:\n    provider: spawn\n    outputSchema: {type: object,\n      default: [2026-01-02]}\n", `5: providers.a.outputSchema: "2026-01-02" has no counterpart in JSON; quote it`},
		{"schema with a number of YAML", "agents: {x: {outputSchema: {type: object, default: 0x10}}}\n", `1: agents.x.outputSchema: "0x10" has no counterpart in JSON`},
		{"schema with no number", "agents: {x: {outputSchema: {type: object, default: .nan}}}\n", `1: agents.x.outputSchema: ".nan" has no counterpart in JSON`},
		{"schema of the root", "agents:\n  default:\n    outputSchema: {type: object}\n", "3: agents.default.outputSchema: the root's own answer takes its form from the flag --output-schema"},
		{"no provider", "providers:\n  x: {}\n", "2: providers.x: needs provider, one of spawn, fork"},
		{"unknown provider", "providers:\n  x: {provider: warp}\n", `2: providers.x.provider: unknown provider "warp"; this program has spawn, fork`},
		{"same tool", "providers:\n  a: {provider: spawn}\n  b: {provider: spawn}\n", `3: providers.b.toolName: tool name "subagent" is already the tool of provider a`},
		{"own tool", "providers: {a: {provider: spawn, toolName: bash}}\n", `1: providers.a.toolName: tool name "bash" is already one of this program's own tools`},
		{"tool of an agent", "agents: {x: {}}\nproviders: {a: {provider: spawn, toolName: subagent_x}}\n", `2: providers.a.toolName: tool name "subagent_x" is already the tool of agent x`},
		{"depth negative", "providers: {a: {provider: spawn, maxDepth: -1}}\n", "1: providers.a.maxDepth: " + anInt + "0"},
		{"depth fraction", "providers: {a: {provider: spawn, maxDepth: 1.5}}\n", "1: providers.a.maxDepth: " + anInt + "0"},
		{"depth NaN", "providers: {a: {provider: spawn, maxDepth: .nan}}\n", "1: providers.a.maxDepth: " + anInt + "0"},
		{"depth beyond safe", "providers: {a: {provider: spawn, maxDepth: 9007199254740992}}\n", "1: providers.a.maxDepth: " + anInt + "0"},
		{"depth word", "providers: {a: {provider: spawn, maxDepth: unlimited}}\n", "1: providers.a.maxDepth: " + anInt + "0 to 2147483647, or provider-managed"},
		{"memory with a path", "store:\n  driver: memory\n  path: x.db\n", "3: store.path: the memory driver has no use for it"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t).user(tt.yaml)
			got := p.faults()
			if len(got) == 0 {
				t.Fatal("accepted")
			}
			line, _ := strings.CutPrefix(got[0], "config $HOME/config.yaml:")
			if !strings.Contains(line, tt.want) || tt.want[0] <= '9' && !strings.HasPrefix(line, tt.want) {
				t.Errorf("got  %s\nwant %s", got[0], tt.want)
			}
		})
	}
}

// TestEnvironmentRefusals: a variable or flag that makes no sense is an error that names it.
func TestEnvironmentRefusals(t *testing.T) {
	for name, tt := range map[string]struct{ value, want string }{
		"OFFSHOOT_MODEL":      {"x:", "config env OFFSHOOT_MODEL: \"x:\" is not a model"},
		"OFFSHOOT_PERMISSION": {"sudo", "config env OFFSHOOT_PERMISSION: unknown value"},
		"OFFSHOOT_STORE":      {"postgres://u:secret@h/db", "config env OFFSHOOT_STORE: unknown store; write memory, sqlite,"},
		"OPENAI_BASE_URL":     {"api.openai.com", "config env OPENAI_BASE_URL: must be an absolute http or https URL"},
		"OLLAMA_HOST":         {"ftp://x", "config env OLLAMA_HOST: must be HOST, HOST:PORT"},
	} {
		p := newPlace(t)
		p.env[name] = tt.value
		got := p.faults()
		if len(got) != 1 || !strings.HasPrefix(got[0], tt.want) || strings.Contains(got[0], "secret") {
			t.Errorf("%s: got %q", name, got)
		}
	}
	p := newPlace(t)
	p.o.Flags.MaxDepth, p.o.Flags.MaxTokens = ptr(-1), ptr(0)
	if got := p.faults(); len(got) != 2 || !strings.HasPrefix(got[0], "config flag --max-tokens: must be a whole number from 1") ||
		!strings.HasPrefix(got[1], "config flag --max-depth: must be a whole number from 0") {
		t.Errorf("got %q", got)
	}
	for user, want := range map[string]string{
		"": `config flag --delegate: unknown value "codex"`, "providers: {a: {provider: fork, toolName: a}}": `config flag --delegate: no configured provider has the tool "subagent"`,
	} {
		p = newPlace(t).user(user)
		p.o.Flags.Delegate = ptr("codex")
		if got := p.faults(); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("got %q, want %s", got, want)
		}
	}
	p = newPlace(t)
	p.env["OFFSHOOT_MODEL"] = "nope:x"
	if got := p.faults(); len(got) != 1 || !strings.HasPrefix(got[0], `config env OFFSHOOT_MODEL: model: unknown route "nope"`) {
		t.Errorf("got %q", got)
	}
}
