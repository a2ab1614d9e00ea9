package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/fakeagent"
	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/internal/products"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/acp"
	"github.com/offshoot-dev/offshoot/subagent/claudecode"
	"github.com/offshoot-dev/offshoot/subagent/codex"
	"github.com/offshoot-dev/offshoot/subagent/dsh"
	"github.com/offshoot-dev/offshoot/subagent/external"
)

// The children in other processes. The scripted one is this program itself, which speaks
// a product's protocol then.
const (
	workPeer  = "external child, a scripted peer: to result and ended"
	manyPeers = 50
)

func workPeers() string {
	return fmt.Sprintf("%d external children at work at once, the process that has them", manyPeers)
}

func productWork(name string) string { return "external child, " + name + ": to result" }
func byHandWork(name string) string  { return "  " + name + " driven by hand: to result" }

// prober is a provider of this kind.
type prober interface {
	subagent.Provider
	Probe(ctx context.Context, dir string) (external.Report, error)
}

// productNames are the products of the rows, in their order.
func productNames() []string { return []string{"codex", "claude", "opencode", "dsh"} }

// scriptedPeer is the provider whose product is this program.
func scriptedPeer() (prober, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return dsh.New(dsh.Config{Config: external.Config{
		Name: "peer", Command: self, Args: []string{}, Env: map[string]string{fakeagent.As: "dsh"}, Permission: external.Allow,
	}})
}

// peerRig is a fixture with a provider and a parent that works in dir.
func peerRig(ctx context.Context, p subagent.Provider, dir string) (*rig, *agent.Agent, error) {
	r, err := newRig(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	if _, err := r.service.Register(p); err != nil {
		return nil, nil, errors.Join(err, r.close(ctx))
	}
	h, err := r.agents.Create(ctx, agent.Create{Options: agent.Options{Provider: route, Model: model, Cwd: dir}})
	if err != nil {
		return nil, nil, errors.Join(err, r.close(ctx))
	}
	return r, h.Agent(), nil
}

// asking is a request for one external child.
func asking(parent *agent.Agent, prompt string) subagent.Request {
	req := request(parent)
	req.Prompt = []message.Block{message.Text(prompt)}
	return req
}

func peers(ctx context.Context, b *bench) (err error) {
	p, err := scriptedPeer()
	if err != nil {
		return err
	}
	r, parent, err := peerRig(ctx, p, b.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	if err := b.measure(workPeer, 1, func(pr *probe) error {
		began := time.Now()
		run, err := r.service.Start(ctx, p.Name(), asking(parent, "[[agent:say 42]]"))
		if err != nil {
			return err
		}
		pr.count("ms to ready", float64(time.Since(began))/ms)
		res, err := run.Wait(ctx)
		if err != nil {
			return err
		}
		pr.count("ms to result", float64(time.Since(began))/ms)
		if res.StopReason != subagent.StopCompleted {
			return fmt.Errorf("ended as %s: %s", res.StopReason, res.Diagnostic)
		}
		return run.Close(ctx)
	}); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return b.processes(ctx, workPeers(), nil, self, "-peers", fmt.Sprint(manyPeers), "-dir", b.dir)
}

// holdPeers is the whole of a process with so many external children at work at once.
func holdPeers(ctx context.Context, n int, dir string) (err error) {
	p, err := scriptedPeer()
	if err != nil {
		return err
	}
	r, parent, err := peerRig(ctx, p, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	runs := make([]subagent.Run, n)
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			runs[i], errs[i] = r.service.Start(ctx, p.Name(), asking(parent, "[[agent:say 42]][[agent:hang]]"))
		})
	}
	all.Wait()
	stop()
	for i, run := range runs {
		if run != nil {
			errs[i] = errors.Join(errs[i], run.Close(context.WithoutCancel(ctx)))
		}
	}
	fmt.Println("done") // process waits for a byte
	return errors.Join(errs...)
}

// product is a real product: how its provider is made, and how it is driven without one.
type product struct {
	provider prober
	hand     hand
}

