package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// A retry is logged before and after its wait, inside the same step; a failed
// attempt leaves no message (core M16, M19, M20, L39).
func TestRetryInsideTheStep(t *testing.T) {
	bubble(t, func(w *world) {
		w.model.policies = map[string]llm.Policy{"test": {Jitter: -1}}
		w.model.script(
			func(c *call) { c.text("lost"); c.fail(message.Failure{Code: llm.CodeServer, Message: "busy"}) },
			func(c *call) { c.fail(message.Failure{Code: llm.CodeRateLimit, Message: "slow", RetryAfterMS: 1234}) },
			say("x"),
		)
		a := w.create()
		start := time.Now()
		w.ask(a, "m1")
		if d := time.Since(start); d != 500*time.Millisecond+1234*time.Millisecond {
			t.Errorf("the waits took %v", d)
		}
		w.logged(a, 5, "header initial test:m1", "request-context",
			"retry 1 SERVER 500ms", "retry-started 1", "retry 2 RATE_LIMIT 1234ms", "retry-started 2",
			`assistant "x"`, "step-end 1.1", "end 1 completed")
		w.same("streamed text of the lost attempt", "", a.StreamedText())
		w.same("failures", 0, len(w.rec.failures(a)))
	})
}

// The limit of a policy, and the last word of a RequestError hook (core M16, L39).
func TestRetryGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		policy llm.Policy
		code   string
		hook   bool
		calls  int
		end    string
	}{
		"after the limit":     {llm.Policy{MaxRetries: 2, Jitter: -1}, llm.CodeServer, false, 3, "end 1 error SERVER"},
		"at once, not at all": {llm.Policy{}, llm.CodeAuth, false, 1, "end 1 error AUTH"},
		"no retries":          {llm.Policy{MaxRetries: -1}, llm.CodeServer, false, 1, "end 1 error SERVER"},
		"the hook goes on":    {llm.Policy{MaxRetries: -1}, llm.CodeServer, true, 3, "end 1 completed"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				w.model.policies = map[string]llm.Policy{"test": c.policy}
				w.model.script(fails(c.code), fails(c.code))
				if !c.hook {
					w.model.script(fails(c.code))
				}
				var asked []int
				a := w.create(func(a *agent.Agent) {
					a.AddHooks(agent.Hooks{RequestError: func(_ context.Context, _ *agent.Agent, f message.Failure, attempt int) bool {
						asked = append(asked, attempt)
						return c.hook
					}})
				})
				w.ask(a, "m1")
				w.same("calls", c.calls, w.model.count())
				w.same("end", []string{c.end}, lines(a, "end"))
				if c.hook {
					w.same("asked", []int{1, 2}, asked)
				} else {
					w.same("asked", []int{1}, asked)
				}
			})
		})
	}
}

// A route switch starts the count anew (core M18), and so does a later step.
func TestRetryCountsPerRoute(t *testing.T) {
	bubble(t, func(w *world) {
		w.model.policies = map[string]llm.Policy{"test": {MaxRetries: 1, Jitter: -1}, "other": {MaxRetries: 1, Jitter: -1, Key: "k"}}
		w.model.script(fails(llm.CodeServer), fails(llm.CodeServer), fails(llm.CodeTimeout), say("x"), fails(llm.CodeServer), say("y"))
		route := "test"
		a := w.create(func(a *agent.Agent) {
			a.AddHooks(agent.Hooks{
				Request: func(_ context.Context, _ *agent.Agent, c *llm.CallConfig) error { c.Provider = route; return nil },
				RequestError: func(context.Context, *agent.Agent, message.Failure, int) bool {
					route = "other"
					return true
				},
			})
		})
		w.ask(a, "m1")
		w.ask(a, "m2")
		w.same("course", []string{
			"header initial test:m1", "retry 1 SERVER 500ms", "retry-started 1",
			"header change other:m1", "retry 1 TIMEOUT 500ms", "retry-started 1", `assistant "x"`,
			"retry 1 SERVER 500ms", "retry-started 1", `assistant "y"`,
		}, lines(a, "header", "retry", "assistant"))
	})
}

// Request hooks choose the call; a choice stays until the next one (core L39). The
// header is logged when it changes, and only then.
func TestRequestConfig(t *testing.T) {
	bubble(t, func(w *world) {
		w.model.deflt = 77
		switchTo := ""
		a := w.create(func(a *agent.Agent) {
			a.AddHooks(agent.Hooks{Request: func(_ context.Context, _ *agent.Agent, c *llm.CallConfig) error {
				if c.MaxTokens != 0 {
					t.Errorf("the adapter's default came back as a choice: %d", c.MaxTokens)
				}
				if switchTo != "" {
					c.Model, switchTo = switchTo, ""
				}
				return nil
			}})
		})
		w.ask(a, "m1")
		switchTo = "m2"
		w.ask(a, "m2")
		w.ask(a, "m3")
		w.same("headers", []string{"header initial test:m1", "header change test:m2"}, lines(a, "header"))
		w.same("model of the last request", "m2", w.model.requests[2].req.Model)
		w.same("max tokens", int64(77), w.model.requests[2].req.MaxTokens)
	})
}

func TestRequestHookFails(t *testing.T) {
	for name, hook := range map[string]func(context.Context, *agent.Agent, *llm.CallConfig) error{
		"UNKNOWN":         func(context.Context, *agent.Agent, *llm.CallConfig) error { return errBoom },
		"INVALID_REQUEST": func(_ context.Context, _ *agent.Agent, c *llm.CallConfig) error { c.Model = ""; return nil },
		"NO_ADAPTER":      func(_ context.Context, _ *agent.Agent, c *llm.CallConfig) error { c.Provider = "nowhere"; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				a := w.create(func(a *agent.Agent) { a.AddHooks(agent.Hooks{Request: hook}) })
				w.ask(a, "m1")
				w.same("course", []string{"user m1", "end 1 error " + name}, lines(a, "user", "assistant", "end"))
			})
		})
	}
}
