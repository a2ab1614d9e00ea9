//go:build unix

package main

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// modelCase is one thing that an endpoint may do.
type modelCase struct {
	name, prompt string
	route        []string // its configuration; nil is that nothing is tried again
	args         []string
	code         int
	stdout       string
	stderr       string   // a regular expression for the line that says what went wrong; HOST stands for the endpoint
	ends         []string // of the turns; nil is one that completed
	requests     int      // how many the endpoint saw; 0 is one
	check        func(t *testing.T, root *storedLog, s *fakemodel.Server)
}

func modelCases(d fakemodel.Dialect) []modelCase {
	const twice = 2
	once := []string{"maxRetries: 1"}
	idle := []string{"maxRetries: 0", "idleTimeout: 300ms"}
	failed := []string{"error"}
	name := regexp.QuoteMeta(string(d))
	at := name + ":fake-model at HOST: "
	return []modelCase{
		{name: "reply", prompt: "[[fake:reply hello]]", stdout: "hello\n"},
		{name: "big", prompt: "[[fake:big 300000 50]]", stdout: strings.Repeat("x", 300000) + "\n"},
		{name: "usage", prompt: "[[fake:reply hello]] [[fake:usage prompt=100 cached=60 completion=20 reasoning=5]]", stdout: "hello\n", check: func(t *testing.T, root *storedLog, _ *fakemodel.Server) {
			want := &message.Usage{InputTokens: 40, CacheReadTokens: 60, OutputTokens: 20, ReasoningTokens: 5, HasCacheRead: true, HasReasoning: true}
			if diff := cmp.Diff(want, payloads[*session.AssistantMessage](t, root)[0].Usage); diff != "" {
				t.Errorf("usage (-want +got):\n%s", diff)
			}
		}},
		{name: "reasoning", prompt: `[[fake:think I should look]] [[fake:tool read {"path":"a.txt"}]] [[fake:think now I know]] [[fake:reply it says {{match:alpha \w+}}]]`,
			stdout: "it says alpha one\n", requests: 2, check: checkReasoning(d)},
		{name: "parallel tools", prompt: `[[fake:tool read {"path":"a.txt"}]] [[fake:tool read {"path":"b.txt"}]] [[fake:tool list {}]]` +
			`[[fake:reply {{match:alpha \w+}}, {{match:beta \w+}}, {{match:b.txt}}]]`, stdout: "alpha one, beta two, b.txt\n", requests: 2},
		{name: "failing tools", prompt: `[[fake:tool read {"path":"../secret"}]] [[fake:tool nothing {}]] [[fake:tool read not-json]] [[fake:reply went on]]`,
			stdout: "went on\n", requests: 2, check: func(t *testing.T, root *storedLog, _ *fakemodel.Server) {
				if got := codes(t, root); len(got) != 3 {
					t.Errorf("codes %v", got)
				}
			}},
		{name: "length cut", prompt: "[[fake:length half an ans]]", code: 1, stdout: "half an ans\n", stderr: "max-tokens", ends: []string{"max-tokens"}},
		{name: "length cut in a call", prompt: `[[fake:length-tool read {"path":"a.txt"}]]`, code: 1, stderr: "max-tokens", ends: []string{"max-tokens"}},
		{name: "refusal", prompt: "[[fake:refusal I will not]]", code: 1, stdout: "I will not\n", stderr: "the model declined the task", ends: []string{"refusal"}},
		{name: "content filter", prompt: "[[fake:refusal]]", code: 1, stderr: "the model declined the task", ends: []string{"refusal"}},
		{name: "empty", prompt: "[[fake:empty]]", code: 1, stderr: at + "EMPTY_RESPONSE: ", ends: failed},
		{name: "empty once", prompt: "[[fake:empty times=1]] [[fake:reply then this]]", route: once, stdout: "then this\n", requests: twice},
		{name: "400", prompt: "[[fake:fail bad-request]]", code: 1, stderr: at + "INVALID_REQUEST: .*'messages'", ends: failed},
		{name: "context length", prompt: "[[fake:fail context-length]]", code: 1, stderr: at + "CONTEXT_WINDOW_EXCEEDED: .*maximum context length", ends: failed},
		{name: "quota", prompt: "[[fake:fail quota]]", code: 1, stderr: at + "QUOTA: ", ends: failed},
		{name: "429 in seconds", prompt: "[[fake:status 429 Retry-After=1 times=1]] [[fake:reply in time]]", route: once, stdout: "in time\n", requests: twice, check: checkDelay(1000, 1000)},
		{name: "429 as a date", prompt: "[[fake:status 429 Retry-After=date:2 times=1]] [[fake:reply in time]]", route: once, stdout: "in time\n", requests: twice, check: checkDelay(500, 2000)},
		{name: "429 too long", prompt: "[[fake:status 429 Retry-After=3600]]", route: once, code: 1, stderr: at + "RATE_LIMIT: ", ends: failed},
		{name: "500 once", prompt: "[[fake:fail server-error times=1]] [[fake:reply at last]]", route: once, stdout: "at last\n", requests: twice},
		{name: "500 for good", prompt: "[[fake:fail server-error]]", route: once, code: 1, stderr: at + "SERVER: .*500", ends: failed, requests: twice},
		{name: "error mid-stream", prompt: "[[fake:reply half]] [[fake:midstream-error it broke]]", code: 1, stderr: at + "SERVER: .*it broke", ends: failed},
		{name: "cut before the answer", prompt: "[[fake:cut]]", code: 1, stderr: at + "TRANSPORT: ", ends: failed},
		{name: "cut stream", prompt: "[[fake:reply half]] [[fake:cut]]", code: 1, stderr: at + "(STREAM_CLOSED|TRANSPORT): ", ends: failed},
		{name: "reset stream", prompt: "[[fake:reply half]] [[fake:reset]]", code: 1, stderr: at + "(STREAM_CLOSED|TRANSPORT): ", ends: failed},
		{name: "clean end before done", prompt: "[[fake:reply half]] [[fake:eof]]", code: 1, stderr: at + "STREAM_CLOSED: ", ends: failed},
		{name: "cut once", prompt: "[[fake:reply half]] [[fake:cut times=1]] [[fake:reply  and whole]]", route: once, stdout: "halfand whole\n", requests: twice},
		{name: "idle before headers", prompt: "[[fake:stall]]", route: idle, code: 1, stderr: at + "TIMEOUT: ", ends: failed},
		{name: "idle after headers", prompt: "[[fake:headers]] [[fake:stall]]", route: idle, code: 1, stderr: at + "TIMEOUT: ", ends: failed},
		{name: "idle mid-stream", prompt: "[[fake:reply half]] [[fake:stall]]", route: idle, code: 1, stderr: at + "TIMEOUT: ", ends: failed},
		{name: "garbage", prompt: "[[fake:reply half]] [[fake:garbage]]", code: 1, stderr: at + "MALFORMED_RESPONSE: ", ends: failed},
		{name: "a web page", prompt: "[[fake:html]]", code: 1, stderr: at + "MALFORMED_RESPONSE: ", ends: failed},
		{name: "timeout while silent", prompt: "[[fake:stall]]", args: []string{"--timeout", "400ms"}, code: 1,
			stderr: "timed out after 400ms; the model was " + name + ":fake-model at HOST$", ends: []string{"aborted"}},
		{name: "timeout between attempts", prompt: "[[fake:fail server-error]]", args: []string{"--timeout", "1200ms"}, route: []string{"maxRetries: 50"}, code: 1, requests: -1,
			stderr: "timed out after 1.2s; the last model failure was " + at + "SERVER: ", ends: []string{"aborted"}},
	}
}

