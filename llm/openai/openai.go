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
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/internal/wire"
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
	// NoKey says that the endpoint takes calls without a key, although the vendor of
	// the dialect does not.
	NoKey bool
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
	config   Config
	dialect  dialect
	endpoint *wire.Endpoint
	service  openai.ChatCompletionService
	client   *http.Client
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
	base, err := wire.ParseBase(config.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("new openai adapter: dialect %s: %w", row.name, err)
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
	a := &Adapter{
		config: config, dialect: row, client: config.HTTPClient,
		endpoint: &wire.Endpoint{Name: row.name, Host: base.Host, Idle: config.IdleTimeout, Now: config.Now},
	}
	a.endpoint.AddHeaderSecrets(config.Headers)
	if a.client == nil {
		a.client = &http.Client{Transport: wire.OwnTransport()}
	}
	options := []option.RequestOption{
		option.WithBaseURL(config.BaseURL),
		option.WithHTTPClient(a.client),
		option.WithMaxRetries(0),
		option.WithHeader("User-Agent", config.UserAgent),
	}
	for name, value := range config.Headers {
		options = append(options, option.WithHeader(name, value))
	}
	// The service is built directly: NewClient would take keys and headers from
	// OPENAI_* variables and send them to whichever vendor this is.
	a.service = openai.NewChatCompletionService(options...)
	return a, nil
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
	required := a.dialect.keyRequired && !a.config.NoKey && !wire.HasHeader(a.config.Headers, "Authorization")
	key, err := a.endpoint.Key(a.config.APIKey, a.config.APIKeyFunc, required)
	if err != nil {
		return llm.Failed(a.endpoint.Failure(err, key))
	}
	params, err := encodeRequest(&a.dialect, req)
	if err != nil {
		return llm.Failed(a.endpoint.Failure(err, key))
	}
	c := &wire.Exchange{Endpoint: a.endpoint}
	defer c.Close()
	options := []option.RequestOption{option.WithMiddleware(c.RoundTrip)}
	if key != "" {
		options = append(options, option.WithAPIKey(key))
	}
	// The SDK's own stream object stays unused; it shares c.Body, which is closed.
	if err := a.service.NewStreaming(ctx, *params, options...).Err(); err != nil {
		return c.Ending(ctx, err, key)
	}
	if c.Body == nil {
		return c.Ending(ctx, errors.New("no response"), key)
	}
	fin, err := out.read(c.Response, c.Body)
	switch {
	case out.stopped:
		return nil
	case err != nil:
		return c.Ending(ctx, err, key)
	case fin.Failure != nil:
		f := a.endpoint.Failure(&llm.Error{Failure: *fin.Failure}, key)
		f.RequestID = c.RequestID
		fin.Failure = &f
	}
	return fin
}

var _ llm.Adapter = (*Adapter)(nil)
