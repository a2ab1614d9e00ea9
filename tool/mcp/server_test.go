package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/offshoot-dev/offshoot/tool/mcp"
)

// modeVar makes the test binary a server.
const modeVar = "MCP_TEST_MODE"

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeVar); mode != "" {
		serve(mode)
		return
	}
	goleak.VerifyTestMain(m)
}

// program is the test binary as a server.
func program(t *testing.T, name, mode string) mcp.Server {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return mcp.Server{Name: name, Command: self, Env: map[string]string{modeVar: mode, "GORACE": "atexit_sleep_ms=0"}}
}

// serve is the life of a server process.
func serve(mode string) {
	switch mode {
	case "tools":
		if err := newServer("stdio", nil).Run(context.Background(), &sdk.StdioTransport{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "noise":
		fmt.Println("Listening on stdio, have fun!")
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "silent":
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "exit":
		fmt.Fprintln(os.Stderr, "no licence found")
		os.Exit(7)
	case "nonsense":
		answer(func(json.RawMessage) string { return `"result":{"tools":"none"}` })
	case "refuse":
		answer(func(json.RawMessage) string { return `"error":{"code":-32603,"message":"not today"}` })
	case "endless":
		answer(func(method json.RawMessage) string {
			switch string(method) {
			case `"initialize"`:
				return `"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`
			case `"tools/list"`:
				return `"result":{"tools":[],"nextCursor":"more"}`
			}
			return `"error":{"code":-32601,"message":"no"}`
		})
	case "stubborn":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		child := exec.Command("sleep", "600")
		if err := child.Start(); err != nil {
			os.Exit(1)
		}
		go func() {
			_ = newServer("stubborn", nil).Run(context.Background(), &sdk.StdioTransport{})
		}()
		_ = child.Wait()
		select {}
	}
}

// answer answers every request with what body says of its method.
func answer(body func(method json.RawMessage) string) {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var req struct {
			ID     json.RawMessage `json:"id"`
			Method json.RawMessage `json:"method"`
		}
		if json.Unmarshal(in.Bytes(), &req) == nil && req.ID != nil {
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,%s}`+"\n", req.ID, body(req.Method))
		}
	}
}

const anything = `{"type":"object"}`

// add adds a tool that answers with what fn returns.
func add(s *sdk.Server, name, schema string, fn func(ctx context.Context, args map[string]any) *sdk.CallToolResult) {
	s.AddTool(&sdk.Tool{Name: name, Description: "The tool " + name + ".", InputSchema: json.RawMessage(schema)},
		func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			var args map[string]any
			if err := json.Unmarshal(req.Params.Arguments, &args); err != nil {
				return nil, err
			}
			return fn(ctx, args), nil
		})
}

func says(texts ...string) *sdk.CallToolResult {
	res := &sdk.CallToolResult{}
	for _, t := range texts {
		res.Content = append(res.Content, &sdk.TextContent{Text: t})
	}
	return res
}

// gates are how a test follows the server in its own process.
type gates struct {
	entered   chan struct{} // a call of "hang" runs
	cancelled chan struct{} // it was cancelled
	over      chan struct{} // closed when no call may hang any more
}

func newGates() *gates {
	return &gates{entered: make(chan struct{}, 64), cancelled: make(chan struct{}, 64), over: make(chan struct{})}
}

// newServer has a tool for each case.
func newServer(name string, g *gates) *sdk.Server {
	if g == nil {
		g = newGates()
	}
	s := sdk.NewServer(&sdk.Implementation{Name: name, Version: "1.2"}, nil)
	add(s, "echo", `{"type":"object","properties":{"text":{"type":"string"}},"required":["text"],"additionalProperties":false}`,
		func(_ context.Context, args map[string]any) *sdk.CallToolResult {
			return says(fmt.Sprint(args["text"]))
		})
	add(s, "fail", anything, func(context.Context, map[string]any) *sdk.CallToolResult {
		res := says("no such door", "try the window")
		res.IsError = true
		return res
	})
	add(s, "big", anything, func(context.Context, map[string]any) *sdk.CallToolResult {
		return says("first" + strings.Repeat("x", 5<<20) + "last")
	})
	add(s, "hang", anything, func(ctx context.Context, _ map[string]any) *sdk.CallToolResult {
		g.entered <- struct{}{}
		select {
		case <-ctx.Done():
			g.cancelled <- struct{}{}
		case <-g.over:
		}
		return says("too late")
	})
	add(s, "die", anything, func(context.Context, map[string]any) *sdk.CallToolResult {
		fmt.Fprintln(os.Stderr, "a wheel came off")
		os.Exit(3)
		return nil
	})
	add(s, "pid", anything, func(context.Context, map[string]any) *sdk.CallToolResult { return says(fmt.Sprint(os.Getpid())) })
	add(s, "env", anything, func(context.Context, map[string]any) *sdk.CallToolResult {
		return says(strings.Join(os.Environ(), "\n"))
	})
	add(s, "where", anything, func(context.Context, map[string]any) *sdk.CallToolResult {
		dir, err := os.Getwd()
		return says(dir, fmt.Sprint(err))
	})
	add(s, "garble", anything, func(context.Context, map[string]any) *sdk.CallToolResult {
		fmt.Println("debug: got here")
		return says("fine")
	})
	add(s, "grow", anything, func(context.Context, map[string]any) *sdk.CallToolResult {
		add(s, "grown", anything, func(context.Context, map[string]any) *sdk.CallToolResult { return says("tall") })
		s.RemoveTools("fail")
		return says("grew")
	})
	s.AddTool(&sdk.Tool{Name: "look", InputSchema: json.RawMessage(anything), Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true}},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return says("seen"), nil })
	return s
}

// inProcess serves s over a pipe, as often as it is dialled.
func inProcess(t *testing.T, name string, s *sdk.Server) mcp.Server {
	t.Helper()
	var served sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() {
		cancel()
		served.Wait()
	})
	return mcp.Dialed(mcp.Server{Name: name}, func() (io.ReadWriteCloser, error) {
		near, far := net.Pipe()
		served.Go(func() {
			_ = s.Run(ctx, &sdk.IOTransport{Reader: far, Writer: far}) // it ends with the pipe or the test
		})
		return near, nil
	})
}
