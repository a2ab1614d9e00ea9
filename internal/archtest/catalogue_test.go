package archtest_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A section of the catalogue is the behaviours PREFIX-01 to PREFIX-last.
type section struct {
	prefix string
	last   int
	// done says that the section is built: none of it is open but what stands in open,
	// each with a later part of the product that brings it.
	done bool
	open []int
}

// id is the name of the nth behaviour, as the seam page writes it.
func (s section) id(n int) string {
	if s.prefix == clausePrefix {
		return fmt.Sprintf("%s%03d", s.prefix, n)
	}
	return fmt.Sprintf("%s-%02d", s.prefix, n)
}

const (
	clausePrefix = "C" // of the sentences that the product was asked for
	openNote     = "open"
)

// idSpan matches a behaviour or the span from one to another.
var idSpan = regexp.MustCompile(`^([A-Z]+)-?([0-9]+)(?:–([A-Z]+)-?([0-9]+))?$`)

// catalogue checks that the seam page has every behaviour once, and that of the built sections only those are open that
// the table says.
func catalogue(t tree, p policy) []string {
	var out []string
	rows := map[string]string{} // id to the note of its row
	line := 0
	for text := range strings.Lines(t.texts[seamPage]) {
		line++
		cells := strings.Split(strings.TrimSpace(text), "|")
		if len(cells) < 4 {
			continue
		}
		note := strings.TrimSpace(cells[len(cells)-2])
		for span := range strings.SplitSeq(cells[1], ",") {
			for _, id := range expand(p, strings.TrimSpace(span)) {
				if _, twice := rows[id]; twice {
					out = append(out, fmt.Sprintf("%s:%d: %s has a second row", seamPage, line, id))
				}
				rows[id] = note
			}
		}
	}
	for _, s := range p.catalogue {
		for n := 1; n <= s.last; n++ {
			id := s.id(n)
			note, there := rows[id]
			open, may := note == openNote || strings.HasPrefix(note, openNote+":"), slices.Contains(s.open, n)
			switch {
			case !there:
				out = append(out, fmt.Sprintf("%s: %s has no row", seamPage, id))
			case s.done && open && !may:
				out = append(out, fmt.Sprintf("%s: %s is open, and its section is built", seamPage, id))
			case !open && may:
				out = append(out, fmt.Sprintf("the catalogue lets %s be open, and it is not", id))
			}
		}
	}
	return out
}

// expand returns the ids of one span that belong to a section of the catalogue.
func expand(p policy, span string) (ids []string) {
	m := idSpan.FindStringSubmatch(span)
	if m == nil {
		return nil
	}
	i := slices.IndexFunc(p.catalogue, func(s section) bool { return s.prefix == m[1] })
	if i < 0 || m[3] != "" && m[3] != m[1] || m[1] == clausePrefix && len(m[2]) != len("001") {
		return nil
	}
	first, _ := strconv.Atoi(m[2])
	last := first
	if m[4] != "" {
		last, _ = strconv.Atoi(m[4])
	}
	for n := first; n <= last; n++ {
		ids = append(ids, p.catalogue[i].id(n))
	}
	return ids
}
