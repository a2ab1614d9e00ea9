package wire

import (
	"fmt"
	"hash/fnv"
)

// maxName is the longest name or call id that a vendor takes.
const maxName = 64

// Name returns the name of an earlier tool call as it may stand in a request: ASCII
// letters, digits, '_' and '-', at most 64 of them. A model may call a tool that
// does not exist by any name at all; the log keeps what it wrote, but a vendor
// would refuse every later request that repeats it.
func Name(name string) string { return spell(name, nameByte, false) }

// StrictID returns a call id in the same alphabet as Name, and PrintableID one of
// printable ASCII without blanks. An id that is fit already stays as it is; ids
// that differ stay different, so that every result still finds its call.
func StrictID(id string) string { return spell(id, nameByte, true) }

// PrintableID is described with StrictID.
func PrintableID(id string) string {
	return spell(id, func(c byte) bool { return c > ' ' && c < 0x7f }, true)
}

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

func spell(s string, fit func(byte) bool, distinct bool) string {
	ok := s != "" && len(s) <= maxName
	for i := 0; ok && i < len(s); i++ {
		ok = fit(s[i])
	}
	if ok {
		return s
	}
	out := make([]byte, 0, maxName)
	for i := 0; i < len(s) && len(out) < maxName; i++ {
		if c := s[i]; fit(c) {
			out = append(out, c)
		} else if c < 0x80 || c >= 0xc0 { // one for each rune
			out = append(out, '_')
		}
	}
	if distinct {
		h := fnv.New64a()
		_, _ = h.Write([]byte(s)) // never fails
		out = fmt.Appendf(out[:min(len(out), maxName-17)], "_%016x", h.Sum64())
	}
	if len(out) == 0 {
		return "_"
	}
	return string(out)
}