// checkReasoning: what a model thought is stored where the vendor tells it, and
// goes back with the calls that it led to (core M24); the endpoint is strict on that.
func checkReasoning(d fakemodel.Dialect) func(*testing.T, *storedLog, *fakemodel.Server) {
	return func(t *testing.T, root *storedLog, s *fakemodel.Server) {
		var stored []string
		for _, m := range payloads[*session.AssistantMessage](t, root) {
			for _, b := range m.Message.Content {
				if b.Type == message.BlockReasoning {
					stored = append(stored, b.Text)
				}
			}
		}
		var want []string
		if d == fakemodel.DeepSeek {
			want = []string{"I should look", "now I know"}
		}
		if !slices.Equal(stored, want) {
			t.Errorf("reasoning %q, want %q", stored, want)
		}
	}
}

// checkDelay: the wait that the vendor asked for is the one that was made.
func checkDelay(least, most int64) func(*testing.T, *storedLog, *fakemodel.Server) {
	return func(t *testing.T, root *storedLog, _ *fakemodel.Server) {
		retries := payloads[*session.Retry](t, root)
		if len(retries) != 1 || retries[0].DelayMS < least || retries[0].DelayMS > most {
			t.Errorf("retries %+v, want one of %d to %d ms", retries, least, most)
		}
	}
}

