package scripted

import (
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
)

// entry is one line of a listing.
type entry struct {
	name string
	kind entryKind
	size int64 // of a file; -1 where the listing did not say
}

type entryKind int

const (
	entryFile entryKind = iota
	entryFolder
	entryLink
	entryOther
)

// listing is what one call of the list tool returned.
type listing struct {
	entries []entry
	// notes are what the tool said of the listing itself, for instance that it was
	// cut.
	notes []string
	// failed is the error, or "".
	failed string
}

// parseList reads the result of the list tool: a name a line, folders with a
// trailing slash; behind a tab the size of a file or what else it is; notes in
// brackets. Names that would break a line are quoted.
func parseList(r Result) listing {
	if !r.Found || r.IsError {
		return listing{failed: clip(oneLine(resultText(r)), 300)}
	}
	var l listing
	torn := false
	for line := range strings.Lines(r.Text) {
		line = strings.TrimRight(line, "\r\n")
		name, rest, tabbed := strings.Cut(line, "\t")
		e := entry{size: -1}
		switch {
		case line == "" || line == "[empty folder]":
			continue
		case omitted.MatchString(line):
			// The cut went through a line on either side of this one.
			l.notes = append(l.notes, strings.Trim(line, "[]"))
			if len(l.entries) > 0 {
				l.entries = l.entries[:len(l.entries)-1]
			}
			torn = true
			continue
		case torn:
			torn = false
			continue
		case strings.HasSuffix(name, "/"):
			name, e.kind = strings.TrimSuffix(name, "/"), entryFolder
		case !tabbed && strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
			l.notes = append(l.notes, strings.Trim(line, "[]"))
			continue
		case strings.HasPrefix(rest, "->"):
			e.kind = entryLink
		case strings.HasPrefix(rest, "["):
			e.kind = entryOther
		default:
			if n, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64); err == nil && n >= 0 {
				e.size = n
			}
		}
		if strings.HasPrefix(name, `"`) && strings.Contains(name, `\`) {
			if s, err := strconv.Unquote(name); err == nil {
				name = s
			}
		}
		if name != "" {
			e.name = name
			l.entries = append(l.entries, e)
		}
	}
	return l
}

// omitted is the line that stands for the middle of a result that was too long.
var omitted = regexp.MustCompile(`^\[\.\.\. \d+ bytes left out here.*\]$`)

var readNote = regexp.MustCompile(`^\[lines (\d+) to (\d+)(?: of (\d+))?(?:; [^\]]*)?\]$`)

// reading is what one call of the read tool returned.
type reading struct {
	path string
	// lines were returned, the whole file has total; -1 where that is not known.
	lines, total int
	// begins is the first line that is not blank, or "".
	begins string
	failed string
}

// parseRead reads the result of the read tool: the lines as they are, after a note
// in brackets if they are not the whole file.
func parseRead(name string, r Result) reading {
	out := reading{path: name, total: -1}
	if !r.Found || r.IsError {
		out.failed = clip(oneLine(resultText(r)), 300)
		return out
	}
	text := r.Text
	if text == "" || text == "[the file is empty]" {
		out.total = 0
		return out
	}
	whole := true
	first, rest, _ := strings.Cut(text, "\n")
	if m := readNote.FindStringSubmatch(first); m != nil && m[1] == "1" && m[2] == strconv.Itoa(countLines(rest)) {
		text, whole = rest, false
		if n, err := strconv.Atoi(m[3]); err == nil {
			out.total = n
		}
	}
	for line := range strings.Lines(text) {
		if omitted.MatchString(strings.TrimRight(line, "\n")) {
			text, whole = text[:strings.Index(text, line)], false
			break
		}
	}
	out.lines = countLines(text)
	if whole {
		out.total = out.lines
	}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			out.begins = clip(oneLine(line), 120)
			break
		}
	}
	return out
}

func countLines(s string) int {
	n := strings.Count(s, "\n")
	if s != "" && !strings.HasSuffix(s, "\n") {
		n++
	}
	return n
}

// kindOf is the extension that a file counts under.
func kindOf(name string) string {
	base := path.Base(name)
	if ext := path.Ext(base); ext != "" && ext != "." && ext != base && len(ext) <= 12 {
		return strings.ToLower(ext)
	}
	return "without extension"
}

// passedOver reports whether a folder is left alone where there are others:
// hidden, or full of what somebody else wrote.
func passedOver(name string) bool {
	switch base := path.Base(name); base {
	case "node_modules", "vendor", "third_party", "bower_components", "__pycache__", "venv", "Pods":
		return true
	default:
		return strings.HasPrefix(base, ".")
	}
}

// pathArgs is the argument text of a call that takes a path.
func pathArgs(name string) string {
	return string(append(jsonx.AppendStringField([]byte("{"), "path", name), '}'))
}

// printable quotes a name that would break the line it stands in.
func printable(name string) string {
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return strconv.Quote(name)
	}
	return name
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// maxNames bounds how many names a sentence lists.
const maxNames = 8

// joinAnd lists names in a sentence.
func joinAnd(names []string) string {
	switch n := len(names); {
	case n == 0:
		return ""
	case n == 1:
		return names[0]
	case n > maxNames:
		return strings.Join(names[:maxNames], ", ") + fmt.Sprintf(" and %d more", n-maxNames)
	default:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
}

func bytesText(n int64) string {
	switch {
	case n < 1000:
		return count(int(n), "byte", "bytes")
	case n < 1_000_000:
		return strconv.FormatFloat(float64(n)/1e3, 'f', 1, 64) + " kB"
	case n < 1_000_000_000:
		return strconv.FormatFloat(float64(n)/1e6, 'f', 1, 64) + " MB"
	default:
		return strconv.FormatFloat(float64(n)/1e9, 'f', 1, 64) + " GB"
	}
}
