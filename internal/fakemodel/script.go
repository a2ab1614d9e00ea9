package fakemodel

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
)

// Script decides the answer to one chat request. The server calls it from many goroutines at once, each call on its
// own request's goroutine, before any byte of the answer is sent.
type Script func(Request) Reply

// Reply is what one request is answered with: its steps, played in order. The empty Reply is the empty answer, a
// well-formed stream with no content.
type Reply []Step

// Echo answers with the text of the last user message.
func Echo(r Request) Reply {
	if text := r.LastUserText(); text != "" {
		return Reply{Text(text)}
	}
	return Reply{Text("(nothing to echo)")}
}

// Always answers every request with the same steps.
func Always(steps ...Step) Script {
	return func(Request) Reply { return steps }
}

// Sequence answers the n-th request that it is asked to decide with the n-th reply, whoever sends it. What comes
// after the last one is refused as an exhausted script.
func Sequence(replies ...Reply) Script {
	var next atomic.Int64
	return func(Request) Reply { return at(replies, int(next.Add(1))-1, "request") }
}

// ByPosition answers by how far the conversation has come: the reply at the index of [Request.Position]. It keeps no
// state, so any number of conversations may run through it in parallel.
func ByPosition(replies ...Reply) Script {
	return func(r Request) Reply { return at(replies, r.Position(), "position") }
}

// ByAttempt answers the n-th attempt at the same request with the n-th script; the last one serves all later
// attempts.
func ByAttempt(scripts ...Script) Script {
	return func(r Request) Reply {
		if len(scripts) == 0 {
			return mistake("ByAttempt has no script")
		}
		return scripts[min(r.Attempt, len(scripts))-1](r)
	}
}

// Rule is a case of [Match].
type Rule struct {
	// Contains must occur in the last user text; "" occurs in every one.
	Contains string
	Script   Script
}

// Match answers with the first rule that fits the last user text; a request that fits none is refused.
func Match(rules ...Rule) Script {
	return func(r Request) Reply {
		text := r.LastUserText()
		for _, rule := range rules {
			if strings.Contains(text, rule.Contains) {
				return rule.Script(r)
			}
		}
		return mistake(fmt.Sprintf("no rule matches the user text %.80q", text))
	}
}

func at(replies []Reply, i int, what string) Reply {
	if i < len(replies) {
		return replies[i]
	}
	return mistake(fmt.Sprintf("script exhausted: no reply for %s index %d of %d", what, i, len(replies)))
}

// mistake is the answer to a request that the script failed to provide for: a status that no client retries, and a
// text that says who is to blame.
func mistake(text string) Reply {
	return Reply{Status{Code: http.StatusBadRequest, Body: string(appendJSON(nil, object{
		{"error", object{{"message", "fakemodel: " + text}, {"type", "fakemodel_error"}, {"param", nil}, {"code", "fakemodel"}}},
	}))}}
}
