package projection

import (
	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// Usage is what the model calls of a session used (core D33).
type Usage struct {
	// Tokens are the totals, summaries of a compaction included; a step that was tried
	// again counts once, with what its last answer reported. The Has marks are not kept.
	Tokens message.Usage
	// Requests counts the steps that were answered.
	Requests int64
	// Provider and Model are the route of the last request, "" before the first.
	Provider, Model string

	// last is the part of Tokens that belongs to the step answered last.
	last       message.Usage
	turn, step int64
}

// UsageUnit folds assistant messages and request headers into a *Usage.
func UsageUnit() Unit {
	zero := &Usage{}
	return Unit{
		Key: session.CellUsage, Version: cellVersion,
		Types:  []session.Type{session.TypeAssistantMessage, session.TypeRequestHeader, session.TypeCompactionSummary},
		Init:   func(*session.Header) Value { return zero },
		Apply:  applyUsage,
		Append: appendUsage,
		Parse:  parser(parseUsage),
	}
}

func applyUsage(v Value, e *session.Event, p session.Payload) Value {
	old, ok := v.(*Usage)
	if !ok {
		return v
	}
	next := *old
	switch p := p.(type) {
	case *session.RequestHeader:
		next.Provider, next.Model = p.Config.Provider, p.Config.Model
	case *session.CompactionSummary:
		if p.Usage != nil {
			next.Tokens = plus(old.Tokens, *p.Usage)
			next.Tokens.HasCacheRead, next.Tokens.HasCacheWrite, next.Tokens.HasReasoning = false, false, false
		}
	case *session.AssistantMessage:
		if e.Op == session.OpReplace {
			return v // rewritten history, not another answer
		}
		var used message.Usage
		if p.Usage != nil {
			used = *p.Usage
			used.HasCacheRead, used.HasCacheWrite, used.HasReasoning = false, false, false
		}
		if p.Turn == old.turn && p.Step == old.step {
			next.Tokens = plus(minus(old.Tokens, old.last), used)
		} else {
			next.Tokens = plus(old.Tokens, used)
			next.Requests++
		}
		next.last, next.turn, next.step = used, p.Turn, p.Step
		if s := p.Message.Source.Details(); s.Model != "" {
			next.Provider, next.Model = s.Provider, s.Model
		}
	}
	if next == *old {
		return v
	}
	return &next
}

// plus adds two usages within the integers that a checkpoint can hold.
func plus(a, b message.Usage) message.Usage {
	sum := a.Add(b)
	for _, n := range counters(&sum) {
		*n.value = min(*n.value, jsonx.MaxSafe)
	}
	return sum
}

func minus(a, b message.Usage) message.Usage {
	for i, n := range counters(&b) {
		c := counters(&a)[i]
		*c.value = max(*c.value-*n.value, 0)
	}
	return a
}

type counter struct {
	key   string
	value *int64
}

func counters(u *message.Usage) [5]counter {
	return [...]counter{
		{"input", &u.InputTokens}, {"output", &u.OutputTokens}, {"cacheRead", &u.CacheReadTokens},
		{"cacheWrite", &u.CacheWriteTokens}, {"reasoning", &u.ReasoningTokens},
	}
}

func appendUsage(buf []byte, v Value) []byte {
	u, ok := v.(*Usage)
	if !ok {
		return append(buf, "null"...)
	}
	tokens, last := u.Tokens, u.last
	buf = append(buf, '{')
	for _, c := range counters(&tokens) {
		buf = jsonx.AppendIntField(buf, c.key, *c.value)
	}
	buf = jsonx.AppendIntField(buf, "requests", u.Requests)
	if u.Model != "" || u.Provider != "" {
		buf = jsonx.AppendStringField(buf, "provider", u.Provider)
		buf = jsonx.AppendStringField(buf, "model", u.Model)
	}
	if u.turn == 0 {
		return append(buf, '}')
	}
	buf = append(jsonx.AppendKey(buf, "last"), '{')
	buf = jsonx.AppendIntField(buf, "turn", u.turn)
	buf = jsonx.AppendIntField(buf, "step", u.step)
	for _, c := range counters(&last) {
		if *c.value != 0 {
			buf = jsonx.AppendIntField(buf, c.key, *c.value)
		}
	}
	return append(buf, '}', '}')
}

func parseUsage(_ *session.Header, data []byte) (*Usage, error) {
	u := &Usage{Requests: -1}
	tokens, last := counters(&u.Tokens), counters(&u.last)
	err := jsonx.ReadObject(data, func(key string, raw []byte) error {
		switch key {
		case "requests":
			return setInt(&u.Requests, raw)
		case "provider":
			return setString(&u.Provider, raw)
		case "model":
			return setString(&u.Model, raw)
		case "last":
			return jsonx.ReadObject(raw, func(key string, raw []byte) error {
				switch key {
				case "turn":
					return setInt(&u.turn, raw)
				case "step":
					return setInt(&u.step, raw)
				}
				return setCounter(&last, key, raw)
			})
		}
		return setCounter(&tokens, key, raw)
	})
	if err == nil && u.Requests < 0 {
		err = errIncomplete
	}
	return u, err
}

func setCounter(list *[5]counter, key string, raw []byte) error {
	for _, c := range list {
		if c.key == key {
			return setInt(c.value, raw)
		}
	}
	return jsonx.UnknownKey(key)
}

// UsageOf returns the usage that a record's checkpoint holds; false means that it
// does not tell. How many events a session has is rec.Head.
func UsageOf(rec *session.Record) (Usage, bool) { return value(usageOf(rec)) }

func usageOf(rec *session.Record) *Usage { return of(rec, session.CellUsage, parseUsage) }