// TestModels takes the command through everything that an endpoint may do, in the
// dialects of two vendors: only the answer is on stdout, the exit code and the one
// line on stderr are right, and afterwards the log is legal for the next request
// (core M16, M24–M28, L22, L23).
func TestModels(t *testing.T) {
	t.Parallel()
	for _, d := range []fakemodel.Dialect{fakemodel.OpenAI, fakemodel.DeepSeek} {
		for _, tt := range modelCases(d) {
			t.Run(string(d)+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				w, s := newModelWorld(t, d)
				if tt.route != nil {
					w.route(d, tt.route...)
				}
				w.write("a.txt", "alpha one\n")
				w.write("b.txt", "beta two\n")
				w.checkModel(&tt, s)
			})
		}
	}
}

func (w *world) checkModel(tt *modelCase, s *fakemodel.Server) {
	t := w.t
	t.Helper()
	e := w.run(append([]string{"run", tt.prompt, "--quiet"}, tt.args...)...)
	if e.code != tt.code || e.stdout != tt.stdout {
		t.Errorf("want exit %d and %q: %v", tt.code, tt.stdout, e)
	}
	wantLine(t, e, tt.stderr, s)
	noSecret(t, e)
	if want := max(tt.requests, 1); tt.requests >= 0 && s.Total() != want {
		t.Errorf("%d requests, want %d", s.Total(), want)
	}
	root, _ := w.tree()
	want := tt.ends
	if want == nil {
		want = []string{"completed"}
	}
	if diff := cmp.Diff(want, ends(t, root)); diff != "" {
		t.Errorf("turn ends (-want +got):\n%s", diff)
	}
	if tt.check != nil {
		tt.check(t, root, s)
	}
	// It verifies what this run left, too.
	w.followUp(root.Header.ID)
}

// wantLine checks that stderr is exactly one line that begins as ours and matches,
// or empty.
func wantLine(t *testing.T, e ended, pattern string, s *fakemodel.Server) {
	t.Helper()
	if pattern == "" {
		if e.stderr != "" {
			t.Errorf("want nothing on stderr: %v", e)
		}
		return
	}
	if s != nil {
		u, err := url.Parse(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		pattern = strings.ReplaceAll(pattern, "HOST", regexp.QuoteMeta(u.Host))
	}
	got := lines(e.stderr)
	if len(got) != 1 || !strings.HasPrefix(got[0], "offshoot: ") || !regexp.MustCompile(pattern).MatchString(got[0]) {
		t.Errorf("want one line that matches %q: %v", pattern, e)
	}
}

// TestWrongKey: one line names the host and not the key; the session is there and
// goes on with the right one.
func TestWrongKey(t *testing.T) {
	t.Parallel()
	for _, d := range []fakemodel.Dialect{fakemodel.OpenAI, fakemodel.DeepSeek} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			w, s := newModelWorld(t, d)
			const wrong = "sk-e2e-a-wrong-key-987654321"
			e := w.with(strings.ToUpper(string(d))+"_API_KEY", wrong).run("run", "hello")
			if e.code != 1 || e.stdout != "" || strings.Contains(e.stderr, wrong) {
				t.Errorf("%v", e)
			}
			last := lines(e.stderr)
			wantLine(t, ended{stderr: last[len(last)-1]}, "AUTH: ", s)
			if !strings.Contains(last[len(last)-1], strings.TrimPrefix(s.Origin(), "http://")) {
				t.Errorf("the host is not named: %v", e)
			}
			root, _ := w.tree()
			w.followUp(root.Header.ID)
		})
	}
}
