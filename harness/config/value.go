package config

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// A parser turns the text of one value into its typed form; problem says what is wrong with it, without repeating the text
// where that could hold a secret. The same parsers serve the files, the environment and the flags.
type parser func(text string) (value any, problem string)

// maxInt bounds every number, so that a configuration means the same on every platform.
const maxInt = math.MaxInt32

// wholeNumber parses a plain decimal number: no sign, no leading zero (which YAML 1.1 reads as octal), no exponent.
func wholeNumber(least int) parser { return numberWithin(least, maxInt) }

func numberWithin(least, most int) parser {
	return func(text string) (any, string) {
		problem := fmt.Sprintf("must be a whole number from %d to %d", least, most)
		if strings.Trim(text, "0123456789") != "" || len(text) > 1 && text[0] == '0' {
			return nil, problem
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < int64(least) || n > int64(most) {
			return nil, problem
		}
		return int(n), ""
	}
}

func parseBool(text string) (any, string) {
	switch text {
	case "true":
		return true, ""
	case "false":
		return false, ""
	}
	return nil, "must be true or false"
}

func parseDuration(text string) (any, string) {
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Millisecond {
		return nil, `must be a duration of at least 1ms, such as "90s" or "2m"`
	}
	return d, ""
}

func oneOf(allowed ...string) parser {
	return func(text string) (any, string) {
		if !slices.Contains(allowed, text) {
			return nil, fmt.Sprintf("unknown value %q; must be one of %s", text, strings.Join(allowed, ", "))
		}
		return text, ""
	}
}

// parseMode takes a background mode.
func parseMode(text string) (any, string) {
	_, problem := oneOf(string(ModeOneShot), string(ModeContinuable))(text)
	return BackgroundMode(text), problem
}

// parseDelivery takes a report delivery.
func parseDelivery(text string) (any, string) {
	_, problem := oneOf(string(ReportQuiet), string(ReportWakeup), string(ReportNextStep))(text)
	return ReportDelivery(text), problem
}

// parseText takes prose: everything but control characters that a terminal would act on.
func parseText(text string) (any, string) {
	for _, r := range text {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return nil, fmt.Sprintf("must not hold the control character %U", r)
		}
	}
	return text, ""
}

// parseLine takes a non-empty single line.
func parseLine(text string) (any, string) {
	if strings.TrimSpace(text) == "" {
		return nil, "must not be empty"
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return nil, "must be one line without control characters"
	}
	return text, ""
}

func parseModel(text string) (any, string) {
	route, model, colon := strings.Cut(text, ":")
	if _, problem := parseLine(text); problem != "" {
		return nil, problem
	}
	if _, problem := parseModelID(model); route == "" || colon && problem != "" || strings.ContainsFunc(route, unicode.IsSpace) {
		return nil, fmt.Sprintf("%q is not a model; write ROUTE:MODEL, or ROUTE for the route's default model", text)
	}
	return ModelRef{Route: route, Model: model}, ""
}

// parseModelID takes the model of a route; which ids exist is the endpoint's to know.
func parseModelID(text string) (any, string) {
	if text == "" || strings.ContainsFunc(text, unicode.IsSpace) || strings.ContainsFunc(text, unicode.IsControl) {
		return nil, "must be a model id: not empty, without spaces"
	}
	return text, ""
}

// parseName takes the names of routes, agents and providers.
func parseName(text string) (any, string) {
	const rest = "abcdefghijklmnopqrstuvwxyz0123456789-"
	if text == "" || len(text) > 64 || text[0] < 'a' || text[0] > 'z' || strings.Trim(text, rest) != "" {
		return nil, fmt.Sprintf("%q is not a name; a name is a lower-case letter, then lower-case letters, digits and -, at most 64 in all", text)
	}
	return text, ""
}

// parseTool takes the names that model endpoints accept for tools.
func parseTool(text string) (any, string) {
	bad := func(r rune) bool {
		return r != '_' && r != '-' && (r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r))
	}
	if text == "" || len(text) > 64 || strings.ContainsFunc(text, bad) {
		return nil, fmt.Sprintf("%q is not a tool name; it is 1 to 64 letters, digits, _ and -", text)
	}
	return text, ""
}

// parseVariable takes the name of an environment variable, or nothing.
func parseVariable(text string) (any, string) {
	bad := func(r rune) bool {
		return r != '_' && (r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r))
	}
	if text != "" && (text[0] >= '0' && text[0] <= '9' || strings.ContainsFunc(text, bad)) {
		return nil, "must be the name of an environment variable, or empty for an endpoint without a key"
	}
	return text, ""
}

// parseHeaderName takes an HTTP token.
func parseHeaderName(text string) (any, string) {
	const marks = "!#$%&'*+-.^_`|~"
	bad := func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(marks, r)
	}
	if text == "" || strings.ContainsFunc(text, bad) {
		return nil, fmt.Sprintf("%q is not a header name", text)
	}
	return text, ""
}

// secret is a value that is never rendered.
type secret string

func parseHeaderValue(text string) (any, string) {
	if strings.ContainsFunc(text, unicode.IsControl) {
		return nil, "must be one line without control characters"
	}
	return secret(text), ""
}

// endpoint is a base URL; its userinfo is not rendered.
type endpoint string

func parseBaseURL(text string) (string, string) {
	const problem = "must be an absolute http or https URL without a query or fragment"
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Opaque != "" {
		return "", problem
	}
	if u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(text, "#") {
		return "", problem
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", "must have a port from 1 to 65535"
		}
	}
	return strings.TrimRight(text, "/"), ""
}

func parseEndpoint(text string) (any, string) {
	base, problem := parseBaseURL(text)
	if problem != "" {
		return nil, problem
	}
	return endpoint(base), ""
}

func parseOllama(text string) (any, string) {
	base, ok := OllamaBaseURL(text)
	if !ok {
		return nil, "must be HOST, HOST:PORT or an http or https URL"
	}
	return endpoint(base), ""
}

// parseDepth takes a cap or "provider-managed". 0 is legal: every start is refused (seam TOOL-24, TOOL-25, TOOL-27).
func parseDepth(text string) (any, string) {
	if text == ProviderManaged {
		return Depth{Managed: true}, ""
	}
	n, problem := wholeNumber(0)(text)
	if problem != "" {
		return nil, problem + ", or " + ProviderManaged
	}
	return Depth{Max: n.(int)}, ""
}
