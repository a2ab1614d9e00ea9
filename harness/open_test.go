package harness_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/job"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
)

// configured loads a configuration file with this text.
func configured(t *testing.T, text string) *config.Effective {
	t.Helper()
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "config.yaml"), []byte("version: 1\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	eff, err := config.Load(config.LoadOptions{Cwd: home, DataDir: home, Env: config.MapEnviron(map[string]string{"OFFSHOOT_HOME": home, "HOME": home})})
	if err != nil {
		t.Fatal(err)
	}
	return eff
}

// stuckStore is a store whose Close fails when it has closed.
type stuckStore struct{ session.Store }

var errStuck = errors.New("the disk is stuck")

func (s stuckStore) Close(ctx context.Context) error {
	return errors.Join(s.Store.Close(ctx), errStuck)
}

// Whatever an Open fails with, nothing is left open: the store that was handed in is
// closed, and what that fails with is told too.
func TestOpenFails(t *testing.T) {
	broken := errors.New("no adapters today")
	for name, c := range map[string]struct {
		o    harness.Options
		says string
	}{
		"no configuration": {harness.Options{}, "Config is required"},
		"an adapter":       {harness.Options{Config: configured(t, ""), Adapters: func(*llm.Registry) error { return broken }}, broken.Error()},
		"a filter":         {harness.Options{Config: configured(t, "tools: {deny: [nosuch]}\n")}, "nosuch"},
	} {
		t.Run(name, func(t *testing.T) {
			store := memory.New()
			c.o.Store = stuckStore{store}
			h, err := harness.Open(t.Context(), c.o)
			if h != nil || err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Open = %v, %v", h, err)
			}
			if !errors.Is(err, errStuck) {
				t.Errorf("what the store's end failed with is not told: %v", err)
			}
			if _, err := store.Exists(t.Context(), "x"); !errors.Is(err, session.ErrClosed) {
				t.Errorf("the store is left open: %v", err)
			}
		})
	}
}

// core D43; design § 4, Bounded: the limit of the configuration is that of an agent's
// background jobs.
func TestMaxJobs(t *testing.T) {
	h, err := harness.Open(t.Context(), harness.Options{Config: configured(t, "limits: {maxJobs: 2}\n"), Store: memory.New()})
	if err != nil {
		t.Fatal(err)
	}
	root, err := h.NewRoot(t.Context(), t.TempDir(), config.Choice{Ref: config.ModelRef{Route: "demo", Model: "demo"}})
	if err != nil {
		t.Fatal(err)
	}
	spec := job.Spec{Kind: "test", Run: func(ctx context.Context) job.Outcome {
		<-ctx.Done()
		return job.Outcome{State: job.Killed}
	}}
	for range 2 {
		if _, err := h.Jobs.Start(root.Agent(), spec); err != nil {
			t.Fatal(err)
		}
	}
	var limit *job.LimitError
	if _, err := h.Jobs.Start(root.Agent(), spec); !errors.As(err, &limit) || limit.Limit != 2 {
		t.Errorf("beyond the limit: %v", err)
	}
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
