package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/offshoot-dev/offshoot/harness/config"
)

// routesInUse are the routes that the configuration, or the choice of a model in
// its absence, would call.
func routesInUse(eff *config.Effective, env config.Environ) map[string]bool {
	used := map[string]bool{}
	if choice, err := config.ChooseModel(eff, env); err == nil {
		used[choice.Ref.Route] = true
	} else if eff.Config.Model != nil {
		used[eff.Config.Model.Route] = true // what was asked for cannot be had
	}
	for name, agent := range eff.Config.Agents {
		if agent.Model != nil && (name != config.DefaultAgent || len(used) == 0) {
			used[agent.Model.Route] = true
		}
	}
	return used
}

// written reports whether a configuration file says something about a route.
func written(eff *config.Effective, name string) bool {
	return slices.ContainsFunc(eff.Values, func(v config.Value) bool {
		return v.Source.File != "" && strings.HasPrefix(v.Key, "routes."+name+".")
	})
}

// isLocal reports whether a route is one of the built-in ones that need no key:
// those to servers that a person may run, or not.
func isLocal(r config.Route) bool {
	return r.BuiltIn && slices.ContainsFunc(config.BuiltinRoutes(), func(b config.BuiltinRoute) bool {
		return b.Name == r.Name && b.KeyEnv == ""
	})
}

func (a *app) examineRoute(ctx context.Context, p *prober, eff *config.Effective, r config.Route, used bool) finding {
	view := a.route(eff, r)
	f := finding{Check: "route", Name: r.Name, Status: checkOK, Endpoint: view.BaseURL, KeyEnv: r.KeyEnv, Key: view.Key, InUse: used}
	if r.Dialect == config.DemoRoute {
		f.Detail = "embedded"
		return f
	}
	key, set := r.Key(a.env)
	if !set {
		f.Status, f.Detail = checkNotSet, r.KeyEnv
		if used || written(eff, r.Name) {
			f.Status, f.Detail = checkFailed, r.KeyEnv+" is not set"
		}
		return f
	}
	res := p.probe(ctx, r, key)
	ms := res.took.Milliseconds()
	f.Reachable = &res.reached
	if res.reached {
		f.LatencyMS = &ms
	}
	text := res.text
	if r.KeyEnv != "" {
		if res.key != "" {
			f.Key = res.key
		}
		text = r.KeyEnv + " is set; " + text
	}
	f.Detail = f.Endpoint + ": " + text
	switch {
	case res.ok:
	case isLocal(r) && !used:
		f.Status = checkNotRunning
	default:
		f.Status = checkFailed
	}
	return f
}

// prober asks endpoints whether they are there.
type prober struct {
	now     func() time.Time
	timeout time.Duration
}

// probed is what one endpoint answered. The text holds no secret.
type probed struct {
	ok, reached bool
	key         string // accepted, refused or "" where the answer does not tell
	took        time.Duration
	text        string
}

// What an endpoint says of a key.
const (
	keyAccepted = "accepted"
	keyRefused  = "refused"
)

// probe asks an endpoint for its list of models, and no other host for anything:
// a redirection is not followed.
func (p *prober) probe(ctx context.Context, r config.Route, key string) probed {
	if strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return probed{key: keyRefused, text: "it holds white space or other characters that no key has, and was not sent"}
	}
	client := &http.Client{
		Timeout:       p.timeout,
		Transport:     ownTransport(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	defer client.CloseIdleConnections()
	start := p.now()
	res := p.ask(ctx, client, r, key, "/models")
	res.took = p.now().Sub(start)
	// Who asks OpenRouter for its models needs no key; its own address tells of one.
	if r.Dialect == "openrouter" && res.ok && key != "" {
		if second := p.ask(ctx, client, r, key, "/key"); second.key != "" {
			second.took = res.took
			res = second
		} else {
			res.key = ""
		}
	}
	if res.ok {
		res.text = fmt.Sprintf("answered in %d ms", res.took.Milliseconds()) + res.text
		switch {
		case res.key == keyAccepted:
			res.text += ", key accepted"
		case key != "":
			res.text += ", key not checked"
		}
	}
	return res
}

// ownTransport has the defaults of net/http, proxies included, as those of the
// adapters have, and connections of its own.
func ownTransport() http.RoundTripper {
	if t, ok := http.DefaultTransport.(*http.Transport); ok {
		return t.Clone()
	}
	return &http.Transport{Proxy: http.ProxyFromEnvironment}
}

// ask makes one request. The text of one that is ok is what is to be added to that.
func (p *prober) ask(ctx context.Context, client *http.Client, r config.Route, key, path string) probed {
	base := r.BaseURL
	if r.Dialect == config.DialectAnthropic {
		base = strings.TrimSuffix(base, "/v1") + "/v1" // as its adapter has it
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
	if err != nil {
		return probed{text: "its address cannot be used"} // the error would show a password
	}
	req.Header.Set("User-Agent", "offshoot")
	req.Header.Set("Accept", "application/json")
	switch {
	case r.Dialect == config.DialectAnthropic:
		req.Header.Set("Anthropic-Version", "2023-06-01")
		if key != "" {
			req.Header.Set("X-Api-Key", key)
		}
	case key != "":
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for name, value := range r.Headers {
		req.Header.Set(name, value)
	}
	res, err := client.Do(req)
	if err != nil {
		return probed{text: p.reason(err)}
	}
	defer func() { _ = res.Body.Close() }() // it was only read from
	return judge(res, key)
}

// reason words why there was no answer, without the address, which may hold a
// password.
func (p *prober) reason(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		if u.Timeout() {
			return "no answer within " + p.timeout.String()
		}
		err = u.Err
	}
	return err.Error()
}

func judge(res *http.Response, key string) probed {
	out := probed{reached: true}
	status := fmt.Sprintf("HTTP %d", res.StatusCode)
	if text := http.StatusText(res.StatusCode); text != "" {
		status += " " + text
	}
	switch code := res.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		out.key, out.text = keyRefused, "the key was refused ("+status+")"
		if key == "" {
			out.key, out.text = "", "it wants a key ("+status+")"
		}
	case code >= 500:
		out.text = "it fails (" + status + ")"
	case code >= 400: // it is there, and has no such address or no time
		out.ok, out.text = true, " ("+status+")"
	case code >= 300:
		out.text = "it redirects, which is not followed (" + status + ")"
	case !looksLikeJSON(res.Body):
		out.text = "something answers that is no list of models (" + status + ")"
	default:
		out.ok, out.key = true, keyAccepted
		if key == "" {
			out.key = ""
		}
	}
	return out
}

// looksLikeJSON reads the beginning of a body.
func looksLikeJSON(body io.Reader) bool {
	r := bufio.NewReader(io.LimitReader(body, 4096))
	for {
		c, err := r.ReadByte()
		switch {
		case err != nil:
			return false
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
		default:
			return c == '{' || c == '['
		}
	}
}
