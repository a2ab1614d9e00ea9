// Package openai is the adapter for OpenAI's chat completions and for the servers
// that speak its dialects: DeepSeek, OpenRouter, Ollama, vLLM and llama.cpp. What
// differs between them is one table of data.
//
// The vendor's SDK encodes requests and decodes chunks; its retries are off, since
// retrying is the agent loop's to decide and to log. The SDK takes a stream that
// was cut for one that ended, so this package reads the event stream itself and
// watches the response body. It never reads the environment and knows nothing of
// agents or logs. Floor 6.
package openai

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/offshoot-dev/offshoot/llm"
)

// DefaultIdleTimeout bounds the wait for the response and each gap within it
// (core M28).
const DefaultIdleTimeout = 300 * time.Second

// Config describes one endpoint. Only Dialect is required.
type Config struct {
	// Dialect is one of Dialects.
	Dialect string
	// BaseURL is the http or https URL that "/chat/completions" is appended to;
	// empty means the dialect's own. It must not carry credentials.
	BaseURL string
	// APIKey is the bearer key. APIKeyFunc, where it is set, is asked instead before
	// each call; it must be safe for concurrent use. Neither is ever part of an
	// error text.
	APIKey     string
	APIKeyFunc func() (string, error)
	// HTTPClient makes the calls; nil means a client of the adapter's own. It must
	// not have a Timeout: that would measure whole answers.
	HTTPClient *http.Client
	// Headers are sent with every call. An Authorization among them stands in for
	// the key.
	Headers map[string]string
	// IdleTimeout bounds every single read from the network, the one for the
	// response headers included. 0 means DefaultIdleTimeout, a negative value none.
	// Time that the consumer of a stream takes does not count.
	IdleTimeout time.Duration
	// UserAgent is the User-Agent header; empty means "offshoot".
	UserAgent string
	// Now is the clock for a Retry-After that is a date; nil means time.Now.
	Now func() time.Time
}

// Adapter is an llm.Adapter for one endpoint. It is safe for concurrent use.
type Adapter struct {
	config  Config
	dialect dialect
	base    *url.URL
	service openai.ChatCompletionService
	client  *http.Client
	// secrets are what must not appear in an error text, beside the key.
	secrets []string
}

