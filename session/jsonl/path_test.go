package jsonl_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/jsonl"
)

// core D13: where a folder of logs keeps which, both ways.
func TestPath_D13(t *testing.T) {
	for _, tt := range []struct {
		cwd, id, want string
	}{
		{"/srv/project", "018b-root", "--srv-project--/018b-root"},
		{"", "x", "_no-cwd/x"},
		{"/", "x", "--root--/x"},
		{"/tmp/work tree é", "x", "--tmp-work~0020tree~0020~00E9--/x"},
		{`C:\Users\me`, "x", "--C-Users-me--/x"},
		{"//a///b:/c/", "x", "--a-b-c---/x"},
		{"/-a/~b/.c_d", "x", "--a-~007Eb-.c_d--/x"}, // hyphens at the beginning go, whoever wrote them
		{"/" + strings.Repeat("a", 300), "x", "--" + strings.Repeat("a", 251) + "--/x"},
		{"/" + strings.Repeat("a", 248) + "é", "x", "--" + strings.Repeat("a", 248) + "~00" + "--/x"},
		{"/p", "a/b c~d:é😀", "--p--/a~002Fb~0020c~007Ed~003A~00E9~D83D~DE00"},
		{"/p", "UPPER_lower-1.2", "--p--/UPPER_lower-1.2"},
		{"/p", ".", "--p--/~002E"},
		{"/p", "..", "--p--/~002E~002E"},
		{"/p", "...", "--p--/..."},
		{"/p", "../../etc", "--p--/..~002F..~002Fetc"},
		{"/p", "\x00\n", "--p--/~0000~000A"},
	} {
		h := &session.Header{ID: session.ID(tt.id), Cwd: tt.cwd}
		path := jsonl.Path(h)
		if want := filepath.FromSlash(tt.want + "/session.jsonl"); path != want {
			t.Errorf("%q in %q: %s, want %s", tt.id, tt.cwd, path, want)
		}
		if id, err := jsonl.UnescapeID(filepath.Base(filepath.Dir(path))); err != nil || string(id) != tt.id {
			t.Errorf("%s is read as %q, %v", path, id, err)
		}
		if err := jsonl.CheckPath(filepath.Join("/logs", path), h); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, name := range []string{
		"", ".", "..", "a b", "a/b", "é", "~", "~00", "~002", "~002e", "~00zz", "~+02E", "~0041", "~002Ex", "~D83D", "~DE00~D83D", "a~",
	} {
		if id, err := jsonl.UnescapeID(name); err == nil {
			t.Errorf("%q is read as id %q", name, id)
		}
	}
}

// core D13: a folder of logs says where each lies; elsewhere a log lies where it likes.
func TestCheckPath_D13(t *testing.T) {
	h := &session.Header{ID: "a", Cwd: "/p"}
	for path, want := range map[string]string{
		"/logs/--p--/a/session.jsonl":    "",
		"/logs/--p--/b/session.jsonl":    `session "b"`,
		"/logs/--q--/a/session.jsonl":    "project --q--",
		"/logs/_no-cwd/a/session.jsonl":  "project _no-cwd",
		"/logs/--p--/~zz/session.jsonl":  "no escape",
		"/logs/backup/b/session.jsonl":   "",
		"/logs/----/b/session.jsonl":     "",
		"/b/session.jsonl":               "",
		"/logs/--p--x/b/session.jsonl":   "",
		"/logs/x--p--/b/whatever.ndjson": "",
	} {
		err := jsonl.CheckPath(filepath.FromSlash(path), h)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// Every id has one safe name, and every name one id (core D13).
func FuzzEscapeID(f *testing.F) {
	for _, s := range []string{"018b-root", "a/b c~d:é😀", ".", "..", "...", "~002E", "~D83D", "\x00", "A", "\ufffd"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.ToValidUTF8(s, "") == s && s != "" {
			name := jsonl.EscapeID(session.ID(s))
			if name == "." || name == ".." || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-~") != "" {
				t.Fatalf("%q has the name %q", s, name)
			}
			if id, err := jsonl.UnescapeID(name); err != nil || string(id) != s {
				t.Fatalf("%q has the name %q, which is read as %q: %v", s, name, id, err)
			}
		}
		if id, err := jsonl.UnescapeID(s); err == nil && jsonl.EscapeID(id) != s {
			t.Fatalf("%q is read as %q, whose name is %q", s, id, jsonl.EscapeID(id))
		}
	})
}
