package main

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/session"
)

const doctorKey = "sk-never-to-be-seen"

// silentPort is an address that nothing listens on.
func silentPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // nobody connected to it
	return "http://" + l.Addr().String()
}

// patient is a home in which no server of this machine is asked.
func patient(t *testing.T) *home {
	h := newHome(t)
	for _, name := range []string{"OLLAMA_HOST", "VLLM_BASE_URL", "LLAMACPP_BASE_URL"} {
		h.env[name] = silentPort(t)
	}
	return h
}

func serveFake(t *testing.T, o fakemodel.Options) *fakemodel.Server {
	t.Helper()
	s, err := fakemodel.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// doctor runs the command both ways; neither may show a secret.
func doctor(t *testing.T, h *home) (text output, found map[string]finding) {
	t.Helper()
	text = h.run("doctor")
	js := h.run("doctor", "--json")
	if js.code != text.code {
		t.Errorf("exit codes %d and %d", text.code, js.code)
	}
	found = map[string]finding{}
	for line := range strings.Lines(js.out) {
		var f finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		found[f.title()] = f
	}
	for _, o := range []output{text, js} {
		if all := o.out + o.errOut; strings.Contains(all, "never-to-be-seen") {
			t.Errorf("a secret is shown:\n%s", all)
		}
	}
	return text, found
}

// With nothing configured nothing fails, and nothing is made.
func TestDoctorNothingConfigured(t *testing.T) {
	h := patient(t)
	o, found := doctor(t, h)
	if o.code != 0 || o.errOut != "" {
		t.Fatalf("%d, %s%s", o.code, o.out, o.errOut)
	}
	for title, status := range map[string]string{
		"store": checkOK, "configuration": checkOK, "model": checkOK, "route demo": checkOK,
		"route openai": checkNotSet, "route anthropic": checkNotSet, "route deepseek": checkNotSet, "route openrouter": checkNotSet,
		"route ollama": checkNotRunning, "route vllm": checkNotRunning, "route llamacpp": checkNotRunning,
	} {
		if got := found[title]; got.Status != status {
			t.Errorf("%s: %+v, want %s", title, got, status)
		}
	}
	for _, want := range []string{"not made yet; ", "config.yaml (not there)", "not set      route openai", "OPENAI_API_KEY\n", "connection refused"} {
		if !strings.Contains(o.out, want) {
			t.Errorf("no %q in\n%s", want, o.out)
		}
	}
	if _, err := os.Stat(h.dir); !os.IsNotExist(err) {
		t.Error("the home was made")
	}
}

// What each kind of answer comes to.
func TestDoctorRoutes(t *testing.T) {
	open := serveFake(t, fakemodel.Options{})
	keyed := serveFake(t, fakemodel.Options{Key: doctorKey})
	messages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" || r.Header.Get("X-Api-Key") != doctorKey || r.Header.Get("Anthropic-Version") == "" || r.Header.Get("Authorization") != "" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = w.Write([]byte(`{"data":[]}`)) // a client that left needs no answer
	}))
	defer messages.Close()
	answer := func(code int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if code == http.StatusFound {
				http.Redirect(w, r, open.URL()+"/models", code)
				return
			}
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body)) // a client that left needs no answer
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	for _, c := range []struct {
		name   string
		env    map[string]string
		file   string
		route  string
		status string
		key    string
		says   string
	}{
		{"accepted", map[string]string{"OPENAI_API_KEY": doctorKey, "OPENAI_BASE_URL": keyed.URL()}, "", "openai", checkOK, keyAccepted, "key accepted"},
		{"refused", map[string]string{"OPENAI_API_KEY": doctorKey + "-no", "OPENAI_BASE_URL": keyed.URL()}, "", "openai", checkFailed, keyRefused, "the key was refused (HTTP 401"},
		{"closed port", map[string]string{"OPENAI_API_KEY": doctorKey, "OPENAI_BASE_URL": silentPort(t)}, "", "openai", checkFailed, "set", "connection refused"},
		{"malformed key", map[string]string{"OPENAI_API_KEY": doctorKey + "\n", "OPENAI_BASE_URL": keyed.URL()}, "", "openai", checkFailed, keyRefused, "was not sent"},
		{"anthropic", map[string]string{"ANTHROPIC_API_KEY": doctorKey, "ANTHROPIC_BASE_URL": messages.URL}, "", "anthropic", checkOK, keyAccepted, "key accepted"},
		{"models for all", map[string]string{"OPENROUTER_API_KEY": doctorKey, "OPENROUTER_BASE_URL": open.URL()}, "", "openrouter", checkOK, "set", "key not checked"},
		{"not found", map[string]string{"OPENAI_API_KEY": doctorKey, "OPENAI_BASE_URL": answer(404, "")}, "", "openai", checkOK, "set", "key not checked"},
		{"fails", map[string]string{"OPENAI_API_KEY": doctorKey, "OPENAI_BASE_URL": answer(503, "")}, "", "openai", checkFailed, "set", "HTTP 503"},
		{"web page", map[string]string{"OPENAI_API_KEY": doctorKey, "OPENAI_BASE_URL": answer(200, "<html>")}, "", "openai", checkFailed, "set", "no list of models"},
		{"redirect", map[string]string{"OPENAI_API_KEY": doctorKey, "OPENAI_BASE_URL": answer(302, "")}, "", "openai", checkFailed, "set", "not followed"},
		{"local", map[string]string{"OLLAMA_HOST": open.Origin()}, "", "ollama", checkOK, "not needed", "answered in 0 ms"},
		{"local, something else", map[string]string{"VLLM_BASE_URL": answer(200, "hello")}, "", "vllm", checkNotRunning, "not needed", "something answers"},
		{"local, in use", map[string]string{"OFFSHOOT_MODEL": "ollama:x"}, "", "ollama", checkFailed, "not needed", "connection refused"},
		{"local, of an agent", nil, "model: demo:demo\nagents: {helper: {model: vllm:x}}\n", "vllm", checkFailed, "not needed", "connection refused"},
		{"chosen without key", nil, "model: deepseek:x\n", "deepseek", checkFailed, "not set", "DEEPSEEK_API_KEY is not set"},
		{"written without key", nil, "model: demo:demo\nroutes: {mine: {dialect: openai, baseURL: 'http://127.0.0.1:1', keyEnv: MY_KEY}}\n", "mine", checkFailed, "not set", "MY_KEY is not set"},
		{"password", map[string]string{"MY_KEY": doctorKey}, "model: demo:demo\nroutes: {mine: {dialect: openai, baseURL: 'http://me:never-to-be-seen@127.0.0.1:1', keyEnv: MY_KEY, headers: {X-Secret: never-to-be-seen}}}\n", "mine", checkFailed, "set", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := patient(t)
			for name, value := range c.env {
				h.env[name] = value
			}
			if c.file != "" {
				h.write(filepath.Join(h.dir, "config.yaml"), c.file)
			}
			o, found := doctor(t, h)
			f := found["route "+c.route]
			if f.Status != c.status || f.Key != c.key || !strings.Contains(f.Detail, c.says) {
				t.Errorf("%+v, want %s, key %s, %q", f, c.status, c.key, c.says)
			}
			wantCode := 0
			if c.status == checkFailed {
				wantCode = 1
			}
			if o.code != wantCode || (o.code == 0) != (o.errOut == "") {
				t.Errorf("exit code %d\n%s%s", o.code, o.out, o.errOut)
			}
		})
	}
}

