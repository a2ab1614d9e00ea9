package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/harness/config"
)

// TestChooseModel: which model runs, or what the person is told to set.
func TestChooseModel(t *testing.T) {
	const all = "OPENAI_API_KEY DEEPSEEK_API_KEY OPENROUTER_API_KEY"
	tests := []struct {
		name          string
		user, project string
		keys          string
		env, flag     string
		want          string // "ROUTE:MODEL  # SOURCE", or the error after its place
	}{
		{name: "nothing: the demo", want: "demo:demo  # default"},
		{name: "keys in order", keys: all, want: "openai:gpt-5.4-mini  # env OPENAI_API_KEY"},
		{name: "deepseek before openrouter", keys: "DEEPSEEK_API_KEY OPENROUTER_API_KEY", want: "deepseek:deepseek-v4-flash  # env DEEPSEEK_API_KEY"},
		{name: "openrouter", keys: "OPENROUTER_API_KEY", want: "openrouter:openai/gpt-5.4-mini  # env OPENROUTER_API_KEY"},
		{name: "a key and a file", user: "version: 1", keys: "DEEPSEEK_API_KEY", want: "deepseek:deepseek-v4-flash  # env DEEPSEEK_API_KEY"},
		{name: "own key variable", user: "routes: {openai: {keyEnv: MINE, model: m}}", keys: "MINE", want: "openai:m  # env MINE"},
		{
			name: "a user file and no model", user: "version: 1",
			want: "config: no model: give --model ROUTE:MODEL, set OFFSHOOT_MODEL, write model: ROUTE:MODEL in $HOME/config.yaml, or set one of ANTHROPIC_API_KEY, OPENAI_API_KEY, DEEPSEEK_API_KEY, OPENROUTER_API_KEY; --model demo runs the embedded demo",
		},
		{name: "a project file and no model", project: "version: 1", want: "config: no model: "},
		{name: "user", user: "model: ollama", keys: all, want: "ollama:qwen3  # user $HOME/config.yaml:1"},
		{name: "project over user", user: "model: ollama", project: "model: vllm:x", want: "vllm:x  # project $WORK/offshoot.yaml:1"},
		{name: "env over project", project: "model: vllm:x", env: "llamacpp", want: "llamacpp:default  # env OFFSHOOT_MODEL"},
		{name: "flag over env", env: "llamacpp", flag: "ollama:q", want: "ollama:q  # flag --model"},
		{name: "the default agent's own", user: "model: ollama\nagents: {default: {model: vllm}}", want: "vllm:default  # user $HOME/config.yaml:2"},
		{name: "flag over the default agent's own", user: "agents: {default: {model: vllm}}", flag: "demo", want: "demo:demo  # flag --model"},
		{name: "absent key", flag: "openai:any", want: "config flag --model: model: route openai needs a key: set OPENAI_API_KEY"},
		{name: "absent key, file", user: "\nmodel: deepseek", keys: "OPENAI_API_KEY", want: "config $HOME/config.yaml:2: model: route deepseek needs a key: set DEEPSEEK_API_KEY"},
		{name: "a model nobody knows", flag: "ollama:no:such/model", want: "ollama:no:such/model  # flag --model"},
		{
			name: "route without a model", user: "routes: {own: {dialect: openai, baseURL: 'http://h'}}\nmodel: own",
			want: "config $HOME/config.yaml:2: model: route own has no default model; write own:MODEL",
		},
		{name: "endpoint without a key", user: "routes: {openai: {keyEnv: ''}}\nmodel: openai", want: "openai:gpt-5.4-mini  # user $HOME/config.yaml:2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t).user(tt.user).project(tt.project)
			for name := range strings.FieldsSeq(tt.keys) {
				p.env[name] = "secret"
			}
			p.env["OFFSHOOT_MODEL"] = tt.env // set to nothing is not set
			if tt.flag != "" {
				p.o.Flags.Model = &tt.flag
			}
			e := p.load()
			c, err := config.ChooseModel(e, p.o.Env)
			got := c.Ref.String() + "  # " + c.Source.String()
			if err != nil {
				got = err.Error()
				if f := config.Faults(err); len(f) != 1 || f[0].Kind != config.KindUsage {
					t.Errorf("faults %v", f)
				}
			} else if c.Route.Name != c.Ref.Route {
				t.Errorf("route %q", c.Route.Name)
			}
			if got := p.short(got); got != tt.want && (!strings.HasSuffix(tt.want, ": ") || !strings.HasPrefix(got, tt.want)) {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	p := newPlace(t).user("routes: {zeta: {dialect: vllm, baseURL: 'http://z'}, alpha: {dialect: vllm, baseURL: 'http://a'}}")
	e := p.load()
	_, err := e.Resolve(config.ModelRef{Route: "nope"}, "agents.x.model", p.o.Env)
	want := `config: agents.x.model: unknown route "nope"; the routes are anthropic, openai, deepseek, openrouter, ollama, vllm, llamacpp, demo, alpha, zeta`
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	if key, ok := e.Config.Routes["zeta"].Key(nil); key != "" || !ok {
		t.Errorf("a route without a key variable: %q, %v", key, ok)
	}
}

func TestParse(t *testing.T) {
	for in, want := range map[string]config.ModelRef{
		"ollama:qwen3:8b": {Route: "ollama", Model: "qwen3:8b"},
		"openai":          {Route: "openai"},
	} {
		if got, err := config.ParseModelRef(in); err != nil || got != want || got.String() != in {
			t.Errorf("ParseModelRef(%q) = %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", " ", ":", "a:", ":b", "a b", "a:b c", "a\x1b:b"} {
		if got, err := config.ParseModelRef(in); err == nil {
			t.Errorf("ParseModelRef(%q) = %+v", in, got)
		}
	}
	if got, err := config.ParsePermission("read-only"); err != nil || got != config.PermissionReadOnly {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := config.ParsePermission("root"); err == nil {
		t.Error("root is a permission")
	}
}

// TestOllamaBaseURL: the forms that Ollama's own variable has.
func TestOllamaBaseURL(t *testing.T) {
	want := map[string]string{
		"gpu":                      "http://gpu:11434/v1",
		"gpu:8000":                 "http://gpu:8000/v1",
		" 'gpu' ":                  "http://gpu:11434/v1",
		":8000":                    "http://127.0.0.1:8000/v1",
		"0.0.0.0":                  "http://127.0.0.1:11434/v1",
		"0.0.0.0:80":               "http://127.0.0.1:80/v1",
		"http://0.0.0.0:11434":     "http://127.0.0.1:11434/v1",
		"::":                       "http://[::1]:11434/v1",
		"[::]:9":                   "http://[::1]:9/v1",
		"fe80::1":                  "http://[fe80::1]:11434/v1",
		"[::1]":                    "http://[::1]:11434/v1",
		"10.0.0.5":                 "http://10.0.0.5:11434/v1",
		"http://gpu":               "http://gpu:80/v1",
		"https://gpu":              "https://gpu:443/v1",
		"https://gpu:1/":           "https://gpu:1/v1",
		"https://host.example/ol/": "https://host.example:443/ol/v1",
		"ftp://gpu":                "",
		"gpu:port":                 "",
		"gpu:0":                    "",
		"gpu:70000":                "",
		"a b":                      "",
		"user:pw@gpu":              "",
		"gpu?x":                    "",
	}
	got := map[string]string{}
	for in := range want {
		base, ok := config.OllamaBaseURL(in)
		if ok != (base != "") {
			t.Errorf("%q: %q, %v", in, base, ok)
		}
		got[in] = base
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
