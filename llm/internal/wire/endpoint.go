// Package wire is what the adapters for vendors' HTTP APIs share below the shape
// of their requests and answers: one exchange whose silence and early end are
// noticed, the vendors' words for what went wrong, and the one place where a
// failure becomes a line of text without secrets in it.
//
// It knows no vendor's SDK. Floor 6.
package wire

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// messageLimit bounds a failure's text in bytes.
const messageLimit = 500

// Endpoint is what all exchanges with one server have in common. It is immutable
// once it is in use and then safe for concurrent use.
type Endpoint struct {
	// Name begins the text of every failure.
	Name string
	// Host is the server as failures name it.
	Host string
	// Idle bounds every single read from the network; a value that is not positive
	// bounds none (core M28).
	Idle time.Duration
	// Now is the clock for a Retry-After that is a date.
	Now func() time.Time
	// Secrets must not appear in a failure's text, beside the key.
	Secrets []string
}

// ParseBase reads a base URL. The error does not repeat the URL, which may hold a
// secret.
func ParseBase(raw string) (*url.URL, error) {
	base, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, errors.New("the base URL cannot be parsed")
	case base.User != nil:
		return nil, errors.New("the base URL must not carry credentials")
	case (base.Scheme != "http" && base.Scheme != "https") || base.Host == "":
		return nil, errors.New("the base URL must be http(s)://host[/path]")
	}
	return base, nil
}

// AddHeaderSecrets notes the values of those headers whose names say that they are
// secret.
func (e *Endpoint) AddHeaderSecrets(headers map[string]string) {
	for name, value := range headers {
		name = strings.ToLower(name)
		for _, word := range []string{"auth", "key", "token", "secret", "cookie"} {
			if strings.Contains(name, word) {
				e.Secrets = append(e.Secrets, value, strings.TrimPrefix(value, "Bearer "))
				break
			}
		}
	}
}

// HasHeader reports whether headers hold name, in any case.
func HasHeader(headers map[string]string, name string) bool {
	for n := range headers {
		if strings.EqualFold(n, name) {
			return true
		}
	}
	return false
}

// Key returns the key to send, "" for none: that of ask where ask is not nil, else
// key. It is judged before anything goes out: MISSING_CREDENTIAL when it is
// required and there is none or ask fails, INVALID_CREDENTIAL when it holds what
// no key holds (core M28). A refused key is returned too, to be redacted.
func (e *Endpoint) Key(key string, ask func() (string, error), required bool) (string, error) {
	if ask != nil {
		var err error
		if key, err = ask(); err != nil {
			return "", Fail(llm.CodeMissingCredential, fmt.Sprintf("no API key: %v", err))
		}
	}
	if key == "" {
		if required {
			return "", Fail(llm.CodeMissingCredential, fmt.Sprintf("no API key is configured for %s", e.Host))
		}
		return "", nil
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return key, Fail(llm.CodeInvalidCredential, "the API key contains white space or other characters that no key has")
		}
	}
	return key, nil
}

// OwnTransport returns a transport with the defaults of net/http and connections of
// its own.
func OwnTransport() http.RoundTripper {
	if t, ok := http.DefaultTransport.(*http.Transport); ok {
		return t.Clone()
	}
	return &http.Transport{Proxy: http.ProxyFromEnvironment}
}

// Fail returns an error with that code and text.
func Fail(code, text string) *llm.Error {
	return &llm.Error{Failure: message.Failure{Code: code, Message: text}}
}

// Failure is the one place where failures become visible: one line that begins
// with the endpoint's name, short, and free of secrets. It shortens last, so that
// a secret is never cut before it is found.
func (e *Endpoint) Failure(err error, key string) message.Failure {
	f := llm.FailureOf(err)
	text := f.Message
	for _, secret := range append([]string{key}, e.Secrets...) {
		// Shorter values occur by chance and protect nothing.
		if len(secret) >= 4 {
			text = strings.ReplaceAll(text, secret, "[redacted]")
		}
	}
	f.Message = Shorten(e.Name+": "+text, messageLimit)
	return f
}

// Shorten makes text one line of about limit bytes at most.
func Shorten(text string, limit int) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "\uFFFD")), " ")
	if len(text) <= limit {
		return text
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

// ReasonCode is the upper-case form of a vendor's reason for stopping (core M26),
// or UNKNOWN for what is no word at all.
func ReasonCode(reason string) string {
	if len(reason) > 64 || strings.Trim(strings.ToLower(reason), "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return llm.CodeUnknown
	}
	return strings.ToUpper(reason)
}
