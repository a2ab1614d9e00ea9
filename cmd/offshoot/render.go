package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// cells writes one row of a table; an empty cell shows as a dash.
func cells(w io.Writer, texts ...string) error {
	shown := make([]string, len(texts))
	for i, text := range texts {
		if shown[i] = printable(text); shown[i] == "" {
			shown[i] = "-"
		}
	}
	_, err := io.WriteString(w, strings.Join(shown, "\t")+"\n")
	return err
}

// age tells how long ago a time was, in one unit; "" for a time that is not known.
func age(now time.Time, ms int64) string {
	d := now.Sub(time.UnixMilli(ms))
	switch {
	case ms == 0:
		return ""
	case d < 0:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// moment tells a time of the log for people.
func moment(now time.Time, ms int64) string {
	return time.UnixMilli(ms).In(now.Location()).Format("2006-01-02 15:04:05")
}

// paper writes for people. It keeps the first failure, after which it writes
// nothing more.
type paper struct {
	w    io.Writer
	dims bool // faint text is shown so
	err  error
}

func (p *paper) put(s string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, s)
	}
}

// line writes one line. What comes from a log is made printable first: see block.
func (p *paper) line(format string, args ...any) { p.put(fmt.Sprintf(format, args...) + "\n") }

// faint writes one line that matters less than the others.
func (p *paper) faint(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if p.dims {
		text = "\x1b[2m" + text + "\x1b[0m"
	}
	p.put(text + "\n")
}

// block writes a text from a log, each line behind a margin, at most most lines
// of it; most < 1 is all. It says how many are left out.
func (p *paper) block(margin, text string, most int, faint bool) {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	rest := 0
	if most > 0 && len(lines) > most {
		lines, rest = lines[:most], len(lines)-most
	}
	write := p.line
	if faint {
		write = p.faint
	}
	for _, line := range lines {
		if most > 0 {
			line = clip(line, lineRunes)
		}
		line = printable(strings.ReplaceAll(line, "\t", "    "))
		write("%s", strings.TrimRight(margin+line, " "))
	}
	if rest > 0 {
		p.faint("%s… %d more lines", margin, rest)
	}
}

const (
	// lineRunes bounds a line of a text that is shown in part.
	lineRunes = 400
	// resultLines bounds what is shown of a tool's result.
	resultLines = 12
)

// thousands groups the digits of a number.
func thousands(n int64) string {
	s := fmt.Sprint(n)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// plural words a number of things.
func plural(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return thousands(n) + " " + one + "s"
}

// first returns the beginning of a text in one line.
func first(text string, runes int) string {
	if len(text) > runes*utf8.UTFMax {
		text = strings.ToValidUTF8(text[:runes*utf8.UTFMax], "")
	}
	return printable(clip(strings.Join(strings.Fields(text), " "), runes))
}

// encode renders a value as one line of JSON, without HTML escapes.
func encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}
