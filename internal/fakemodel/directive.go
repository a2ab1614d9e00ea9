package fakemodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// directiveOpen begins a directive in a prompt, directiveClose ends it.
const (
	directiveOpen  = "[[fake:"
	directiveClose = "]]"
)

// Directives obeys directives written into the prompt, and leaves every other request to fallback.
//
// The last user message that contains a directive counts. Its directives form groups: the group at the index given
// by the number of assistant messages behind that user message is the answer, and when there is no such group
// fallback answers. A group ends before the first directive that follows a tool call and is none, behind length and
// refusal, and at next. So "[[fake:tool a {}]] [[fake:tool b {}]] [[fake:reply done]]" calls a and b in parallel
// and answers "done" to the request with their results, once each, with no state in the server.
//
//	[[fake:reply TEXT]]          text                     [[fake:think TEXT]]      reasoning
//	[[fake:tool NAME {JSON}]]    a tool call; arguments that are no JSON object go out as they are
//	[[fake:next]]                the next answer          [[fake:usage prompt=N cached=N written=N completion=N reasoning=N]]
//	[[fake:length TEXT]]         text, cut                [[fake:length-tool NAME {JSON}]]  a tool call cut in half
//	[[fake:refusal TEXT]]        refusal; without TEXT only the finish reason content_filter
//	[[fake:big BYTES DELTAS]]    that much text           [[fake:delay 200ms]]     silence
//	[[fake:headers]]             only the headers         [[fake:comment TEXT]]    an SSE comment
//	[[fake:gate NAME]]           silence until Server.Release(NAME)
//
// The faults end the answer. With times=N only the first N attempts at the same request suffer it; the later ones
// pass over it and go on with the group:
//
//	[[fake:status 429 Retry-After=2]]   a status with headers; a value date:N is the HTTP date in N seconds
//	[[fake:fail context-length]]        a [Failure], headers likewise
//	[[fake:empty]] [[fake:eof]]         no content; no [DONE] (as the first of its answer: an empty body)
//	[[fake:cut]] [[fake:reset]]         the connection is closed; is reset
//	[[fake:stall]]                      silence until the client leaves
//	[[fake:midstream-error TEXT]]       an error in the stream
//	[[fake:garbage]] [[fake:html]]      a chunk that is not JSON; a web page
//
// In TEXT and JSON, {{match:REGEX}} stands for what REGEX (its first group, if it has one) finds in the latest tool
// results. TEXT may itself contain directives, and so may strings in JSON: that is how a parent's prompt scripts its
// children. A directive that cannot be understood is refused with status 400.
func Directives(fallback Script) Script {
	return func(r Request) Reply {
		text, answered, ok := directed(r)
		if !ok {
			return fallback(r)
		}
		all, err := parseDirectives(text)
		if err != nil {
			return mistake(err.Error())
		}
		groups := group(all)
		if answered >= len(groups) {
			return fallback(r)
		}
		var reply Reply
		for _, d := range groups[answered] {
			steps, err := d.steps(r)
			if err != nil {
				return mistake(fmt.Sprintf("directive %s: %v", d.verb, err))
			}
			reply = append(reply, steps...)
		}
		return reply
	}
}

// directed returns the last user text with a directive, and how many assistant messages stand behind it.
func directed(r Request) (text string, answered int, ok bool) {
	for i := len(r.Messages) - 1; i >= 0; i-- {
		switch m := r.Messages[i]; {
		case m.Role == "assistant":
			answered++
		case m.Role == "user" && strings.Contains(m.Text, directiveOpen):
			return m.Text, answered, true
		}
	}
	return "", 0, false
}

// directive is one parsed directive.
type directive struct {
	verb string
	name string // the tool of tool and length-tool
	rest string // everything else, trimmed
}

func (d directive) calls() bool { return d.verb == "tool" }

func (d directive) finishes() bool {
	return d.verb == "length" || d.verb == "length-tool" || d.verb == "refusal"
}

func group(all []directive) [][]directive {
	var groups [][]directive
	var current []directive
	end := func() {
		if len(current) > 0 {
			groups = append(groups, current)
			current = nil
		}
	}
	for _, d := range all {
		if d.verb == "next" {
			end()
			continue
		}
		if len(current) > 0 && current[len(current)-1].calls() && !d.calls() {
			end()
		}
		current = append(current, d)
		if d.finishes() {
			end()
		}
	}
	end()
	return groups
}

