package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/tool"
	"github.com/offshoot-dev/offshoot/tool/mcp"
)

// connect connects a server and registers its tools.
func connect(t *testing.T, server mcp.Server, opts mcp.Options) (*mcp.Set, *tool.Scope) {
	t.Helper()
	set, err := mcp.Connect(t.Context(), server, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSet(t, set) })
	scope := tool.New().Root()
	if err := set.Register(scope, nil); err != nil {
		t.Fatal(err)
	}
	return set, scope
}

func closeSet(t *testing.T, set *mcp.Set) {
	t.Helper()
	if err := set.Close(); err != nil {
		t.Error(err)
	}
}

func call(ctx context.Context, s *tool.Scope, name, args string) tool.Result {
	return s.Execute(ctx, tool.CallInput{ID: "c", Name: name, Args: args}, tool.ExecOptions{})
}

func text(r tool.Result) string { return message.JoinText(r.Content) }

func names(s *tool.Scope) (list []string) {
	for _, d := range s.Visible() {
		list = append(list, d.Name)
	}
	return list
}

// alive reports whether a process runs; a zombie does not.
func alive(t *testing.T, pid string) bool {
	t.Helper()
	if _, err := strconv.Atoi(pid); err != nil {
		t.Fatalf("%q is no process id", pid)
	}
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestToolsOfAServer(t *testing.T) {
	set, scope := connect(t, program(t, "s", "tools"), mcp.Options{})
	want := []string{"s_big", "s_die", "s_echo", "s_env", "s_fail", "s_garble", "s_grow", "s_hang", "s_look", "s_pid", "s_where"}
	if diff := cmp.Diff(want, names(scope)); diff != "" {
		t.Error(diff)
	}
	if about := set.About(); !strings.HasPrefix(about, "stdio 1.2, protocol 20") {
		t.Errorf("about %q", about)
	}
	for _, test := range []struct{ name, args, code, want string }{
		{"s_echo", `{"text":"hello"}`, "", "hello"},
		{"s_echo", `{"text":1}`, tool.CodeInvalidArgs, "Error: the arguments of s_echo do not fit its parameters:\nat /text: got number, want string"},
		{"s_fail", `{}`, tool.CodeToolFailed, "Error: no such door\ntry the window"},
	} {
		r := call(t.Context(), scope, test.name, test.args)
		if text(r) != test.want || r.Code != test.code || r.IsError != (test.code != "") {
			t.Errorf("%s %s: %q (%s)", test.name, test.args, text(r), r.Code)
		}
	}
	r := call(t.Context(), scope, "s_big", "")
	if got := text(r); len(got) > tool.DefaultLimit || !strings.HasPrefix(got, "first") || !strings.HasSuffix(got, "last") || r.Cut.Size() != 5<<20+9 {
		t.Errorf("a result of 5 MiB came as %d bytes", len(got))
	}
	if def := scope.Toolset().Lookup("s_echo"); def.ReadOnly || def.ConcurrencySafe != nil || def.Description != "The tool echo." || def.Timeout != mcp.DefaultTimeout {
		t.Errorf("definition %+v", def)
	}
	if got := scope.Toolset().Lookup("s_look"); got.ReadOnly {
		t.Error("a hint is believed that nobody trusts")
	}
	pid := text(call(t.Context(), scope, "s_pid", ""))
	closeSet(t, set)
	if alive(t, pid) {
		t.Error("the server outlives its set")
	}
	if got := names(scope); len(got) > 0 {
		t.Errorf("tools of a server that has ended: %v", got)
	}
}

func TestTrustedHint(t *testing.T) {
	server := inProcess(t, "s", newServer("x", nil))
	server.TrustHints = true
	_, scope := connect(t, server, mcp.Options{})
	if def := scope.Toolset().Lookup("s_look"); !def.ReadOnly || !def.ConcurrencySafe(nil) {
		t.Error("the hint is not taken")
	}
	if def := scope.Toolset().Lookup("s_echo"); def.ReadOnly || def.ConcurrencySafe != nil {
		t.Error("a tool without a hint is harmless")
	}
}

func TestEnvironmentIsScrubbed(t *testing.T) {
	t.Setenv("SOME_API_KEY", "leak-of-a-key")
	t.Setenv("PLAIN_SETTING", "stays")
	server := program(t, "s", "tools")
	server.Env["GITHUB_TOKEN"] = "given"
	server.Dir = t.TempDir()
	_, scope := connect(t, server, mcp.Options{})
	env := text(call(t.Context(), scope, "s_env", ""))
	if strings.Contains(env, "leak-of-a-key") || !strings.Contains(env, "PLAIN_SETTING=stays") || !strings.Contains(env, "GITHUB_TOKEN=given") {
		t.Errorf("the environment is\n%s", env)
	}
	if got := text(call(t.Context(), scope, "s_where", "")); !strings.HasPrefix(got, server.Dir) {
		t.Errorf("it runs in %s", got)
	}
}

func TestStartsThatFail(t *testing.T) {
	tests := []struct{ mode, want string }{
		{"noise", `it cannot be connected: it wrote to its standard output what is no message: "Listening on stdio, have fun!"`},
		{"silent", "it cannot be connected: it did not answer within 1s"},
		{"exit", "it cannot be connected: exit code 7; it had written: no licence found"},
		{"nonsense", `it cannot be connected: unsupported protocol version: ""`},
		{"refuse", `it cannot be connected: calling "initialize": not today`},
		{"endless", "its list of tools does not end after 64 pages"},
	}
	for _, test := range tests {
		t.Run(test.mode, func(t *testing.T) {
			server := program(t, "srv", test.mode)
			if test.mode == "silent" {
				server.Start = time.Second
			}
			set, err := mcp.Connect(t.Context(), server, mcp.Options{})
			if err == nil {
				closeSet(t, set)
				t.Fatal("it was connected")
			}
			if got := err.Error(); got != `MCP server "srv": `+test.want {
				t.Errorf("error %q", got)
			}
		})
	}
	if _, err := mcp.Connect(t.Context(), mcp.Server{Name: "srv", Command: "/nowhere/at/all"}, mcp.Options{}); err == nil || !strings.Contains(err.Error(), `MCP server "srv": it cannot be started: start /nowhere/at/all`) {
		t.Errorf("error %v", err)
	}
}

func TestServersThatMakeNoSense(t *testing.T) {
	for _, test := range []struct {
		server mcp.Server
		want   string
	}{
		{mcp.Server{Name: "a_b", Command: "x"}, "the name is not"},
		{mcp.Server{Name: "", Command: "x"}, "the name is not"},
		{mcp.Server{Name: "a"}, "one of command and URL is needed"},
		{mcp.Server{Name: "a", Command: "x", URL: "http://h"}, "one of command and URL is needed"},
		{mcp.Server{Name: "a", Command: "x", Headers: map[string]string{"A": "b"}}, "headers are for"},
		{mcp.Server{Name: "a", URL: "http://h", Args: []string{"b"}}, "are for a server with a command"},
		{mcp.Server{Name: "a", URL: "ftp://u:geheim@h"}, "the URL is not"},
		{mcp.Server{Name: "a", URL: "http://h", Headers: map[string]string{"mcp-session-id": "b"}}, "belongs to the protocol"},
		{mcp.Server{Name: "a", Command: "x", Timeout: -1}, "a negative bound"},
	} {
		_, err := mcp.Connect(t.Context(), test.server, mcp.Options{})
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%+v: %v", test.server, err)
		}
	}
}

