package llm

import (
	"time"

	"github.com/offshoot-dev/offshoot/message"
)

// RetryMode says how persistent a policy is.
type RetryMode string

// The retry modes. The zero value is RetryNormal.
const (
	// RetryNormal gives up after MaxRetries, and at once when the vendor asks for a
	// longer wait than Cap.
	RetryNormal RetryMode = "normal"
	// RetryAlways never gives up on a retryable failure (core M18).
	RetryAlways RetryMode = "always"
)

// The values that the zero Policy stands for (core M16).
const (
	DefaultMaxRetries = 5
	DefaultRetryBase  = 500 * time.Millisecond
	DefaultRetryCap   = 10 * time.Second
	DefaultJitter     = 0.1
)

// Policy decides whether and when a failed call is made again. It only decides:
// the agent loop waits, logs and calls. The zero value is the default policy.
// Policies are plain values and safe for concurrent use.
type Policy struct {
	Mode RetryMode
	// MaxRetries bounds the retries of RetryNormal: 0 means DefaultMaxRetries, a
	// negative number means none.
	MaxRetries int
	// Base is the delay before the first retry; each further one is twice as long,
	// up to Cap. 0 means the default.
	Base time.Duration
	Cap  time.Duration
	// Jitter is the fraction by which a delay of our own varies to either side, so
	// that children which failed together do not return together. 0 means
	// DefaultJitter, a negative number none.
	Jitter float64
	// Key names the policy in the log and is part of what a retry counter is kept
	// by (core M18).
	Key string
}

// Limit returns how many retries the policy allows, and false where there is no
// bound.
func (p Policy) Limit() (int, bool) {
	switch {
	case p.Mode == RetryAlways:
		return 0, false
	case p.MaxRetries < 0:
		return 0, true
	case p.MaxRetries == 0:
		return DefaultMaxRetries, true
	default:
		return p.MaxRetries, true
	}
}

// Retryable reports whether a failure of this code may go away by itself:
// EMPTY_RESPONSE, RATE_LIMIT, SERVER, TIMEOUT, TRANSPORT (core M16), and
// STREAM_CLOSED, which is a transport that broke late.
func Retryable(code string) bool {
	switch code {
	case CodeEmptyResponse, CodeRateLimit, CodeServer, CodeTimeout, CodeTransport, CodeStreamClosed:
		return true
	default:
		return false
	}
}

// Next decides on one failure. retries counts the retries that were already made
// (0 after the first failure); random yields numbers in [0, 1), and nil means no
// jitter. It returns how long to wait, and false when the failure stands.
//
// A delay that the vendor asked for replaces our own, without jitter, while it is
// not above Cap; above it, RetryNormal gives up and RetryAlways waits as long as
// it would have anyway (core M16-M18).
func (p Policy) Next(retries int, failure message.Failure, random func() float64) (time.Duration, bool) {
	if !Retryable(failure.Code) {
		return 0, false
	}
	if limit, bounded := p.Limit(); bounded && retries >= limit {
		return 0, false
	}
	limit := p.Cap
	if limit <= 0 {
		limit = DefaultRetryCap
	}
	if failure.RetryAfterMS > 0 {
		// Compared in milliseconds: the product could overflow a Duration.
		if failure.RetryAfterMS <= limit.Milliseconds() {
			return time.Duration(failure.RetryAfterMS) * time.Millisecond, true
		}
		if p.Mode != RetryAlways {
			return 0, false
		}
	}
	return p.jitter(p.backoff(retries, limit), random), true
}

func (p Policy) backoff(retries int, limit time.Duration) time.Duration {
	d := p.Base
	if d <= 0 {
		d = DefaultRetryBase
	}
	for range retries {
		if d >= limit/2 {
			return limit
		}
		d *= 2
	}
	return min(d, limit)
}

func (p Policy) jitter(d time.Duration, random func() float64) time.Duration {
	share := p.Jitter
	if share == 0 {
		share = DefaultJitter
	}
	if share < 0 || random == nil {
		return d
	}
	return d + time.Duration(float64(d)*share*(2*random()-1))
}

// Retries counts the retries within one step of one turn. Its zero value is
// ready; a step begins with a new one. It is not safe for concurrent use.
type Retries struct {
	provider, key string
	made          int
}

// Next is Policy.Next for the next failure of this step on a route. A change of
// route or of policy key starts the count again (core M18). retry is the number
// of the retry that is due, from 1; it counts only when ok.
func (r *Retries) Next(provider string, p Policy, failure message.Failure, random func() float64) (retry int, delay time.Duration, ok bool) {
	if provider != r.provider || p.Key != r.key {
		*r = Retries{provider: provider, key: p.Key}
	}
	delay, ok = p.Next(r.made, failure, random)
	if !ok {
		return 0, 0, false
	}
	r.made++
	return r.made, delay, true
}