// hand drives a product through the steps of its protocol for one prompt.
type hand struct {
	path  string
	args  []string
	env   map[string]string
	steps []step
}

// step sends a line, in which CWD and ID are replaced, and reads until a line holds until.
// id finds what ID is in that line from then on. ready marks the end of the handshake.
type step struct {
	send, until string
	id          *regexp.Regexp
	ready       bool
}

const answerIs = "[[fake:reply 42]]"

// newProduct makes a product that asks a fake model and keeps what it likes in home.
func newProduct(name, home string, model, deepseek *fakemodel.Server) (product, error) {
	found, harness, err := products.Locate()
	if err != nil {
		return product{}, err
	}
	cfg := external.Config{Name: name, Permission: external.Allow}
	switch name {
	case "codex":
		if cfg.Env, err = products.CodexEnv(home, model); err != nil {
			return product{}, err
		}
		cfg.Command = found.Codex
		p, err := codex.New(codex.Config{Config: cfg})
		return product{p, hand{found.Codex, []string{"app-server", "--stdio"}, cfg.Env, []step{
			{send: `{"id":0,"method":"initialize","params":{"clientInfo":{"name":"hand","version":"1"}}}`, until: `"id":0`},
			{send: `{"method":"initialized"}`},
			{send: `{"id":1,"method":"thread/start","params":{"cwd":"CWD","ephemeral":true}}`, until: `"id":1`, id: regexp.MustCompile(`"thread":\{"id":"([^"]+)"`), ready: true},
			{send: `{"id":2,"method":"turn/start","params":{"threadId":"ID","input":[{"type":"text","text":"` + answerIs + `","text_elements":[]}]}}`, until: `"turn/completed"`},
		}}}, err
	case "claude":
		if cfg.Env, err = products.ClaudeEnv(home, home, model); err != nil {
			return product{}, err
		}
		cfg.Command = found.Claude
		p, err := claudecode.New(claudecode.Config{Config: cfg})
		return product{p, hand{found.Claude, []string{
			"-p", "--output-format", "stream-json", "--verbose", "--input-format", "stream-json", "--permission-mode", "dontAsk", "--no-session-persistence",
		}, cfg.Env, []step{
			{send: `{"type":"control_request","request_id":"r1","request":{"subtype":"initialize"}}`, until: `"r1"`, ready: true},
			{send: `{"type":"user","session_id":"","message":{"role":"user","content":"` + answerIs + `"},"parent_tool_use_id":null}`, until: `"type":"result"`},
		}}}, err
	case "opencode":
		run, err := found.OpencodeACP(home, model)
		if err != nil {
			return product{}, err
		}
		cfg.Command, cfg.Args, cfg.Env = run.Command, run.Args, run.Env
		p, err := acp.New(acp.Config{Config: cfg})
		return product{p, hand{found.Opencode, cfg.Args, cfg.Env, []step{
			{send: `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{}}}`, until: `"id":0`},
			{send: `{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"CWD","mcpServers":[]}}`, until: `"id":1`, id: regexp.MustCompile(`"sessionId":"([^"]+)"`), ready: true},
			{send: `{"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"ID","prompt":[{"type":"text","text":"` + answerIs + `"}]}}`, until: `"id":2`},
		}}}, err
	case "dsh":
		run, err := harness.Runtime(home, deepseek)
		if err != nil {
			return product{}, err
		}
		cfg.Command, cfg.Args, cfg.Env = run.Command, run.Args, run.Env
		p, err := dsh.New(dsh.Config{Config: cfg})
		return product{p, hand{run.Command, run.Args, run.Env, []step{
			{send: `{"jsonrpc":"2.0","id":"a","method":"initialize","params":{"cwd":"CWD","provider":"deepseek-official","model":"deepseek-v4-flash"}}`, until: `"id":"a"`, ready: true},
			{send: `{"jsonrpc":"2.0","id":"b","method":"session/prompt","params":{"sessionId":"s","contentBlocks":[{"type":"text","text":"` + answerIs + `"}]}}`, until: `"status":"idle"`},
		}}}, err
	}
	return product{}, fmt.Errorf("no product is named %q", name)
}