// A call that its server did not survive fails and names the server; the next one
// starts it again.
func TestServerDiesMidCall(t *testing.T) {
	_, scope := connect(t, program(t, "s", "tools"), mcp.Options{})
	first := text(call(t.Context(), scope, "s_pid", ""))
	r := call(t.Context(), scope, "s_die", "")
	want := `Error: MCP server "s": it has ended: exit code 3; it had written: a wheel came off; whether the request took effect is not known`
	if !r.IsError || text(r) != want {
		t.Errorf("the result is %q", text(r))
	}
	if alive(t, first) {
		t.Error("it still runs")
	}
	second := call(t.Context(), scope, "s_pid", "")
	if second.IsError || text(second) == first || !alive(t, text(second)) {
		t.Errorf("the next call: %q", text(second))
	}
}

// What a server writes beside the protocol breaks it, and is shown.
func TestNoiseMidCall(t *testing.T) {
	_, scope := connect(t, program(t, "s", "tools"), mcp.Options{})
	r := call(t.Context(), scope, "s_garble", "")
	if !r.IsError || !strings.Contains(text(r), `what is no message: "debug: got here"`) {
		t.Errorf("the result is %q", text(r))
	}
	if r := call(t.Context(), scope, "s_echo", `{"text":"again"}`); text(r) != "again" {
		t.Errorf("the next call: %q", text(r))
	}
}

