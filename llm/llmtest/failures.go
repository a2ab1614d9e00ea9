package llmtest

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// shortIdle is an idle timeout that a test can wait for.
const shortIdle = 150 * time.Millisecond

func failureCases() []suiteCase {
	var cases []suiteCase
	for _, row := range []struct {
		name   string
		reason Reason
		code   string
		status bool // the failure says the HTTP status
	}{
		{"400 (M28)", BadRequest, llm.CodeInvalidRequest, true},
		{"400 for its length (M28)", ContextLength, llm.CodeContextWindow, true},
		{"401 (M28)", Unauthorized, llm.CodeAuth, true},
		{"403 (M28)", Forbidden, llm.CodeAuth, true},
		{"quota (M28)", Quota, llm.CodeQuota, true},
		{"413 (M28)", TooLarge, llm.CodeInvalidRequest, true},
		{"429 (M28)", RateLimited, llm.CodeRateLimit, true},
		{"500 (M28)", ServerError, llm.CodeServer, true},
		{"overloaded (M28)", Overloaded, llm.CodeServer, true},
	} {
		cases = append(cases, suiteCase{row.name, []Kind{Reject}, func(t *testing.T, f Factory) {
			s := f.Open(t, Options{}, Answer{{Kind: Reject, Reason: row.reason}})
			failure := s.fails(t, row.code)
			if row.status && failure.Status < 400 {
				t.Errorf("the failure does not say its status: %+v", failure)
			}
			if s.Calls != nil && s.Calls() != 1 {
				t.Errorf("%d calls reached the endpoint: retrying is not the adapter's", s.Calls())
			}
		}})
	}
	part := Step{Kind: Say, Text: "so far"}
	for _, row := range []struct {
		name   string
		needs  []Kind
		answer Answer
		code   string
		said   bool
	}{
		{"an empty answer (M28)", []Kind{Empty}, Answer{{Kind: Empty}}, llm.CodeEmptyResponse, false},
		{"an error in the stream (M28)", []Kind{Break}, Answer{part, {Kind: Break, Text: "sorry"}}, llm.CodeServer, true},
		{"a cut stream (M28)", []Kind{Cut}, Answer{part, {Kind: Cut}}, llm.CodeStreamClosed, true},
		{"an early end in good order (M28)", []Kind{End}, Answer{part, {Kind: End}}, llm.CodeStreamClosed, true},
		{"an end before the beginning (M28)", []Kind{End}, Answer{{Kind: End}}, llm.CodeStreamClosed, false},
		{"garbage (M28)", []Kind{Garbage}, Answer{part, {Kind: Garbage}}, llm.CodeMalformedResponse, true},
		{"silence before the headers (M28)", []Kind{Stall, IdleTimeout}, Answer{{Kind: Stall}}, llm.CodeTimeout, false},
		{"silence in the answer (M28)", []Kind{Stall, IdleTimeout}, Answer{part, {Kind: Stall}}, llm.CodeTimeout, true},
	} {
		cases = append(cases, suiteCase{row.name, row.needs, func(t *testing.T, f Factory) {
			options := Options{}
			if slices.Contains(row.needs, IdleTimeout) {
				options.IdleTimeout = shortIdle
			}
			s := f.Open(t, options, row.answer)
			r := s.call(t, t.Context(), s.ask("hi"))
			s.wantFailure(t, r, row.code)
			if row.said && r.text != "so far" {
				t.Errorf("the part that arrived is %q", r.text)
			}
		}})
	}
	return append(cases,
		suiteCase{"429 with seconds (M17, M28)", []Kind{Reject}, func(t *testing.T, f Factory) {
			s := f.Open(t, Options{}, Answer{{Kind: Reject, Reason: RateLimited, RetryAfter: "7"}})
			if ms := s.fails(t, llm.CodeRateLimit).RetryAfterMS; ms != 7_000 {
				t.Errorf("retry after %d ms, want 7000", ms)
			}
		}},
		suiteCase{"429 with a date (M17, M28)", []Kind{Reject}, func(t *testing.T, f Factory) {
			at := time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat)
			s := f.Open(t, Options{}, Answer{{Kind: Reject, Reason: RateLimited, RetryAfter: at}})
			if ms := s.fails(t, llm.CodeRateLimit).RetryAfterMS; ms < 60_000 || ms > 90_000 {
				t.Errorf("retry after %d ms, want less than 90000", ms)
			}
		}},
		suiteCase{"429 with nonsense (M28)", []Kind{Reject}, func(t *testing.T, f Factory) {
			s := f.Open(t, Options{}, Answer{{Kind: Reject, Reason: RateLimited, RetryAfter: "-5"}})
			if ms := s.fails(t, llm.CodeRateLimit).RetryAfterMS; ms != 0 {
				t.Errorf("retry after %d ms, want none", ms)
			}
		}},
	)
}

// fails makes a call that must fail with that code and nothing said.
func (s Subject) fails(t testing.TB, code string) message.Failure {
	t.Helper()
	r := s.call(t, t.Context(), s.ask("hi"))
	s.wantFailure(t, r, code)
	if len(r.blocks) > 0 {
		t.Errorf("a failed call said %+v", r.blocks)
	}
	if r.finish.Failure == nil {
		return message.Failure{}
	}
	return *r.finish.Failure
}

func (s Subject) wantFailure(t testing.TB, r result, code string) {
	t.Helper()
	if r.finish.Kind != llm.FinishError || r.finish.Failure == nil || r.finish.Failure.Code != code {
		t.Errorf("finish %q, want an error with code %s: %+v", r.finish.Kind, code, r.finish.Failure)
	}
}
