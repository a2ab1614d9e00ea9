package llm_test

import (
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

func TestPolicyCodes(t *testing.T) { // M16
	want := map[string]bool{
		llm.CodeEmptyResponse: true, llm.CodeRateLimit: true, llm.CodeServer: true, llm.CodeTimeout: true, llm.CodeTransport: true, llm.CodeStreamClosed: true,
		llm.CodeAuth: false, llm.CodeQuota: false, llm.CodeContextWindow: false, llm.CodeInvalidRequest: false, llm.CodeMalformedResponse: false,
		llm.CodeMissingCredential: false, llm.CodeInvalidCredential: false, llm.CodeAborted: false, llm.CodeNoAdapter: false, llm.CodeUnknown: false, "HTTP_418": false,
	}
	for code, retry := range want {
		for _, mode := range []llm.RetryMode{"", llm.RetryNormal, llm.RetryAlways} {
			if _, ok := (llm.Policy{Mode: mode}).Next(0, message.Failure{Code: code}, nil); ok != retry {
				t.Errorf("%s in mode %q: retry %v, want %v", code, mode, ok, retry)
			}
		}
	}
}

func TestPolicyDelays(t *testing.T) { // M16-M18
	const no = time.Duration(-1)
	fixed := func(v float64) func() float64 { return func() float64 { return v } }
	tests := []struct {
		name    string
		policy  llm.Policy
		retries int
		after   int64
		random  func() float64
		want    time.Duration
	}{
		{name: "first", want: 500 * time.Millisecond},
		{name: "doubles", retries: 3, want: 4 * time.Second},
		{name: "last, below the cap", retries: 4, want: 8 * time.Second},
		{name: "the bound of five", retries: 5, want: no},
		{name: "capped", policy: llm.Policy{MaxRetries: 100}, retries: 99, want: 10 * time.Second},
		{name: "own bound", policy: llm.Policy{MaxRetries: 1}, retries: 1, want: no},
		{name: "none at all", policy: llm.Policy{MaxRetries: -1}, want: no},
		{name: "jitter below", random: fixed(0), want: 450 * time.Millisecond},
		{name: "jitter middle", random: fixed(0.5), want: 500 * time.Millisecond},
		{name: "jitter off", policy: llm.Policy{Jitter: -1}, random: fixed(0), want: 500 * time.Millisecond},
		{name: "vendor's delay replaces ours, unjittered", after: 7_000, random: fixed(0), want: 7 * time.Second},
		{name: "vendor's delay at the cap", after: 10_000, want: 10 * time.Second},
		{name: "vendor's delay above the cap", after: 10_001, want: no},
		{name: "vendor's delay beyond all measure", after: 1 << 62, want: no},
		{name: "always is unbounded", policy: llm.Policy{Mode: llm.RetryAlways}, retries: 1_000_000, want: 10 * time.Second},
		{name: "always keeps its own delay above the cap", policy: llm.Policy{Mode: llm.RetryAlways}, retries: 1, after: 60_000, want: time.Second},
		{name: "always honours a delay below the cap", policy: llm.Policy{Mode: llm.RetryAlways}, retries: 9, after: 20, want: 20 * time.Millisecond},
		{name: "base and cap", policy: llm.Policy{Base: 3 * time.Second, Cap: 4 * time.Second}, retries: 1, want: 4 * time.Second},
		{name: "base above the cap", policy: llm.Policy{Base: time.Minute}, want: 10 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := tt.policy.Next(tt.retries, message.Failure{Code: llm.CodeRateLimit, RetryAfterMS: tt.after}, tt.random)
			if !ok {
				got = no
			}
			if got != tt.want {
				t.Errorf("delay %v, want %v", got, tt.want)
			}
		})
	}
}

func TestRetriesStartAgainOnAnotherRoute(t *testing.T) { // M18
	var r llm.Retries
	p := llm.Policy{MaxRetries: 2, Key: "k"}
	f := message.Failure{Code: llm.CodeServer}
	step := func(provider string, p llm.Policy) int {
		n, _, ok := r.Next(provider, p, f, nil)
		if !ok {
			return -1
		}
		return n
	}
	got := []int{step("a", p), step("a", p), step("a", p), step("b", p), step("b", p)}
	p.Key = "other"
	got = append(got, step("b", p))
	want := []int{1, 2, -1, 1, 2, 1}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("retries %v, want %v", got, want)
		}
	}
}