// A server that cannot be started any more fails the calls, and they share one start.
func TestServerDoesNotComeBack(t *testing.T) {
	var mu sync.Mutex
	starts, broken := 0, false
	server := inProcess(t, "s", newServer("x", nil))
	dial := mcp.Dial(server)
	var far []interface{ Close() error }
	server = mcp.Dialed(server, func() (mcp.Stream, error) {
		mu.Lock()
		defer mu.Unlock()
		starts++
		if broken {
			return nil, errors.New("out of order")
		}
		s, err := dial()
		far = append(far, s)
		return s, err
	})
	_, scope := connect(t, server, mcp.Options{})
	mu.Lock()
	broken = true
	err := far[0].Close()
	mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	// The first call may be the one that finds out.
	if r := call(t.Context(), scope, "s_pid", ""); !r.IsError || !strings.HasPrefix(text(r), `Error: MCP server "s": it `) {
		t.Errorf("%q", text(r))
	}
	mu.Lock()
	starts = 0
	mu.Unlock()
	for range 2 {
		r := call(t.Context(), scope, "s_pid", "")
		if want := `Error: MCP server "s": it cannot be started: out of order`; text(r) != want {
			t.Errorf("%q", text(r))
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if starts != 2 {
		t.Errorf("%d starts for 2 calls", starts)
	}
}

// Calls that find the server gone start it once, together.
func TestOneStartForManyCalls(t *testing.T) {
	_, scope := connect(t, program(t, "s", "tools"), mcp.Options{})
	if r := call(t.Context(), scope, "s_die", ""); !r.IsError {
		t.Fatal(text(r))
	}
	pids := make([]string, 50)
	var calls sync.WaitGroup
	for i := range pids {
		calls.Go(func() { pids[i] = text(call(t.Context(), scope, "s_pid", "")) })
	}
	calls.Wait()
	if slices.Sort(pids); pids[0] != pids[len(pids)-1] || !alive(t, pids[0]) {
		t.Errorf("they came to %v", slices.Compact(pids))
	}
}

func TestCallsThatShareAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := inProcess(t, "s", newServer("x", nil))
		dial := mcp.Dial(server)
		var streams []mcp.Stream
		dials := 0
		outcomes := make(chan error) // of every dial but the first
		server = mcp.Dialed(server, func() (mcp.Stream, error) {
			if dials++; dials > 1 {
				if err := <-outcomes; err != nil {
					return nil, err
				}
			}
			stream, err := dial()
			streams = append(streams, stream)
			return stream, err
		})
		_, scope := connect(t, server, mcp.Options{})
		if err := streams[0].Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the end is known
		var calls sync.WaitGroup
		results := make([]tool.Result, 3)
		ctx, cancel := context.WithCancel(t.Context())
		start := func(i int, ctx context.Context) {
			calls.Go(func() { results[i] = call(ctx, scope, "s_echo", `{"text":"x"}`) })
			synctest.Wait() // it waits for the dial, or for whoever does
		}

		// One start for all, whose failure is all calls'.
		for i := range results {
			start(i, t.Context())
		}
		outcomes <- errors.New("out of order")
		calls.Wait()
		for i, r := range results {
			if want := `Error: MCP server "s": it cannot be started: out of order`; text(r) != want {
				t.Errorf("call %d: %q", i, text(r))
			}
		}
		if dials != 2 {
			t.Errorf("dialled %d times", dials)
		}

		// The end of the call that makes the start is its own.
		start(0, ctx)
		start(1, t.Context())
		cancel()
		outcomes <- nil
		synctest.Wait()
		if dials == 4 {
			outcomes <- nil
		}
		calls.Wait()
		if r := results[0]; r.Code != tool.CodeAborted {
			t.Errorf("the call that was cancelled: %q (%s)", text(r), r.Code)
		}
		if r := results[1]; text(r) != "x" {
			t.Errorf("the other call: %q", text(r))
		}
	})
}

