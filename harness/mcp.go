package harness

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/tool"
	"github.com/offshoot-dev/offshoot/tool/mcp"
)

// openServers starts the MCP servers of the configuration side by side and registers
// their tools. One that cannot be used fails the opening, with all others like it.
func (h *Harness) openServers(ctx context.Context) error {
	names := sorted(h.opts.Config.Config.MCP)
	if h.opts.NoServers {
		for _, name := range names {
			h.unopened = append(h.unopened, name+"_")
		}
		return nil
	}
	sets := make([]*mcp.Set, len(names))
	errs := make([]error, len(names))
	var opening sync.WaitGroup
	for i, name := range names {
		opening.Go(func() { sets[i], errs[i] = h.openServer(ctx, name) })
	}
	opening.Wait()
	for i, set := range sets {
		if set == nil {
			continue
		}
		h.servers = append(h.servers, set)
		h.onClose(set.Close)
		h.names = append(h.names, set.Tools()...)
		if err := set.Register(h.Tools.Root(), h.admits); err != nil {
			errs[i] = h.opts.Config.Fault("mcp."+names[i], "%v", err)
		}
	}
	return errors.Join(errs...)
}

func (h *Harness) openServer(ctx context.Context, name string) (*mcp.Set, error) {
	server, err := mcpServer(h.opts.Config, name, h.opts.Env)
	if err != nil {
		return nil, err
	}
	opts := mcp.Options{Logger: h.opts.Logger, Version: strings.TrimPrefix(h.opts.UserAgent, "offshoot/"), Bind: h.bindServer}
	connect := mcp.Connect
	if h.opts.Config.Config.MCP[name].Isolate {
		connect = mcp.Isolated
	}
	set, err := connect(ctx, server, opts)
	if err != nil {
		return nil, h.opts.Config.Fault("mcp."+name, "%v", err)
	}
	return set, nil
}

// bindServer ties a server to the live agent that it was started for.
func (h *Harness) bindServer(caller tool.Caller, stop, join func()) error {
	a, live := h.Agents.Live(caller)
	if !live {
		return errors.New("the caller is no live agent")
	}
	_, err := a.AddWork(agent.Work{Stop: stop, Join: join})
	return err
}

// mcpServer is a configured server as package mcp wants it.
func mcpServer(eff *config.Effective, name string, env config.Environ) (mcp.Server, error) {
	c := eff.Config.MCP[name]
	environ, headers, err := eff.Secrets(name, env)
	if err != nil {
		return mcp.Server{}, err
	}
	s := mcp.Server{
		Name: name, Command: c.Command, Args: c.Args, Env: environ, Dir: c.Dir, URL: c.URL, Headers: headers,
		Timeout: c.Timeout, TrustHints: c.TrustHints, Allow: c.Tools.Allow, Deny: c.Tools.Deny,
	}
	if s.Dir == "" && s.Command != "" && !c.Isolate {
		s.Dir = eff.Cwd
	}
	return s, nil
}

// ServerReport is what an MCP server was found to be.
type ServerReport struct {
	// Found is the program that was started, or the endpoint without its secrets.
	Found string
	// About says what answered; "" if nothing did.
	About string
	// Tools are the tools that agents get, and LeftOut those that they do not.
	Tools   []string
	LeftOut []mcp.LeftOut
}

// ProbeServer starts a configured MCP server, asks for its tools and ends it: for whoever
// looks for faults. The report holds what was found up to the error.
func ProbeServer(ctx context.Context, eff *config.Effective, name string, env config.Environ) (ServerReport, error) {
	var r ServerReport
	server, err := mcpServer(eff, name, env)
	if err != nil {
		return r, err
	}
	if server.Command == "" {
		r.Found = shownURL(eff, name)
	} else if r.Found, err = exec.LookPath(server.Command); err != nil {
		return r, eff.Fault("mcp."+name+".command", "%v", err)
	}
	set, err := mcp.Connect(ctx, server, mcp.Options{})
	if err != nil {
		return r, eff.Fault("mcp."+name, "%v", err)
	}
	r.About, r.Tools, r.LeftOut = set.About(), set.Tools(), set.LeftOut()
	if err := set.Close(); err != nil {
		return r, fmt.Errorf("mcp.%s: %w", name, err)
	}
	return r, nil
}

// shownURL is the endpoint as the configuration renders it, without a password.
func shownURL(eff *config.Effective, name string) string {
	i := slices.IndexFunc(eff.Values, func(v config.Value) bool { return v.Key == "mcp."+name+".url" })
	if i < 0 {
		return ""
	}
	return eff.Values[i].Text
}
