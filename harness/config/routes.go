package config

import (
	"slices"
	"time"
)

// Route is one way to a model: a dialect of the chat protocol at an endpoint.
type Route struct {
	Name        string
	Dialect     string            // one of Dialects, or "demo"
	BaseURL     string            // absolute, without a trailing slash; empty for the embedded demo
	KeyEnv      string            // the variable that holds the key; empty: the endpoint needs none
	Headers     map[string]string // sent with every request; the values may be secret
	Model       string            // the model used when a reference names only the route; empty: none
	IdleTimeout time.Duration     // how long one read of a stream may stay silent
	MaxRetries  int               // further attempts after the first failed one
	// ContextWindow is the window of the route's models in tokens; 0: what the program knows of each, if anything.
	ContextWindow int
	BuiltIn       bool
}

// Key reads the route's key. ok is false when the route has a key variable and it is unset or empty; a route that needs no
// key gives "" and true.
func (r Route) Key(env Environ) (key string, ok bool) {
	if r.KeyEnv == "" {
		return "", true
	}
	return env.get(r.KeyEnv)
}

// BuiltinRoute is one row of the table of routes that exist without configuration.
type BuiltinRoute struct {
	Name    string
	Dialect string
	BaseURL string // the vendor's default endpoint
	KeyEnv  string // the vendor's own key variable; empty: no key is needed
	BaseEnv string // the vendor's own variable for another endpoint; empty: none
	Model   string // the default model
}

// DemoRoute is the name of the embedded model that runs when nothing is configured.
const DemoRoute = "demo"

// BuiltinRoutes returns the table of built-in routes, in the order in which they are listed. The caller owns the result.
func BuiltinRoutes() []BuiltinRoute {
	return []BuiltinRoute{
		{"anthropic", "anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "claude-sonnet-5-5"},
		{"openai", "openai", "https://api.openai.com/v1", "OPENAI_API_KEY", "OPENAI_BASE_URL", "gpt-5.4-mini"},
		{"deepseek", "deepseek", "https://api.deepseek.com", "DEEPSEEK_API_KEY", "DEEPSEEK_BASE_URL", "deepseek-v4-flash"},
		{"openrouter", "openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "OPENROUTER_BASE_URL", "openai/gpt-5.4-mini"},
		{"ollama", "ollama", "http://127.0.0.1:" + ollamaPort + "/v1", "", "OLLAMA_HOST", "qwen3"},
		{"vllm", "vllm", "http://127.0.0.1:8000/v1", "", "VLLM_BASE_URL", "default"},
		{"llamacpp", "llamacpp", "http://127.0.0.1:8080/v1", "", "LLAMACPP_BASE_URL", "default"},
		{DemoRoute, DemoRoute, "", "", "", "demo"},
	}
}

// Dialects returns the dialects that a configured route may name, in the order of the table. The caller owns the result.
func Dialects() []string {
	var names []string
	for _, b := range BuiltinRoutes() {
		if b.Name != DemoRoute {
			names = append(names, b.Dialect)
		}
	}
	return names
}

// DialectAnthropic is the dialect of the Anthropic Messages API; the others speak
// the OpenAI chat completions protocol.
const DialectAnthropic = "anthropic"

// keyOrder is the order in which a route is chosen by its key alone.
func keyOrder() []string { return []string{"anthropic", "openai", "deepseek", "openrouter"} }

func builtinIndex(name string) int {
	return slices.IndexFunc(BuiltinRoutes(), func(b BuiltinRoute) bool { return b.Name == name })
}