// The end of a call reaches the server, and the server serves on.
func TestCancelReachesTheServer(t *testing.T) {
	g := newGates()
	_, scope := connect(t, inProcess(t, "s", newServer("x", g)), mcp.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan tool.Result)
	go func() { done <- call(ctx, scope, "s_hang", "") }()
	<-g.entered
	cancel()
	if r := <-done; r.Code != tool.CodeAborted {
		t.Errorf("the result is %q (%s)", text(r), r.Code)
	}
	<-g.cancelled
	if r := call(t.Context(), scope, "s_echo", `{"text":"on"}`); text(r) != "on" {
		t.Errorf("the next call: %q", text(r))
	}
}

func TestTimeoutOfACall(t *testing.T) {
	g := newGates()
	server := inProcess(t, "s", newServer("x", g))
	server.Timeout = 50 * time.Millisecond
	_, scope := connect(t, server, mcp.Options{})
	r := call(t.Context(), scope, "s_hang", "")
	if r.Code != tool.CodeTimeout || text(r) != "Error: s_hang did not finish within 50ms" {
		t.Errorf("the result is %q (%s)", text(r), r.Code)
	}
	<-g.cancelled
}

// Close fails what runs, and returns when all of it has ended.
func TestCloseDuringACall(t *testing.T) {
	for _, kind := range []string{"pipe", "http"} {
		t.Run(kind, func(t *testing.T) {
			g := newGates()
			server := inProcess(t, "s", newServer("x", g))
			if kind == "http" {
				server = overHTTP(t, "s", newServer("x", g), nil)
			}
			t.Cleanup(func() { close(g.over) })
			set, scope := connect(t, server, mcp.Options{})
			done := make(chan tool.Result)
			go func() { done <- call(t.Context(), scope, "s_hang", "") }()
			<-g.entered
			closeSet(t, set)
			if r := <-done; !r.IsError || !strings.Contains(text(r), `MCP server "s": it is being ended`) {
				t.Errorf("the result is %q", text(r))
			}
			if kind == "pipe" { // a service may learn of the end of its session alone
				<-g.cancelled
			}
		})
	}
}

// A server that ignores every request to end is killed with all that it started.
func TestStubbornTree(t *testing.T) {
	set, scope := connect(t, program(t, "s", "stubborn"), mcp.Options{})
	pid := text(call(t.Context(), scope, "s_pid", ""))
	children, err := os.ReadFile(fmt.Sprintf("/proc/%s/task/%s/children", pid, pid))
	if err != nil {
		t.Skip(err)
	}
	closeSet(t, set)
	for _, p := range append(strings.Fields(string(children)), pid) {
		if alive(t, p) {
			t.Errorf("process %s is left", p)
		}
	}
}

func TestAbort(t *testing.T) {
	set, scope := connect(t, program(t, "s", "stubborn"), mcp.Options{})
	pid := text(call(t.Context(), scope, "s_pid", ""))
	if err := set.Abort(); err != nil {
		t.Fatal(err)
	}
	if alive(t, pid) {
		t.Error("it still runs")
	}
	if r := call(t.Context(), scope, "s_pid", ""); !r.IsError || !strings.Contains(text(r), "it is being ended") {
		t.Errorf("a call after that: %q", text(r))
	}
}

// log collects what is told of.
type log struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{}
}

func newLog() *log { return &log{more: make(chan struct{}, 100)} }

func (l *log) Enabled(context.Context, slog.Level) bool { return true }
func (l *log) Handle(_ context.Context, r slog.Record) error {
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.mu.Lock()
	l.lines = append(l.lines, line)
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return nil
}
func (l *log) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *log) WithGroup(string) slog.Handler      { return l }

// wait waits for a line that holds part.
func (l *log) wait(t *testing.T, part string) {
	t.Helper()
	for {
		l.mu.Lock()
		found := slices.ContainsFunc(l.lines, func(line string) bool { return strings.Contains(line, part) })
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-l.more:
		case <-t.Context().Done():
			t.Fatalf("nothing said %q", part)
		}
	}
}