// An endpoint that accepts and says nothing is given up.
func TestDoctorTimeout(t *testing.T) {
	gate := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-gate }))
	defer s.Close()
	defer close(gate)
	p := &prober{now: time.Now, timeout: 30 * time.Millisecond}
	res := p.probe(t.Context(), config.Route{Dialect: "openai", BaseURL: s.URL}, doctorKey)
	if res.ok || res.reached || res.text != "no answer within 30ms" {
		t.Errorf("%+v", res)
	}
}

// OpenRouter lists its models to everybody: whether it takes a key it says elsewhere.
func TestDoctorOpenRouterKey(t *testing.T) {
	for key, want := range map[string]string{"good": keyAccepted, "bad": keyRefused} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/key" && r.Header.Get("Authorization") != "Bearer good" {
				w.WriteHeader(http.StatusUnauthorized)
			}
			_, _ = w.Write([]byte(`{"data":[]}`)) // a client that left needs no answer
		}))
		p := &prober{now: time.Now, timeout: time.Minute}
		if res := p.probe(t.Context(), config.Route{Dialect: "openrouter", BaseURL: s.URL}, key); res.key != want || res.ok != (key == "good") {
			t.Errorf("%s: %+v", key, res)
		}
		s.Close()
	}
}

func TestDoctorStoreAndConfiguration(t *testing.T) {
	t.Run("healthy", func(t *testing.T) {
		h := patient(t)
		library(t, h)
		before := snapshot(t, h.dir)
		o, found := doctor(t, h)
		f := found["store"]
		if o.code != 0 || f.Status != checkOK || *f.Sessions != 3 || *f.SizeBytes == 0 || f.Path != filepath.Join(h.dir, "offshoot.db") {
			t.Errorf("%d, %+v", o.code, f)
		}
		if snapshot(t, h.dir) != before {
			t.Error("files changed")
		}
	})
	t.Run("unreadable session", func(t *testing.T) {
		h := patient(t)
		a := openArchive(t, h)
		a.raw(session.Header{ID: "bad", Version: 7, CreatedAt: epoch}, "bad", nil)
		a.close()
		o, found := doctor(t, h)
		if f := found["store"]; o.code != 1 || f.Status != checkFailed || !strings.Contains(f.Detail, "1 of 1 session cannot be read") {
			t.Errorf("%d, %+v", o.code, f)
		}
	})
	t.Run("no database", func(t *testing.T) {
		h := patient(t)
		h.write(filepath.Join(h.dir, "offshoot.db"), strings.Repeat("no database ", 200))
		o, found := doctor(t, h)
		if f := found["store"]; o.code != 1 || f.Status != checkFailed || !strings.Contains(f.Detail, "not an Offshoot store") {
			t.Errorf("%d, %+v", o.code, f)
		}
		if !strings.Contains(o.out, "FAILED       store") || !strings.HasPrefix(o.errOut, "offshoot: doctor: 1 fault; the first: store: ") {
			t.Errorf("%s%s", o.out, o.errOut)
		}
	})
	t.Run("faults in a file", func(t *testing.T) {
		h := patient(t)
		h.write(filepath.Join(h.dir, "config.yaml"), "modell: x\nversion: 2\n")
		o := h.run("doctor")
		if o.code != 1 || strings.Count(o.out, "FAILED       configuration") != 2 || !strings.Contains(o.out, `unknown key "modell"`) || !strings.Contains(o.out, "not checked  store, routes") {
			t.Errorf("%d, %s%s", o.code, o.out, o.errOut)
		}
	})
	t.Run("a fault that only a system shows", func(t *testing.T) {
		h := patient(t)
		h.write(filepath.Join(h.dir, "config.yaml"), "model: demo:demo\ntools: {deny: [bahs]}\n")
		o, found := doctor(t, h)
		if f := found["configuration"]; o.code != 1 || !strings.Contains(f.Detail, `no tool is named "bahs"`) {
			t.Errorf("%d, %+v", o.code, f)
		}
	})
	t.Run("asked wrongly", func(t *testing.T) {
		if o := patient(t).run("doctor", "--config="); o.code != 2 {
			t.Errorf("%d, %s", o.code, o.errOut)
		}
	})
}

