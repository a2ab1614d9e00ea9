package jsonl

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/offshoot-dev/offshoot/session"
)

// FileName is the name of a log in the folder of its session; the upstream's
// compressed form of it is refused by name (core D17).
const (
	FileName       = "session.jsonl"
	compressedName = "session.jsonl.zstd"
)

// noCwd is the project of a session without a working directory.
const noCwd = "_no-cwd"

// maxSlug bounds what stands between the marks of a project's name, so that the
// whole is a legal name on common file systems.
const maxSlug = 251

// Path returns where a folder of logs keeps the log of a session, relative to it.
func Path(h *session.Header) string {
	project := noCwd
	if h.Cwd != "" {
		project = Slug(h.Cwd)
	}
	return filepath.Join(project, EscapeID(h.ID), FileName)
}

// Slug makes the name of a project's folder out of a working directory: readable,
// and not reversible. Each run of /, \ and : becomes one hyphen; hyphens at the
// beginning go; other characters are escaped as in EscapeID; what is too long is cut.
// A folder without a name is "root".
func Slug(cwd string) string {
	var b []byte
	run := false
	for _, u := range utf16.Encode([]rune(cwd)) {
		switch u {
		case '/', '\\', ':':
			if !run {
				b = append(b, '-')
			}
			run = true
		default:
			b, run = appendUnit(b, u), false
		}
	}
	name := strings.TrimLeft(string(b), "-")
	if name == "" {
		name = "root"
	}
	return "--" + name[:min(len(name), maxSlug)] + "--"
}

// EscapeID makes the name of a session's folder out of its id, so that different ids
// have different names whatever they hold: ASCII letters and digits and . _ - stand
// for themselves, every other UTF-16 code unit is ~ and four upper-case hexadecimal
// digits, and so are the dots of . and .. (core D13).
func EscapeID(id session.ID) string {
	if id == "." || id == ".." {
		return strings.ReplaceAll(string(id), ".", "~002E")
	}
	b := make([]byte, 0, len(id))
	for _, u := range utf16.Encode([]rune(id)) {
		b = appendUnit(b, u)
	}
	return string(b)
}

func literal(u uint16) bool {
	return 'a' <= u && u <= 'z' || 'A' <= u && u <= 'Z' || '0' <= u && u <= '9' || u == '.' || u == '_' || u == '-'
}

func appendUnit(b []byte, u uint16) []byte {
	if literal(u) {
		return append(b, byte(u))
	}
	return fmt.Appendf(b, "~%04X", u)
}

// UnescapeID returns the id that EscapeID made a name of. Anything else is an error:
// also a name of half a surrogate pair, which no id of this product can hold.
func UnescapeID(name string) (session.ID, error) {
	var units []uint16
	for i := 0; i < len(name); {
		if name[i] != '~' {
			if !literal(uint16(name[i])) {
				return "", fmt.Errorf("folder name %q: %q is not escaped", name, name[i])
			}
			units = append(units, uint16(name[i]))
			i++
			continue
		}
		end := min(i+5, len(name))
		n, err := strconv.ParseUint(name[i+1:end], 16, 16)
		if err != nil || end-i < 5 {
			return "", fmt.Errorf("folder name %q: %q is no escape", name, name[i:end])
		}
		units = append(units, uint16(n))
		i = end
	}
	id := session.ID(utf16.Decode(units))
	// One name for one id: what was escaped without need, or badly, is not it.
	if id == "" || EscapeID(id) != name {
		return "", fmt.Errorf("folder name %q stands for no session id", name)
	}
	return id, nil
}

// CheckPath refuses a log that lies where a folder of logs would keep another one.
// Only the last three elements of path count, and only if the first of them is the
// name of a project: a log elsewhere may lie where it likes.
func CheckPath(path string, h *session.Header) error {
	dir := filepath.Dir(path)
	project := filepath.Base(filepath.Dir(dir))
	if project != noCwd && (len(project) < 5 || !strings.HasPrefix(project, "--") || !strings.HasSuffix(project, "--")) {
		return nil
	}
	id, err := UnescapeID(filepath.Base(dir))
	if err != nil {
		return err
	}
	if id != h.ID {
		return fmt.Errorf("the log lies in the folder of session %q", id)
	}
	if want := filepath.Dir(filepath.Dir(Path(h))); want != project {
		return fmt.Errorf("the log lies in the folder of project %s, and belongs into that of %s", project, want)
	}
	return nil
}
