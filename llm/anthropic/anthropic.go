// Package anthropic is the adapter for Anthropic's Messages API and for servers
// that speak it.
//
// The vendor's SDK encodes requests and decodes events; its retries are off, since
// retrying is the agent loop's to decide and to log. The SDK takes a stream that
// was cut for one that ended, so this package reads the event stream itself and
// watches the response body. It never reads the environment and knows nothing of
// agents or logs. Floor 6.
package anthropic

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"time"

	sdk "github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/internal/wire"
)

const (
	// DefaultBaseURL is the vendor's own endpoint.
	DefaultBaseURL = "https://api.anthropic.com"
	// DefaultIdleTimeout bounds the wait for the response and each gap within it
	// (core M28).
	DefaultIdleTimeout = 300 * time.Second
	// DefaultMaxTokens bounds the answer of a model that is not in the table, where
	// the request sets no bound: the API has no default of its own.
	DefaultMaxTokens = 8192
)

// name begins the text of every failure.
const name = "anthropic"

// Config describes one endpoint. Its zero value is the vendor's, without a key.
type Config struct {
	// BaseURL is the http or https URL that "/v1/messages" is appended to, without
	// credentials; one that ends in "/v1" already is taken as well. Empty means
	// DefaultBaseURL.
	BaseURL string
	// APIKey goes out as x-api-key. APIKeyFunc, where it is set, is asked instead
	// before each call; it must be safe for concurrent use. Neither is ever part of
	// an error text.
	APIKey     string
	APIKeyFunc func() (string, error)
	// NoKey says that the endpoint takes calls without a key.
	NoKey bool
	// HTTPClient makes the calls; nil means a client of the adapter's own. It must
	// not have a Timeout: that would measure whole answers.
	HTTPClient *http.Client
	// Headers are sent with every call. An Authorization or X-Api-Key among them
	// stands in for the key.
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
	endpoint *wire.Endpoint
	service  sdk.MessageService
	client   *http.Client
}

// New returns an adapter. It touches neither the network nor the environment, and
// it does not ask for the key. A base URL that cannot be used is an error.
func New(config Config) (*Adapter, error) {
	if config.BaseURL == "" {
		config.BaseURL = DefaultBaseURL
	}
	base, err := wire.ParseBase(config.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("new anthropic adapter: %w", err)
	}
	// The SDK appends "v1/messages" to the path.
	base.Path = strings.TrimSuffix(strings.TrimSuffix(base.Path, "/"), "/v1")
	base.RawPath = ""
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
		config: config, client: config.HTTPClient,
		endpoint: &wire.Endpoint{Name: name, Host: base.Host, Idle: config.IdleTimeout, Now: config.Now},
	}
	a.endpoint.AddHeaderSecrets(config.Headers)
	if a.client == nil {
		a.client = &http.Client{Transport: wire.OwnTransport()}
	}
	options := []option.RequestOption{
		option.WithBaseURL(base.String()),
		option.WithHTTPClient(a.client),
		option.WithMaxRetries(0),
		// The SDK would put a span of its own around each call.
		option.WithoutOpenTelemetry(),
		option.WithHeader("User-Agent", config.UserAgent),
	}
	for name, value := range config.Headers {
		options = append(options, option.WithHeader(name, value))
	}
	// The service is built directly: NewClient would take keys, profiles and headers
	// from ANTHROPIC_* variables and send them to whichever server this is.
	a.service = sdk.NewMessageService(options...)
	return a, nil
}

// CloseIdleConnections closes the connections that are kept for later calls. It
// does not disturb calls that are under way.
func (a *Adapter) CloseIdleConnections() { a.client.CloseIdleConnections() }

// Model answers from the table of models (core M13).
func (a *Adapter) Model(_, id string) llm.ModelInfo {
	m := modelNamed(id)
	return llm.ModelInfo{ContextWindow: m.window, DefaultMaxTokens: m.maxTokens, Efforts: m.efforts}
}

// Stream makes one call (core M1-M15, M24-M28 by analogy). It runs on the ranging
// goroutine and leaves no goroutine behind. It yields no errors: every failure is
// a finish.
func (a *Adapter) Stream(ctx context.Context, req *llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		out := &answer{yield: yield}
		if fin := a.call(ctx, req, out); fin != nil {
			out.finish(fin)
		}
	}
}

// call makes the call and passes on the answer. It returns how the answer ended,
// or nil when the consumer stopped. The connection is released by then, so that a
// consumer that has seen the finish knows the network to be done (core M15).
func (a *Adapter) call(ctx context.Context, req *llm.Request, out *answer) *llm.Finish {
	required := !a.config.NoKey && !wire.HasHeader(a.config.Headers, "Authorization") && !wire.HasHeader(a.config.Headers, "X-Api-Key")
	key, err := a.endpoint.Key(a.config.APIKey, a.config.APIKeyFunc, required)
	if err != nil {
		return llm.Failed(a.endpoint.Failure(err, key))
	}
	params, prefix, err := encodeRequest(req)
	if err != nil {
		return llm.Failed(a.endpoint.Failure(err, key))
	}
	out.prefix = prefix
	c := &wire.Exchange{Endpoint: a.endpoint}
	defer c.Close()
	options := []option.RequestOption{option.WithMiddleware(c.RoundTrip)}
	if key != "" {
		// The SDK would send the key as a bearer token, which the vendor takes too but
		// servers that only imitate it need not.
		options = append(options, option.WithHeader("X-Api-Key", key))
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