// parseDirectives finds the directives of a text in order; what stands between them is ignored.
func parseDirectives(text string) ([]directive, error) {
	var all []directive
	for {
		_, after, ok := strings.Cut(text, directiveOpen)
		if !ok {
			return all, nil
		}
		d, rest, err := parseDirective(after)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
		text = rest
	}
}

// parseDirective reads one directive from behind its opening, and returns the text behind its end.
func parseDirective(text string) (directive, string, error) {
	verbEnd := strings.IndexFunc(text, func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') })
	if verbEnd <= 0 {
		return directive{}, "", fmt.Errorf("directive without a verb: %.40q", directiveOpen+text)
	}
	d := directive{verb: text[:verbEnd]}
	text = strings.TrimLeft(text[verbEnd:], " \t\n")
	if d.verb == "tool" || d.verb == "length-tool" {
		nameEnd := strings.IndexAny(text, " \t\n]")
		if nameEnd <= 0 {
			return directive{}, "", fmt.Errorf("directive %s: no tool name", d.verb)
		}
		d.name, text = text[:nameEnd], strings.TrimLeft(text[nameEnd:], " \t\n")
		if arguments, rest, ok := jsonDirective(text); ok {
			d.rest = arguments
			return d, rest, nil
		}
	}
	end, ok := closing(text)
	if !ok {
		return directive{}, "", fmt.Errorf("directive %s is not closed: %.40q", d.verb, text)
	}
	d.rest = strings.TrimSpace(text[:end])
	if d.name != "" && d.rest == "" {
		d.rest = "{}"
	}
	return d, text[end+len(directiveClose):], nil
}

// jsonDirective reads a JSON object followed by the end of the directive. Reading it as JSON is what lets its
// strings contain brackets, and directives for somebody else.
func jsonDirective(text string) (object, rest string, ok bool) {
	if !strings.HasPrefix(text, "{") {
		return "", "", false
	}
	dec := json.NewDecoder(strings.NewReader(text))
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return "", "", false
	}
	rest, ok = strings.CutPrefix(strings.TrimLeft(text[dec.InputOffset():], " \t\n"), directiveClose)
	return string(raw), rest, ok
}

// closing finds the end of a directive whose text may contain whole directives.
func closing(text string) (int, bool) {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch {
		case strings.HasPrefix(text[i:], directiveOpen):
			depth++
			i += len(directiveOpen) - 1
		case strings.HasPrefix(text[i:], directiveClose):
			if depth == 0 {
				return i, true
			}
			depth--
			i += len(directiveClose) - 1
		}
	}
	return 0, false
}

// steps says what the directive does in the answer to r.
func (d directive) steps(r Request) ([]Step, error) {
	if steps, ok, err := d.content(r); ok || err != nil {
		return steps, err
	}
	words, options, times, err := d.words()
	if err != nil {
		return nil, err
	}
	fault, err := d.fault(words, options)
	if err != nil || times > 0 && r.Attempt > times {
		return nil, err
	}
	return fault, nil
}

// content handles the verbs that are no faults.
func (d directive) content(r Request) (_ []Step, ok bool, err error) {
	text, err := expand(d.rest, d.name != "", r)
	if err != nil {
		return nil, false, err
	}
	switch d.verb {
	case "reply":
		return []Step{Split(4, Text(text))}, true, nil
	case "think":
		return []Step{Split(4, Reasoning(text))}, true, nil
	case "tool":
		return []Step{ToolCall{Name: d.name, Arguments: text}}, true, nil
	case "length":
		return []Step{Split(4, Text(text)), Length}, true, nil
	case "length-tool":
		return []Step{ToolCall{Name: d.name, Arguments: text[:len(text)/2]}, Length}, true, nil
	case "refusal":
		if text == "" {
			return []Step{ContentFilter}, true, nil
		}
		return []Step{Refusal(text)}, true, nil
	case "headers":
		return []Step{Headers{}}, true, nil
	case "comment":
		return []Step{Comment(text)}, true, nil
	case "gate":
		return []Step{Gate(text)}, true, nil
	case "delay":
		pause, err := time.ParseDuration(text)
		return []Step{Delay(pause)}, true, err
	case "big":
		step, err := big(text)
		return []Step{step}, true, err
	case "usage":
		usage, err := parseUsage(text)
		return []Step{usage}, true, err
	default:
		return nil, false, nil
	}
}