// realProducts measures each product twice: as a child, and by hand. Samples are single runs.
func realProducts(ctx context.Context, b *bench) error {
	for _, name := range productNames() {
		if err := realProduct(ctx, b, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func realProduct(ctx context.Context, b *bench, name string) (err error) {
	model, err := fakemodel.Open(fakemodel.Options{Discard: true, Lenient: true})
	if err != nil {
		return err
	}
	defer model.Close()
	deepseek, err := fakemodel.Open(fakemodel.Options{Dialect: fakemodel.DeepSeek, Discard: true})
	if err != nil {
		return err
	}
	defer deepseek.Close()
	home, work := filepath.Join(b.dir, "home-"+name), filepath.Join(b.dir, "work-"+name)
	if err := errors.Join(os.MkdirAll(home, 0o700), os.MkdirAll(work, 0o700)); err != nil {
		return err
	}
	p, err := newProduct(name, home, model, deepseek)
	if err != nil {
		return err
	}
	r, parent, err := peerRig(ctx, p.provider, work)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	for i := range max(3, b.samples) + 1 {
		child, err := asChild(ctx, r, p, parent, name)
		if err != nil {
			return err
		}
		byHand, err := p.hand.drive(ctx, byHandWork(name), work)
		if err != nil {
			return err
		}
		if i == 0 {
			continue // the first finds nothing in the caches
		}
		if err := errors.Join(b.out.Encode(child), b.out.Encode(byHand)); err != nil {
			return err
		}
	}
	return nil
}

// asChild is one run up to its result.
func asChild(ctx context.Context, r *rig, p product, parent *agent.Agent, name string) (sample, error) {
	began := time.Now()
	run, err := r.service.Start(ctx, p.provider.Name(), asking(parent, answerIs))
	if err != nil {
		return sample{}, err
	}
	ready := time.Since(began)
	res, err := run.Wait(ctx)
	s := sample{Work: productWork(name), Wall: float64(time.Since(began)), Values: map[string]float64{"ms to ready": float64(ready) / ms}}
	ending := time.Now()
	err = errors.Join(err, run.Close(ctx))
	s.Values["ms to end it"] = float64(time.Since(ending)) / ms
	if err == nil && (res.StopReason != subagent.StopCompleted || message.JoinText(res.Output) != "42") {
		err = fmt.Errorf("ended as %s, %q: %s", res.StopReason, message.JoinText(res.Output), res.Diagnostic)
	}
	return s, err
}

// drive is one run up to its result, with nothing of this project around it.
func (h hand) drive(ctx context.Context, work, dir string) (s sample, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	cmd := exec.CommandContext(ctx, h.path, h.args...)
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range h.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return s, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return s, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return s, err
	}
	defer func() {
		stop()
		_ = cmd.Wait() // it was killed
	}()
	s = sample{Work: work, Values: map[string]float64{}}
	lines := bufio.NewReaderSize(out, 1<<20)
	id := ""
	for _, step := range h.steps {
		line := strings.NewReplacer("CWD", dir, "ID", id).Replace(step.send)
		if _, err := in.Write([]byte(line + "\n")); err != nil {
			return s, err
		}
		for step.until != "" {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return s, fmt.Errorf("%s: waiting for %s: %w", work, step.until, err)
			}
			if !bytes.Contains(line, []byte(step.until)) {
				continue
			}
			if step.id != nil {
				found := step.id.FindSubmatch(line)
				if found == nil {
					return s, fmt.Errorf("%s: no id in %s", work, line)
				}
				id = string(found[1])
			}
			break
		}
		if step.ready {
			s.Values["ms to ready"] = float64(time.Since(began)) / ms
		}
	}
	s.Wall = float64(time.Since(began))
	return s, nil
}