func TestBytesText(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 3 << 20: "3.0 MiB", 5 << 39: "2.5 TiB", 1 << 62: "4096.0 PiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

// Of each MCP server: whether it is found, starts and answers, and its tools.
func TestDoctorServers(t *testing.T) {
	h := patient(t)
	server := filepath.Join(t.TempDir(), "server")
	const script = `#!/bin/sh
[ "$THE_KEY" = sk-never-to-be-seen ] || exit 4
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case $line in
  *'"method":"initialize"'*) body='"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"9"}}';;
  *'"method":"tools/list"'*) body='"result":{"tools":[{"name":"look","inputSchema":{"type":"object"}},{"name":"odd","inputSchema":{"type":"array"}}]}';;
  *) body='"error":{"code":-32601,"message":"unknown"}';;
  esac
  [ -z "$id" ] || printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$body"
done
`
	if err := os.WriteFile(server, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	h.env["MY_KEY"] = doctorKey
	h.write(filepath.Join(h.dir, "config.yaml"), "version: 1\nmcp:\n  eye: {command: "+server+", envFrom: {THE_KEY: MY_KEY}}\n"+
		"  keyless: {command: "+server+"}\n  lost: {command: no-such-program-here}\n  unset: {command: sh, envFrom: {A: NOT_SET_ANYWHERE}}\n"+
		"  web: {url: \"http://u:never-to-be-seen@"+strings.TrimPrefix(silentPort(t), "http://")+"/mcp\"}\n")
	o, found := doctor(t, h)
	if o.code != 1 {
		t.Errorf("exit code %d", o.code)
	}
	eye := found["mcp eye"]
	if eye.Status != checkOK || eye.Path != server || eye.Server != "sh 9, protocol 2025-06-18" || *eye.Tools != 1 || len(eye.LeftOut) != 1 || eye.LeftOut[0].Tool != "odd" {
		t.Errorf("%+v", eye)
	}
	for title, want := range map[string]string{
		"mcp keyless": "exit code 4", "mcp lost": "no-such-program-here", "mcp unset": "NOT_SET_ANYWHERE is not set", "mcp web": "connection refused",
	} {
		if f := found[title]; f.Status != checkFailed || !strings.Contains(f.Detail, want) {
			t.Errorf("%s: %+v", title, f)
		}
	}
	if want := "ok           mcp eye           " + server + ": sh 9, protocol 2025-06-18; 1 tool; left out: odd ("; !strings.Contains(o.out, want) {
		t.Errorf("no %q in\n%s", want, o.out)
	}
}

// Each product is started, asked and ended; not in a folder that is not trusted.
func TestDoctorProducts(t *testing.T) {
	h := newHome(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(h.dir, "mark")
	h.write(filepath.Join(h.dir, "config.yaml"), "version: 1\nproviders:\n"+
		"  eye: {provider: dsh, command: "+exe+", env: {FAKEAGENT_AS: dsh, FAKEAGENT: record="+mark+"}}\n"+
		"  deaf: {provider: dsh, command: "+exe+", env: {FAKEAGENT_AS: dsh, FAKEAGENT: handshake=exit:3}}\n"+
		"  lost: {provider: dsh, command: no-such-program-here}\n"+
		"  unset: {provider: dsh, command: "+exe+", envFrom: {A: NOT_SET_ANYWHERE}}\n")
	_, found := doctor(t, h)
	for _, title := range []string{"product eye", "product deaf"} {
		if f := found[title]; f.Status != checkSkipped || !strings.Contains(f.Detail, "offshoot trust "+h.work) {
			t.Errorf("not trusted: %s: %+v", title, f)
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("it was started in a folder that is not trusted")
	}
	h.must("trust")
	o, found := doctor(t, h)
	if o.code != 1 {
		t.Errorf("exit code %d", o.code)
	}
	if eye := found["product eye"]; eye.Status != checkOK || eye.Path != exe || eye.Server != "fake runtime 0.0.1" || eye.LatencyMS == nil {
		t.Errorf("%+v", eye)
	}
	for title, want := range map[string]string{
		"product deaf": "handshake: the program ended: exit status 3", "product lost": `"no-such-program-here" is not installed`,
		"product unset": "NOT_SET_ANYWHERE is not set",
	} {
		if f := found[title]; f.Status != checkFailed || !strings.Contains(f.Detail, want) {
			t.Errorf("%s: %+v", title, f)
		}
	}
	if want := exe + ": fake runtime 0.0.1; ready in "; !strings.Contains(o.out, want) || !strings.Contains(o.out, " ms; takes a prompt\n") {
		t.Errorf("no %q in\n%s", want, o.out)
	}
}