// A tool whose schema nobody can enforce is left out and named, and the others stay.
func TestSchemasThatCannotBeEnforced(t *testing.T) {
	s := sdk.NewServer(&sdk.Implementation{Name: "x"}, nil)
	for name, schema := range map[string]string{
		"good":    `{"type":"object","properties":{"a":{"$ref":"#/$defs/b"}},"$defs":{"b":{"anyOf":[{"type":"string"},{"type":"null"}]}}}`,
		"remote":  `{"type":"object","properties":{"a":{"$ref":"https://example.org/other.json"}}}`,
		"dialect": `{"$schema":"https://example.org/own-dialect","type":"object"}`,
		"pattern": `{"type":"object","properties":{"a":{"type":"string","pattern":"(?=look)ahead"}}}`,
		"keyword": `{"type":"object","properties":{"a":{"type":"strnig"}}}`,
		"long":    `{"type":"object","description":"` + strings.Repeat("x", mcp.MaxSchema) + `"}`,
	} {
		add(s, name, schema, func(context.Context, map[string]any) *sdk.CallToolResult { return says("done") })
	}
	logged := newLog()
	set, scope := connect(t, inProcess(t, "s", s), mcp.Options{Logger: slog.New(logged)})
	if diff := cmp.Diff([]string{"s_good"}, names(scope)); diff != "" {
		t.Error(diff)
	}
	if r := call(t.Context(), scope, "s_good", `{"a":1}`); r.Code != tool.CodeInvalidArgs {
		t.Errorf("arguments that break the schema: %q", text(r))
	}
	why := map[string]string{}
	for _, l := range set.LeftOut() {
		why[l.Tool] = l.Why
	}
	for name, want := range map[string]string{
		"remote": "a schema must be self-contained", "dialect": "own-dialect", "pattern": "lookahead", "keyword": "strnig", "long": "its schema has 131",
	} {
		if _, ok := why[name]; !ok || !strings.Contains(why[name], want) && name != "pattern" && name != "keyword" {
			t.Errorf("%s is left out because: %s", name, why[name])
		}
	}
	logged.wait(t, "tool=pattern")
}

func TestDescriptionsAreBounded(t *testing.T) {
	s := sdk.NewServer(&sdk.Implementation{Name: "x"}, nil)
	s.AddTool(&sdk.Tool{Name: "long", Description: strings.Repeat("é", 1<<20), InputSchema: json.RawMessage(anything)},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return says("x"), nil })
	_, scope := connect(t, inProcess(t, "s", s), mcp.Options{})
	if got := scope.Specs()[0].Description; len(got) > mcp.MaxDescription || !strings.Contains(got, "left out here") {
		t.Errorf("a description of %d bytes", len(got))
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("n", 100)
	for _, test := range []struct{ remote, want string }{
		{"get_file", "s_get_file"},
		{"a.b/c d", "s_a_b_c_d"},
		{"größe", "s_gr__e"},
		{long, "s_" + strings.Repeat("n", 53) + "_" + mcp.ToolName("s", long)[56:]},
	} {
		if got := mcp.ToolName("s", test.remote); got != test.want || len(got) > 64 {
			t.Errorf("%q is named %q", test.remote, got)
		}
	}
	if mcp.ToolName("s", long) == mcp.ToolName("s", long+"n") {
		t.Error("two long names meet")
	}
}