// fault handles the verbs that take times=N.
func (d directive) fault(words []string, header map[string]string) ([]Step, error) {
	switch d.verb {
	case "status":
		if len(words) != 1 {
			return nil, fmt.Errorf("want one status code, got %q", d.rest)
		}
		code, err := strconv.Atoi(words[0])
		if err != nil || code < 200 || code > 599 {
			return nil, fmt.Errorf("%q is no status code from 200 to 599", words[0])
		}
		return []Step{Status{Code: code, Header: header}}, nil
	case "fail":
		if len(words) != 1 {
			return nil, fmt.Errorf("want one failure, got %q", d.rest)
		}
		if _, ok := OpenAI.fault(Failure(words[0])); !ok {
			return nil, fmt.Errorf("unknown failure %q", words[0])
		}
		return []Step{failed{Failure(words[0]), header}}, nil
	case "empty":
		return []Step{Stop, Usage{}, Done{}}, nil
	case "eof":
		return []Step{CleanEOF{}}, nil
	case "cut":
		return []Step{Cut{}}, nil
	case "reset":
		return []Step{Cut{Reset: true}}, nil
	case "stall":
		return []Step{Stall{}}, nil
	case "midstream-error":
		return []Step{ErrorChunk{Message: strings.Join(words, " ")}}, nil
	case "garbage":
		return []Step{Garbage, CleanEOF{}}, nil
	case "html":
		return []Step{NotAStream()}, nil
	default:
		return nil, errors.New("unknown verb")
	}
}

// words splits the rest of a fault: words, NAME=VALUE headers, times=N.
func (d directive) words() (words []string, header map[string]string, times int, err error) {
	for _, word := range strings.Fields(d.rest) {
		name, value, ok := strings.Cut(word, "=")
		switch {
		case !ok:
			words = append(words, word)
		case name == "times":
			times, err = strconv.Atoi(value)
			if err != nil || times < 1 {
				return nil, nil, 0, fmt.Errorf("times=%s is no number from 1", value)
			}
		default:
			if seconds, ok := strings.CutPrefix(value, "date:"); ok {
				n, err := strconv.Atoi(seconds)
				if err != nil {
					return nil, nil, 0, fmt.Errorf("%s=%s: %w", name, value, err)
				}
				value = time.Now().Add(time.Duration(n) * time.Second).UTC().Format(http.TimeFormat)
			}
			if header == nil {
				header = map[string]string{}
			}
			header[name] = value
		}
	}
	return words, header, times, nil
}

func big(text string) (Step, error) {
	var size, deltas int
	if n, err := fmt.Sscanf(text, "%d %d", &size, &deltas); err != nil && n < 1 {
		return nil, fmt.Errorf("want BYTES and DELTAS, got %q", text)
	}
	deltas = max(deltas, 1)
	return Repeat(deltas, Text(strings.Repeat("x", size/deltas))), nil
}

func parseUsage(text string) (Usage, error) {
	var usage Usage
	fields := map[string]*int{
		"prompt": &usage.Prompt, "cached": &usage.Cached,
		"completion": &usage.Completion, "reasoning": &usage.Reasoning, "written": &usage.Written,
	}
	for _, word := range strings.Fields(text) {
		name, value, _ := strings.Cut(word, "=")
		field, ok := fields[name]
		if !ok {
			return Usage{}, fmt.Errorf("unknown count %q", word)
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			return Usage{}, fmt.Errorf("count %q: %w", word, err)
		}
		*field = n
	}
	return usage, nil
}

// expand replaces each {{match:REGEX}} by what it finds in the latest tool results. Inside JSON the pattern is read,
// and the finding written, as part of a JSON string.
func expand(text string, inJSON bool, r Request) (string, error) {
	const opening, ending = "{{match:", "}}"
	var out strings.Builder
	for {
		before, after, ok := strings.Cut(text, opening)
		out.WriteString(before)
		if !ok {
			return out.String(), nil
		}
		pattern, rest, ok := strings.Cut(after, ending)
		if !ok {
			return "", fmt.Errorf("%s%.40s is not closed", opening, after)
		}
		if inJSON {
			if err := json.Unmarshal([]byte(`"`+pattern+`"`), &pattern); err != nil {
				return "", fmt.Errorf("match: %q inside JSON: %w", pattern, err)
			}
		}
		found, err := match(pattern, r)
		if err != nil {
			return "", err
		}
		if inJSON {
			quoted := string(appendString(nil, found))
			found = quoted[1 : len(quoted)-1]
		}
		out.WriteString(found)
		text = rest
	}
}

func match(pattern string, r Request) (string, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return "", fmt.Errorf("match: %w", err)
	}
	for _, result := range r.ToolResults() {
		if found := re.FindStringSubmatch(result.Text); found != nil {
			return found[min(1, len(found)-1)], nil
		}
	}
	return "", fmt.Errorf("match: %q is in no tool result", pattern)
}
