package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// vendorError is what the several vendors say when they fail.
type vendorError struct {
	message string
	kind    string // their type and code, lower case
	status  int    // a code that is an HTTP status, or 0
}

// parseVendorError reads {"error":{…}}, {"error":"…"}, {"message":…}, {"detail":…}
// and arrays of these. ok is false where the data says nothing.
func parseVendorError(data []byte) (v vendorError, ok bool) {
	data = bytes.TrimSpace(data)
	if len(data) > 0 && data[0] == '[' {
		var list []json.RawMessage
		if json.Unmarshal(data, &list) != nil || len(list) == 0 {
			return v, false
		}
		data = list[0]
	}
	type fields struct {
		Error   json.RawMessage `json:"error"`
		Message json.RawMessage `json:"message"`
		Detail  json.RawMessage `json:"detail"`
		Type    json.RawMessage `json:"type"`
		Code    json.RawMessage `json:"code"`
	}
	var f fields
	if json.Unmarshal(data, &f) != nil {
		return v, false
	}
	if s, isText := textOf(f.Error); isText && s != "" {
		return vendorError{message: s}, true
	}
	if len(f.Error) > 0 && f.Error[0] == '{' {
		f = fields{}
		if json.Unmarshal(mustField(data, "error"), &f) != nil {
			return v, false
		}
	}
	for _, raw := range []json.RawMessage{f.Message, f.Detail} {
		if s, isText := textOf(raw); isText && s != "" {
			v.message = s
			break
		}
		if len(raw) > 0 && raw[0] != '"' && string(raw) != "null" {
			v.message = string(raw)
			break
		}
	}
	typ, _ := textOf(f.Type)
	code, isText := textOf(f.Code)
	if !isText {
		code = string(f.Code)
	}
	if n, err := strconv.Atoi(code); err == nil && n >= 400 && n < 600 {
		v.status = n
	}
	v.kind = strings.ToLower(strings.TrimSpace(typ + " " + code))
	if v.message == "" {
		v.message = strings.TrimSpace(typ + " " + code)
	}
	return v, v.message != ""
}

func textOf(raw json.RawMessage) (string, bool) {
	var s string
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return "", false
	}
	return s, true
}

func mustField(data []byte, name string) json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(data, &m) != nil {
		return nil
	}
	return m[name]
}

// refusal turns a response that is no stream into an error (core M28).
func (e *Endpoint) refusal(res *http.Response, data []byte) error {
	host := e.Host
	status := strings.TrimSpace(fmt.Sprintf("HTTP %d %s", res.StatusCode, http.StatusText(res.StatusCode)))
	v, ok := parseVendorError(data)
	f := message.Failure{RequestID: requestID(res.Header)}
	if res.StatusCode < 400 {
		if ok && mustField(data, "error") != nil {
			f.Code = midStreamCode(v)
			f.Status = v.status
			f.Message = fmt.Sprintf("%s failed: %s", host, v.message)
		} else {
			f.Code = llm.CodeMalformedResponse
			f.Message = fmt.Sprintf("%s answered %s with %s, not with an event stream; is the base URL right?", host, status, res.Header.Get("Content-Type"))
		}
		return &llm.Error{Failure: f}
	}
	f.Status = res.StatusCode
	f.Code = statusCode(res.StatusCode, v)
	f.RetryAfterMS = retryAfter(res.Header, e.Now())
	switch {
	case ok:
		f.Message = fmt.Sprintf("%s answered %s: %s", host, status, v.message)
	case looksLikeHTML(res.Header, data):
		f.Message = fmt.Sprintf("%s answered %s with a web page, not with an API response", host, status)
	case len(bytes.TrimSpace(data)) == 0:
		f.Message = fmt.Sprintf("%s answered %s", host, status)
	default:
		f.Message = fmt.Sprintf("%s answered %s: %s", host, status, string(data))
	}
	return &llm.Error{Failure: f}
}

func looksLikeHTML(h http.Header, data []byte) bool {
	return strings.Contains(h.Get("Content-Type"), "html") || bytes.HasPrefix(bytes.TrimSpace(data), []byte("<"))
}