func TestNamesThatMeet(t *testing.T) {
	s := sdk.NewServer(&sdk.Implementation{Name: "x"}, nil)
	for _, name := range []string{"a.b", "a_b"} {
		add(s, name, anything, func(context.Context, map[string]any) *sdk.CallToolResult { return says("x") })
	}
	server := inProcess(t, "s", s)
	_, err := mcp.Connect(t.Context(), server, mcp.Options{})
	if err == nil || !strings.Contains(err.Error(), `its tools "a.b" and "a_b" would both be named s_a_b`) {
		t.Errorf("error %v", err)
	}
	server.Deny = []string{"a.b"}
	set, scope := connect(t, server, mcp.Options{})
	if diff := cmp.Diff([]string{"s_a_b"}, names(scope)); diff != "" {
		t.Error(diff)
	}

	// A tool of that name which the scope has already.
	taken := tool.New().Root()
	if _, err := taken.Register(tool.Definition{
		Name: "s2_look", Parameters: []byte(anything), Execute: func(context.Context, *tool.Call) (any, error) { return "", nil },
	}); err != nil {
		t.Fatal(err)
	}
	other, err := mcp.Connect(t.Context(), inProcess(t, "s2", newServer("y", nil)), mcp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeSet(t, other)
	err = other.Register(taken, nil)
	if err == nil || !strings.Contains(err.Error(), `MCP server "s2": its tool "look": register tool "s2_look": the name is taken`) {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff([]string{"s2_look"}, names(taken)); diff != "" {
		t.Errorf("what is registered after the error: %s", diff)
	}
	if err := set.Register(taken, nil); err == nil {
		t.Error("a set was registered twice")
	}
}

func TestFilter(t *testing.T) {
	server := inProcess(t, "s", newServer("x", nil))
	server.Allow, server.Deny = []string{"echo", "look"}, []string{"look"}
	_, scope := connect(t, server, mcp.Options{})
	if diff := cmp.Diff([]string{"s_echo"}, names(scope)); diff != "" {
		t.Error(diff)
	}
	server.Deny = []string{"lok"}
	if _, err := mcp.Connect(t.Context(), server, mcp.Options{}); err == nil || !strings.Contains(err.Error(), `its filter names "lok", which it does not offer; it offers big, die, echo`) {
		t.Errorf("error %v", err)
	}
}

func TestTooManyTools(t *testing.T) {
	s := sdk.NewServer(&sdk.Implementation{Name: "x"}, nil)
	for i := range mcp.MaxTools + 1 {
		add(s, fmt.Sprint("t", i), anything, func(context.Context, map[string]any) *sdk.CallToolResult { return says("x") })
	}
	if _, err := mcp.Connect(t.Context(), inProcess(t, "s", s), mcp.Options{}); err == nil || !strings.Contains(err.Error(), "it offers more than 256 tools") {
		t.Errorf("error %v", err)
	}
}

// The scope follows what the server says of its tools.
func TestListChanged(t *testing.T) {
	for _, kind := range []string{"pipe", "process", "http"} {
		t.Run(kind, func(t *testing.T) {
			var server mcp.Server
			switch kind {
			case "pipe":
				server = inProcess(t, "s", newServer("x", nil))
			case "process":
				server = program(t, "s", "tools")
			case "http":
				server = overHTTP(t, "s", newServer("x", nil), nil)
			}
			_, scope := connect(t, server, mcp.Options{})
			before := scope.Toolset().Lookup("s_echo")
			if r := call(t.Context(), scope, "s_grow", ""); text(r) != "grew" {
				t.Fatal(text(r))
			}
			for scope.Toolset().Lookup("s_grown") == nil || scope.Toolset().Lookup("s_fail") != nil {
				if err := t.Context().Err(); err != nil {
					t.Fatal(err)
				}
				if r := call(t.Context(), scope, "s_echo", `{"text":"tick"}`); text(r) != "tick" {
					t.Fatal(text(r))
				}
			}
			if r := call(t.Context(), scope, "s_grown", ""); text(r) != "tall" {
				t.Errorf("the new tool: %q", text(r))
			}
			if r := call(t.Context(), scope, "s_fail", ""); r.Code != tool.CodeUnknownTool {
				t.Errorf("the old tool: %q", text(r))
			}
			if scope.Toolset().Lookup("s_echo") != before {
				t.Error("a tool that did not change was registered anew")
			}
		})
	}
}

func TestFiftyCallsAtOnce(t *testing.T) {
	for _, kind := range []string{"process", "http"} {
		t.Run(kind, func(t *testing.T) {
			server := program(t, "s", "tools")
			if kind == "http" {
				server = overHTTP(t, "s", newServer("x", nil), nil)
			}
			_, scope := connect(t, server, mcp.Options{})
			var calls sync.WaitGroup
			for i := range 50 {
				calls.Go(func() {
					want := fmt.Sprint("call ", i)
					if r := call(t.Context(), scope, "s_echo", fmt.Sprintf(`{"text":%q}`, want)); text(r) != want {
						t.Errorf("%q came for %q", text(r), want)
					}
				})
			}
			calls.Wait()
		})
	}
}

// What is no text is named; a structured value is told once.
func TestContent(t *testing.T) {
	size := int64(12)
	s := sdk.NewServer(&sdk.Implementation{Name: "x"}, nil)
	results := map[string]struct {
		res  *sdk.CallToolResult
		want string
	}{
		"media": {&sdk.CallToolResult{Content: []sdk.Content{
			&sdk.TextContent{Text: "look:"},
			&sdk.ImageContent{Data: []byte("12345"), MIMEType: "image/png"},
			&sdk.AudioContent{Data: []byte("123"), MIMEType: "audio/wav"},
			&sdk.ResourceLink{URI: "file:///a", Name: "a", MIMEType: "text/plain", Size: &size},
			&sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: "file:///b", Text: "secret text"}},
		}}, "look:\n[an image, image/png, 5 bytes, which is not shown]\n[a sound, audio/wav, 3 bytes, which is not shown]\n" +
			"[the resource file:///a (a), text/plain, 12 bytes, which is not fetched]\n[the resource file:///b, of unknown type, 11 bytes, which is not shown]"},
		"nothing":    {&sdk.CallToolResult{Content: []sdk.Content{}}, "[the tool returned nothing]"},
		"structured": {&sdk.CallToolResult{Content: []sdk.Content{}, StructuredContent: json.RawMessage(`{"a":"<b>","n":1}`)}, `{"a":"<b>","n":1}`},
		"both": {&sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: `{ "a": 1 }`}}, StructuredContent: json.RawMessage(`{"a":1}`)},
			`{ "a": 1 }`},
		"differ": {&sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "one"}}, StructuredContent: json.RawMessage(`{"a":1}`)},
			"one\n" + `{"a":1}`},
		"large": {&sdk.CallToolResult{Content: []sdk.Content{}, StructuredContent: json.RawMessage(`{"id":9007199254740993}`)},
			`{"id":9007199254740992}` + "\n[numbers above 2^53 in this may have been rounded]"},
	}
	for name, r := range results {
		s.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(anything)},
			func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return r.res, nil })
	}
	_, scope := connect(t, inProcess(t, "s", s), mcp.Options{})
	for name, r := range results {
		got := call(t.Context(), scope, "s_"+name, "")
		texts := make([]string, len(got.Content))
		for i, b := range got.Content {
			texts[i] = b.Text
		}
		if diff := cmp.Diff(r.want, strings.Join(texts, "\n")); diff != "" || got.IsError {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// overHTTP serves s on loopback; guard, if not nil, sees every request first.
func overHTTP(t *testing.T, name string, s *sdk.Server, guard func(w http.ResponseWriter, r *http.Request) bool) mcp.Server {
	t.Helper()
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if guard == nil || guard(w, r) {
			handler.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		for session := range s.Sessions() { // those whose end the server was not told
			_ = session.Close()
		}
	})
	return mcp.Server{Name: name, URL: srv.URL}
}

func TestHTTP(t *testing.T) {
	g := newGates()
	var mu sync.Mutex
	methods := map[string]int{}
	server := overHTTP(t, "s", newServer("web", g), func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		methods[r.Method]++
		mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer k" {
			http.Error(w, "who are you", http.StatusUnauthorized)
			return false
		}
		return true
	})
	if _, err := mcp.Connect(t.Context(), server, mcp.Options{}); err == nil || !strings.Contains(err.Error(), "Unauthorized") {
		t.Errorf("without its header: %v", err)
	}
	server.Headers = map[string]string{"Authorization": "Bearer k"}
	set, scope := connect(t, server, mcp.Options{})
	if r := call(t.Context(), scope, "s_echo", `{"text":"hello"}`); text(r) != "hello" {
		t.Errorf("%q", text(r))
	}
	if r := call(t.Context(), scope, "s_big", ""); r.IsError || r.Cut.Size() != 5<<20+9 {
		t.Errorf("a big result: %.200q", text(r))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan tool.Result)
	go func() { done <- call(ctx, scope, "s_hang", "") }()
	<-g.entered
	cancel()
	if r := <-done; r.Code != tool.CodeAborted {
		t.Errorf("the result is %q (%s)", text(r), r.Code)
	}
	<-g.cancelled
	closeSet(t, set)
}

