package main

import (
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/width"

	"github.com/offshoot-dev/offshoot/session"
)

// The columns of the summary.
const (
	colChild = iota
	colMode
	colModel
	colStop
	colTokens
	colCalls
	colLasted
	colID
	summaryColumns
)

// gap stands between two columns.
const gap = "  "

// summary returns a table with a line for each child, behind the root's line on a
// terminal, or "" when there is no child.
func (p *progress) summary() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.root == nil || len(p.root.kids) == 0 && p.root.folded == 0 {
		return ""
	}
	most := 0 // cells of a line
	if p.tty && p.size != nil {
		most, _ = p.size()
	}
	rows := [][]string{{"CHILD", "MODE", "MODEL", "STOP", "TOKENS", "CALLS", "LASTED", "ID"}}
	folded, spent := 0, int64(0)
	p.root.each(func(n *node) {
		folded, spent = folded+n.folded, spent+n.spent
		if n == p.root {
			return
		}
		row := []string{strings.Repeat("  ", min(n.depth-1, maxIndent)) + n.label, n.mode(), n.model, n.how(),
			count(n.tokens), fmt.Sprint(n.calls), n.elapsed(p.now()), printable(string(n.id))}
		for i := range row {
			if row[i] == "" {
				row[i] = "-"
			}
		}
		rows = append(rows, row)
	})
	var b strings.Builder
	if p.live {
		b.WriteString(p.row(p.root, "", most) + "\n")
	}
	if most > 0 {
		narrow(rows, most)
	}
	widths := widest(rows)
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			if widths[i] == 0 {
				continue // it was left out
			}
			if i > 0 {
				line += gap
			}
			line += cell + strings.Repeat(" ", widths[i]-columns(cell))
		}
		b.WriteString(fit(strings.TrimRight(line, " "), most) + "\n")
	}
	if folded > 0 {
		text := fmt.Sprintf("… %d more, finished · %s tokens · offshoot sessions tree %s", folded, count(spent), printable(string(p.root.id)))
		b.WriteString(fit(text, most) + "\n")
	}
	return b.String()
}

// mode is what kind of child a node is.
func (n *node) mode() string {
	if n.lasting {
		return "continuable " + n.provider
	}
	return n.provider
}

func widest(rows [][]string) []int {
	widths := make([]int, summaryColumns)
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], columns(cell))
		}
	}
	return widths
}

// narrow makes the rows fit into most cells as far as they can be. Long labels are cut
// first, then the ids, to where they still tell the sessions of this run apart, then models;
// where that is not enough the modes and the models are left out, before labels become
// short.
func narrow(rows [][]string, most int) {
	// excess is how many cells are too many while column col takes at most least.
	excess := func(col, least int) int {
		n := -len(gap)
		for i, w := range widest(rows) {
			if i == col {
				w = min(w, least)
			}
			if w > 0 {
				n += w + len(gap)
			}
		}
		return n - most
	}
	cut := func(col, least int) {
		w := widest(rows)[col]
		if n := excess(col, w); n > 0 && w > 0 {
			for _, row := range rows {
				row[col] = fit(row[col], max(w-n, least))
			}
		}
	}
	const longLabel, longModel, shortLabel = 24, 12, 5
	if excess(colChild, longLabel) > 0 {
		shorten(rows)
	}
	if excess(colChild, leastLabel) > 0 {
		cut(colModel, longModel)
	}
	for _, col := range []int{colMode, colModel} {
		if excess(colChild, leastLabel) > 0 {
			for _, row := range rows {
				row[col] = ""
			}
		}
	}
	cut(colChild, shortLabel)
}

// shorten cuts the ids to beginnings that no other one of them has; offshoot sessions
// show takes them.
func shorten(rows [][]string) {
	// The time, which tells those of other runs apart.
	const least = len("01234567-89ab")
	for n := least; ; n++ {
		seen, more := map[string]bool{}, false
		for _, row := range rows[1:] {
			id := row[colID]
			more = more || len(id) > n
			seen[id[:min(n, len(id))]] = true
		}
		if !more {
			return
		}
		if len(seen) < distinct(rows[1:]) {
			continue
		}
		for _, row := range rows[1:] {
			row[colID] = strings.TrimSuffix(row[colID][:min(n, len(row[colID]))], "-")
		}
		return
	}
}

func distinct(rows [][]string) int {
	ids := map[session.ID]bool{}
	for _, row := range rows {
		ids[session.ID(row[colID])] = true
	}
	return len(ids)
}

// columns is how many cells of a terminal a printable text takes.
func columns(s string) (n int) {
	for _, r := range s {
		n += cellsOf(r)
	}
	return n
}

func cellsOf(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// fit cuts a text to at most most cells; most < 1 is no bound.
func fit(s string, most int) string {
	if most < 1 || columns(s) <= most {
		return s
	}
	n := 0
	for i, r := range s {
		if n += cellsOf(r); n > most-1 {
			return s[:i] + "…"
		}
	}
	return s
}
