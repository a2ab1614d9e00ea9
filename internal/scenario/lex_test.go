package scenario_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// A token is a word, a quoted text, or a JSON object.
type token struct {
	kind tokenKind
	text string
}

type tokenKind uint8

const (
	wordToken tokenKind = iota
	textToken
	jsonToken
)

// args are the tokens of one directive or of one line of a block. The first error
// sticks, so that a parse function need not look at each.
type args struct {
	tokens []token
	at     int
	err    error

	block      []blockLine
	blockTaken bool
	errLine    int // where the error is, if not on the directive's line
}

// lex splits a line into its tokens.
func lex(line string) (*args, error) {
	a := &args{}
	for {
		line = strings.TrimLeftFunc(line, unicode.IsSpace)
		if line == "" {
			return a, nil
		}
		t, rest, err := next(line)
		if err != nil {
			return nil, err
		}
		if rest != "" && !unicode.IsSpace(rune(rest[0])) {
			return nil, fmt.Errorf("something follows %s without a space", line[:len(line)-len(rest)])
		}
		a.tokens = append(a.tokens, t)
		line = rest
	}
}

func next(line string) (t token, rest string, err error) {
	switch line[0] {
	case '"', '`':
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			return t, "", fmt.Errorf("the text is not closed: %s", line)
		}
		text, err := strconv.Unquote(quoted)
		return token{textToken, text}, line[len(quoted):], err
	case '{':
		d := json.NewDecoder(strings.NewReader(line))
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return t, "", fmt.Errorf("the JSON is malformed: %s", line)
		}
		return token{jsonToken, string(raw)}, line[d.InputOffset():], nil
	}
	end := strings.IndexFunc(line, unicode.IsSpace)
	if end < 0 {
		end = len(line)
	}
	return token{wordToken, line[:end]}, line[end:], nil
}

func (a *args) fail(format string, args ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, args...)
	}
}

func (a *args) more() bool { return a.err == nil && a.at < len(a.tokens) }

func (a *args) take(kind tokenKind, what string) string {
	switch {
	case a.err != nil:
		return ""
	case a.at == len(a.tokens):
		a.fail("%s is missing", what)
		return ""
	case a.tokens[a.at].kind != kind:
		a.fail("%q stands where %s should", a.tokens[a.at].text, what)
		return ""
	}
	a.at++
	return a.tokens[a.at-1].text
}

func (a *args) word(what string) string { return a.take(wordToken, what) }
func (a *args) text(what string) string { return a.take(textToken, what) }
func (a *args) json(what string) string { return a.take(jsonToken, what) }

// literal takes one of the given words.
func (a *args) literal(words ...string) string {
	w := a.word(strings.Join(words, " or "))
	if a.err == nil && !slices.Contains(words, w) {
		a.fail("%q stands where %s should", w, strings.Join(words, " or "))
	}
	return w
}

// peek reports whether the next token is this word, and takes it if so.
func (a *args) peek(word string) bool {
	if !a.more() || a.tokens[a.at] != (token{wordToken, word}) {
		return false
	}
	a.at++
	return true
}

func (a *args) number(what string) int64 {
	w := a.word(what)
	if a.err != nil {
		return 0
	}
	n, err := strconv.ParseInt(w, 10, 64)
	if err != nil {
		a.fail("%q stands where %s should", w, what)
	}
	return n
}

// list takes words that commas join; "nothing" is the empty list.
func (a *args) list(what string) []string {
	w := a.word(what)
	if w == "nothing" || a.err != nil {
		return []string{}
	}
	names := strings.Split(w, ",")
	if slices.Contains(names, "") {
		a.fail("%q is no list of %s", w, what)
	}
	return names
}

// options calls fn with each word that follows until the tokens end.
func (a *args) options(fn func(word string) bool) {
	for a.more() {
		if w := a.word("an option"); a.err == nil && !fn(w) {
			a.fail("no option is named %q", w)
		}
	}
}

func (a *args) end() {
	if a.more() {
		a.fail("%q is too much", a.tokens[a.at].text)
	}
}

// lines parses each line of the block.
func (a *args) lines(fn func(line *args)) {
	a.blockTaken = true
	if len(a.block) == 0 {
		a.fail("the indented lines are missing")
	}
	for _, l := range a.block {
		b, err := lex(l.text)
		if err == nil {
			fn(b)
			b.end()
			err = b.err
		}
		if err != nil && a.err == nil {
			a.err, a.errLine = err, l.line
		}
	}
}

var errStory = errors.New("the story cancelled it")