// A server that redirects is not followed: its headers are for one host.
func TestHTTPRedirection(t *testing.T) {
	asked := make(chan struct{}, 10)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	defer elsewhere.Close()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}))
	defer front.Close()
	_, err := mcp.Connect(t.Context(), mcp.Server{Name: "s", URL: front.URL, Headers: map[string]string{"X-Key": "k"}}, mcp.Options{})
	if err == nil || !strings.Contains(err.Error(), "Temporary Redirect") {
		t.Errorf("error %v", err)
	}
	if len(asked) > 0 {
		t.Error("the redirection was followed")
	}
}

// An endless answer ends at the bound.
func TestHTTPAnswerIsBounded(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}))
	defer srv.Close()
	_, err := mcp.Connect(t.Context(), mcp.Server{Name: "s", URL: srv.URL}, mcp.Options{})
	if err == nil || !strings.Contains(err.Error(), "it sent a message of 16777216 bytes or more") {
		t.Errorf("error %v", err)
	}
}

// A server that answers nothing does not hold up the start, whatever it was asked.
func TestHTTPHang(t *testing.T) {
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		server := overHTTP(t, "s", newServer("web", nil), hangs(method))
		server.Start = 200 * time.Millisecond
		begin := time.Now()
		set, err := mcp.Connect(t.Context(), server, mcp.Options{})
		if err == nil {
			closeSet(t, set)
		}
		if err == nil || !strings.Contains(err.Error(), "it did not answer within 200ms") {
			t.Errorf("%s: %v", method, err)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%s: it took %v", method, took)
		}
	}
}