// statusCode maps an HTTP status (core M28). 402 is what vendors answer when there
// is no money left.
func statusCode(status int, v vendorError) string {
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return llm.CodeAuth
	case status == http.StatusPaymentRequired, status < 500 && v.saysQuota():
		return llm.CodeQuota
	case status == http.StatusTooManyRequests:
		return llm.CodeRateLimit
	case status == http.StatusBadRequest && v.saysContext():
		return llm.CodeContextWindow
	case status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge:
		return llm.CodeInvalidRequest
	case status >= 500:
		return llm.CodeServer
	default:
		return "HTTP_" + strconv.Itoa(status)
	}
}

// midStreamCode maps an error object that arrived under a good status. What cannot
// be told is the server's fault: it had accepted the request.
func midStreamCode(v vendorError) string {
	switch {
	case v.status != 0:
		return statusCode(v.status, v)
	case v.saysQuota():
		return llm.CodeQuota
	case containsAny(v.kind, "rate_limit", "ratelimit", "too_many_requests", "toomanyrequests"):
		return llm.CodeRateLimit
	case v.saysContext():
		return llm.CodeContextWindow
	case containsAny(v.kind, "authentication", "invalid_api_key", "permission"):
		return llm.CodeAuth
	case containsAny(v.kind, "invalid_request", "badrequest", "bad_request", "request_too_large"):
		return llm.CodeInvalidRequest
	case containsAny(v.kind, "not_found"):
		return "HTTP_404"
	default:
		return llm.CodeServer
	}
}

// StreamFailure turns an error object that arrived within the stream into an error
// with a code.
func StreamFailure(data []byte) error {
	v, ok := parseVendorError(data)
	if !ok {
		v.message = string(data)
	}
	return &llm.Error{Failure: message.Failure{
		Code:    midStreamCode(v),
		Status:  v.status,
		Message: fmt.Sprintf("the server failed during the answer: %s", v.message),
	}}
}

// saysQuota knows the vendors' words for an exhausted account. A quota per minute
// is a rate limit, and OpenAI's rate limit message mentions billing, so neither
// word alone is enough.
func (v vendorError) saysQuota() bool {
	text := strings.ToLower(v.message)
	if containsAny(v.kind, "insufficient_quota", "billing_hard_limit", "billing_error", "insufficient_balance", "insufficient_credits") {
		return true
	}
	if containsAny(text, "insufficient balance", "insufficient credit", "insufficient funds", "out of credits", "more credits", "credit balance",
		"exceeded your current quota", "billing hard limit", "api usage limits", "spend limit") {
		return true
	}
	return strings.Contains(text, "quota") && !containsAny(text, "per minute", "per second", "rate limit")
}

// saysContext knows the vendors' words for a request that is too long.
func (v vendorError) saysContext() bool {
	return containsAny(v.kind, "context_length_exceeded", "exceed_context_size", "context_window_exceeded") ||
		containsAny(strings.ToLower(v.message), "context length", "context window", "context size", "context limit", "context_length",
			"max_model_len", "maximum input length", "prompt is too long", "prompt too long", "input is too long", "input too long",
			"reduce the length of", "too many input tokens")
}

func containsAny(s string, words ...string) bool {
	for _, w := range words {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}

// retryAfter reads how long the vendor asks to wait, in milliseconds: seconds or a
// date in Retry-After, or OpenAI's retry-after-ms. What is not positive is absent.
func retryAfter(h http.Header, now time.Time) int64 {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 {
		return clampMS(ms)
	}
	value := strings.TrimSpace(h.Get("Retry-After"))
	if s, err := strconv.ParseFloat(value, 64); err == nil {
		return clampMS(s * 1000)
	}
	if at, err := http.ParseTime(value); err == nil {
		return clampMS(float64(at.Sub(now)) / float64(time.Millisecond))
	}
	return 0
}

// clampMS rounds up, so that nobody comes back too early, and keeps to numbers
// that the log can hold.
func clampMS(ms float64) int64 {
	if !(ms > 0) { // also NaN
		return 0
	}
	return int64(math.Min(math.Ceil(ms), 1<<53-1))
}