// New returns an adapter. It touches neither the network nor the environment, and
// it does not ask for the key. An unknown dialect and a base URL that cannot be
// used are errors.
func New(config Config) (*Adapter, error) {
	row, ok := dialectNamed(config.Dialect)
	if !ok {
		return nil, fmt.Errorf("new openai adapter: unknown dialect %q (known: %s)", config.Dialect, strings.Join(Dialects(), ", "))
	}
	if config.BaseURL == "" {
		config.BaseURL = row.baseURL
	}
	base, err := url.Parse(config.BaseURL)
	switch {
	case err != nil:
		// The error of url.Parse repeats the URL, which may hold a secret.
		return nil, fmt.Errorf("new openai adapter: dialect %s: the base URL cannot be parsed", row.name)
	case base.User != nil:
		return nil, fmt.Errorf("new openai adapter: dialect %s: the base URL must not carry credentials", row.name)
	case (base.Scheme != "http" && base.Scheme != "https") || base.Host == "":
		return nil, fmt.Errorf("new openai adapter: dialect %s: the base URL must be http(s)://host[/path]", row.name)
	}
	if config.IdleTimeout == 0 {
		config.IdleTimeout = DefaultIdleTimeout
	}
	if config.UserAgent == "" {
		config.UserAgent = "offshoot"
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	a := &Adapter{config: config, dialect: row, base: base, client: config.HTTPClient}
	if a.client == nil {
		a.client = &http.Client{Transport: ownTransport()}
	}
	options := []option.RequestOption{
		option.WithBaseURL(config.BaseURL),
		option.WithHTTPClient(a.client),
		option.WithMaxRetries(0),
		option.WithHeader("User-Agent", config.UserAgent),
	}
	for name, value := range config.Headers {
		options = append(options, option.WithHeader(name, value))
		if secretHeader(name) {
			a.secrets = append(a.secrets, value, strings.TrimPrefix(value, "Bearer "))
		}
	}
	// The service is built directly: NewClient would take keys and headers from
	// OPENAI_* variables and send them to whichever vendor this is.
	a.service = openai.NewChatCompletionService(options...)
	return a, nil
}

func ownTransport() http.RoundTripper {
	if t, ok := http.DefaultTransport.(*http.Transport); ok {
		return t.Clone()
	}
	return &http.Transport{Proxy: http.ProxyFromEnvironment}
}

func secretHeader(name string) bool {
	name = strings.ToLower(name)
	for _, word := range []string{"auth", "key", "token", "secret", "cookie"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// CloseIdleConnections closes the connections that are kept for later calls. It
// does not disturb calls that are under way.
func (a *Adapter) CloseIdleConnections() { a.client.CloseIdleConnections() }

// Model answers from the dialect's table (core M13, M23).
func (a *Adapter) Model(_, model string) llm.ModelInfo {
	if info, ok := a.dialect.models[model]; ok {
		return info
	}
	return llm.ModelInfo{Efforts: a.dialect.efforts}
}

// Stream makes one call (core M21-M29). It runs on the ranging goroutine and
// leaves no goroutine behind. It yields no errors: every failure is a finish.
func (a *Adapter) Stream(ctx context.Context, req *llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		out := &answer{dialect: &a.dialect, yield: yield}
		if fin := a.call(ctx, req, out); fin != nil {
			out.finish(fin)
		}
	}
}

// call makes the call and passes on the answer. It returns how the answer ended,
// or nil when the consumer stopped. The connection is released by then, so that a
// consumer that has seen the finish knows the network to be done (core M15).
func (a *Adapter) call(ctx context.Context, req *llm.Request, out *answer) *llm.Finish {
	key, err := a.key()
	if err != nil {
		return llm.Failed(a.failureOf(err, key))
	}
	params, err := encodeRequest(&a.dialect, req)
	if err != nil {
		return llm.Failed(a.failureOf(err, key))
	}
	c := &exchange{adapter: a}
	defer c.close()
	options := []option.RequestOption{option.WithMiddleware(c.roundTrip)}
	if key != "" {
		options = append(options, option.WithAPIKey(key))
	}
	// The SDK's own stream object stays unused; it shares c.body, which is closed.
	if err := a.service.NewStreaming(ctx, *params, options...).Err(); err != nil {
		return a.ending(ctx, c, err, key)
	}
	if c.body == nil {
		return a.ending(ctx, c, errors.New("no response"), key)
	}
	fin, err := out.read(c.res, c.body)
	switch {
	case out.stopped:
		return nil
	case err != nil:
		return a.ending(ctx, c, err, key)
	case fin.Failure != nil:
		f := a.failureOf(&llm.Error{Failure: *fin.Failure}, key)
		f.RequestID = c.requestID
		fin.Failure = &f
	}
	return fin
}

// ending is the finish for an error of the exchange.
func (a *Adapter) ending(ctx context.Context, c *exchange, err error, key string) *llm.Finish {
	if ctx.Err() != nil {
		return llm.Aborted(ctx)
	}
	f := a.failureOf(c.explain(err), key)
	if f.RequestID == "" {
		f.RequestID = c.requestID
	}
	return llm.Failed(f)
}

// key asks for the key and checks it before anything goes out (core M28).
func (a *Adapter) key() (string, error) {
	key := a.config.APIKey
	if a.config.APIKeyFunc != nil {
		var err error
		if key, err = a.config.APIKeyFunc(); err != nil {
			return "", fail(llm.CodeMissingCredential, fmt.Sprintf("no API key: %v", err))
		}
	}
	if key == "" {
		if a.dialect.keyRequired && !a.hasAuthorization() {
			return "", fail(llm.CodeMissingCredential, fmt.Sprintf("no API key is configured for %s", a.base.Host))
		}
		return "", nil
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return key, fail(llm.CodeInvalidCredential, "the API key contains white space or other characters that no key has")
		}
	}
	return key, nil
}

func (a *Adapter) hasAuthorization() bool {
	for name := range a.config.Headers {
		if strings.EqualFold(name, "Authorization") {
			return true
		}
	}
	return false
}

var _ llm.Adapter = (*Adapter)(nil)