func hangs(method string) func(http.ResponseWriter, *http.Request) bool {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != method {
			return true
		}
		_, _ = io.Copy(io.Discard, r.Body) // only then the service learns of the client's end
		<-r.Context().Done()
		return false
	}
}

// A server that never begins its stream of notifications is used without.
func TestHTTPWithoutNotifications(t *testing.T) {
	server := mcp.Patient(overHTTP(t, "s", newServer("web", nil), hangs(http.MethodGet)), 50*time.Millisecond)
	_, scope := connect(t, server, mcp.Options{})
	if r := call(t.Context(), scope, "s_echo", `{"text":"hello"}`); text(r) != "hello" {
		t.Errorf("%q", text(r))
	}
}

// The service of an HTTP session goes away and comes back: a call fails, a later one
// opens another session.
func TestHTTPSessionLost(t *testing.T) {
	var mu sync.Mutex
	lost := false
	server := overHTTP(t, "s", newServer("web", nil), func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if lost {
			http.Error(w, "no such session", http.StatusNotFound)
		}
		return !lost
	})
	_, scope := connect(t, server, mcp.Options{})
	set := func(v bool) {
		mu.Lock()
		defer mu.Unlock()
		lost = v
	}
	set(true)
	if r := call(t.Context(), scope, "s_echo", `{"text":"a"}`); !r.IsError || !strings.Contains(text(r), `MCP server "s"`) {
		t.Errorf("%q", text(r))
	}
	set(false)
	if r := call(t.Context(), scope, "s_echo", `{"text":"b"}`); text(r) != "b" {
		t.Errorf("%q", text(r))
	}
}

// owner is an agent as far as a server of its own goes.
type owner struct {
	stops, joins []func()
}

func (o *owner) SessionID() string { return "o" }
func (o *owner) Root() bool        { return true }

func (o *owner) end() {
	for _, fn := range o.stops {
		fn()
	}
	for _, fn := range o.joins {
		fn()
	}
}

func TestIsolated(t *testing.T) {
	bind := func(caller tool.Caller, stop, join func()) error {
		o, ok := caller.(*owner)
		if !ok {
			return errors.New("no agent")
		}
		o.stops, o.joins = append(o.stops, stop), append(o.joins, join)
		return nil
	}
	set, err := mcp.Isolated(t.Context(), program(t, "s", "tools"), mcp.Options{Bind: bind})
	if err != nil {
		t.Fatal(err)
	}
	defer closeSet(t, set)
	scope := tool.New().Root()
	if err := set.Register(scope, nil); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	as := func(o tool.Caller, name string) tool.Result {
		return scope.Execute(t.Context(), tool.CallInput{ID: "c", Name: name, Caller: o, Cwd: dir}, tool.ExecOptions{})
	}
	a, b := &owner{}, &owner{}
	first, again, other := text(as(a, "s_pid")), text(as(a, "s_pid")), text(as(b, "s_pid"))
	if first != again || first == other || !alive(t, first) || !alive(t, other) {
		t.Errorf("processes %s, %s and %s", first, again, other)
	}
	if got := text(as(a, "s_where")); !strings.HasPrefix(got, dir) {
		t.Errorf("it runs in %s", got)
	}
	if len(a.joins) != 1 {
		t.Errorf("bound %d times", len(a.joins))
	}
	a.end()
	if alive(t, first) || !alive(t, other) {
		t.Error("an agent's end ends its own server and no other")
	}
	if r := as(nil, "s_pid"); !r.IsError {
		t.Errorf("a call of no agent: %q", text(r))
	}
	closeSet(t, set)
	if alive(t, other) {
		t.Error("a server outlives the set")
	}
	if _, err := mcp.Isolated(t.Context(), program(t, "s", "tools"), mcp.Options{}); err == nil {
		t.Error("nobody binds the servers of agents")
	}
}
