package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/sqlite"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
)

// The tree of the design: every agent above the leaves delegates to so many
// children in one turn.
const (
	treeDepth, treeFan = 5, 4
	treeChildren       = 1364 // 4 + 16 + 64 + 256 + 1024
)

const (
	treeLive   = "live"
	treeMemory = "memory"
	treeSQLite = "sqlite"
)

func treeWork(kind string) string {
	where := map[string]string{treeLive: "in memory, live only", treeMemory: "in memory, stored", treeSQLite: "on SQLite"}[kind]
	return fmt.Sprintf("tree of depth %d × fan-out %d %s, whole process", treeDepth, treeFan, where)
}

func toolWork(kind storeKind, n int) string {
	return fmt.Sprintf("one-shot child through the tool %s, %s at once", kind.name, thousands(n))
}

// delegation is a script in which the prompt "grow N" makes an agent delegate
// "grow N-1" to fan children in one step, and "grow 0" is answered.
func delegation(depth, fan int) scripted.Script {
	leaf := scripted.Conversation{Match: scripted.LastPrompt("grow 0."), SincePrompt: true, Steps: []scripted.Step{{scripted.SayLiteral("The answer is 42.")}}}
	script := scripted.Script{leaf}
	for level := 1; level <= depth; level++ {
		var ask scripted.Step
		for range fan {
			ask = append(ask, scripted.CallLiteral(delegate.DefaultToolName, fmt.Sprintf(`{"description":"find the answer","prompt":"grow %d."}`, level-1)))
		}
		script = append(script, scripted.Conversation{
			Match: scripted.LastPrompt(fmt.Sprintf("grow %d.", level)), SincePrompt: true,
			Steps: []scripted.Step{ask, {scripted.SayLiteral("They all say 42.")}},
		})
	}
	return script
}

// newDelegatingRig is the fixture with the delegation tool, and agents that may call
// it so many times at once.
func newDelegatingRig(ctx context.Context, store session.Store, depth, fan int) (*rig, error) {
	r, err := newRigOf(ctx, store, delegation(depth, fan), fan)
	if err != nil {
		return nil, err
	}
	most := int64(depth)
	_, err = delegate.Mount(r.service, r.tools.Root(), delegate.Config{Provider: spawn.DefaultName, MaxDepth: &most}, nil)
	return r, err
}

// throughTool measures children that a model asks for: the tool, its checks, and the
// two steps of the parent are in it.
func throughTool(kind storeKind, counts ...int) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) error {
		for _, n := range counts {
			if err := throughToolOf(ctx, b, kind, n); err != nil {
				return err
			}
		}
		return nil
	}
}

func throughToolOf(ctx context.Context, b *bench, kind storeKind, n int) (err error) {
	store, err := kind.open(ctx, b)
	if err != nil {
		return err
	}
	r, err := newDelegatingRig(ctx, store, 1, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	return b.measure(toolWork(kind, n), n, func(p *probe) error {
		p.pause()
		root, err := r.agents.Create(ctx, agent.Create{Options: agent.Options{Provider: route, Model: model}})
		if err != nil {
			return err
		}
		p.start()
		err = ask(ctx, root.Agent(), "grow 1.", n)
		p.pause()
		return errors.Join(err, root.Dispose(ctx))
	})
}

// ask has an agent answer a prompt and counts the children that told it 42.
func ask(ctx context.Context, a *agent.Agent, prompt string, children int) error {
	if err := a.Followup(agent.UserText(prompt)); err != nil {
		return err
	}
	if err := a.WhenIdle(ctx); err != nil {
		return err
	}
	if err := a.Session().Flush(ctx); err != nil {
		return err
	}
	told := 0
	history, _ := a.Session().History()
	for i := range history {
		for _, b := range history[i].Content {
			for _, c := range b.Content {
				if strings.Contains(c.Text, "42") {
					told++
				}
			}
		}
	}
	if told != children {
		return fmt.Errorf("%d children of %d answered", told, children)
	}
	return nil
}

// tree is the whole of a process that grows one tree: it prints a byte when all of
// it is settled and stored.
func tree(ctx context.Context, kind, dir string) (err error) {
	var store session.Store
	switch kind {
	case treeLive:
	case treeMemory:
		store = memory.New()
	case treeSQLite:
		var tmp string
		if tmp, err = os.MkdirTemp(dir, "tree-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
		if store, err = sqlite.Open(ctx, filepath.Join(tmp, dbName), sqlite.Options{}); err != nil {
			return err
		}
	default:
		return fmt.Errorf("flag -tree: no store is named %q", kind)
	}
	r, err := newDelegatingRig(ctx, store, treeDepth, treeFan)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	root, err := r.newAgent(ctx)
	if err != nil {
		return err
	}
	if err := ask(ctx, root, fmt.Sprintf("grow %d.", treeDepth), treeFan); err != nil {
		return err
	}
	if store == nil {
		return nil
	}
	found, err := store.List(ctx, session.Filter{Root: root.ID()}, session.Page{Limit: 2 * treeChildren})
	if err == nil && len(found.Records) != treeChildren+1 {
		err = fmt.Errorf("%d sessions are stored, not %d", len(found.Records), treeChildren+1)
	}
	return err
}

func trees(kinds ...string) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		for _, kind := range kinds {
			if err := b.processes(ctx, treeWork(kind), nil, self, "-tree", kind, "-dir", b.dir); err != nil {
				return err
			}
		}
		return nil
	}
}
