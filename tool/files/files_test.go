//go:build unix

package files_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/tool"
	"github.com/offshoot-dev/offshoot/tool/files"
)

// desk is a working directory with the five tools.
type desk struct {
	t     testing.TB
	dir   string // holds cwd and what lies outside of it
	cwd   string
	scope *tool.Scope
}

func newDesk(t testing.TB, opts files.Options) *desk {
	t.Helper()
	d := &desk{t: t, dir: t.TempDir(), scope: tool.New().Root()}
	d.cwd = filepath.Join(d.dir, "work")
	if err := os.Mkdir(d.cwd, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, def := range files.Tools(opts) {
		if _, err := d.scope.Register(def); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// put writes a file below the working directory, past the tools.
func (d *desk) put(name, content string) {
	d.t.Helper()
	path := filepath.Join(d.cwd, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) get(name string) string {
	d.t.Helper()
	data, err := os.ReadFile(filepath.Join(d.cwd, name))
	if err != nil {
		d.t.Fatal(err)
	}
	return string(data)
}

func (d *desk) link(target, name string) {
	d.t.Helper()
	if err := os.Symlink(target, filepath.Join(d.cwd, name)); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) result(name, args string, a ...any) tool.Result {
	d.t.Helper()
	for i := range a {
		if s, ok := a[i].(string); ok {
			a[i] = string(mustJSON(d.t, s))
		}
	}
	return d.scope.Execute(d.t.Context(), tool.CallInput{ID: "c", Name: name, Args: fmt.Sprintf(args, a...), Cwd: d.cwd}, tool.ExecOptions{})
}

// ok runs a call that must succeed and returns what the model reads.
func (d *desk) ok(name, args string, a ...any) string {
	d.t.Helper()
	r := d.result(name, args, a...)
	if r.IsError {
		d.t.Fatalf("%s %v: %s", name, a, text(r))
	}
	return text(r)
}

// fails runs a call that must fail with a text that contains want.
func (d *desk) fails(want, name, args string, a ...any) {
	d.t.Helper()
	r := d.result(name, args, a...)
	if !r.IsError || !strings.Contains(text(r), want) {
		d.t.Errorf("%s %v: error %v, %q, want one with %q", name, a, r.IsError, text(r), want)
	}
}

func text(r tool.Result) string { return message.JoinText(r.Content) }

func TestDefinitions(t *testing.T) {
	got := map[string][2]bool{}
	for _, d := range files.Tools(files.Options{}) {
		got[d.Name] = [2]bool{d.ReadOnly, d.ConcurrencySafe != nil && d.ConcurrencySafe([]byte(`{}`))}
		if len(d.Description) < 100 {
			t.Errorf("%s: description %q", d.Name, d.Description)
		}
		if line := d.Describe([]byte(`{"path":"go.mod","pattern":"x"}`)); !strings.HasPrefix(line, d.Name) || !strings.Contains(line, "go.mod") {
			t.Errorf("%s: %q", d.Name, line)
		}
	}
	want := map[string][2]bool{"list": {true, true}, "read": {true, true}, "search": {true, true}, "write": {}, "edit": {}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	d := newDesk(t, files.Options{})
	d.cwd = ""
	d.fails("no working directory", "list", `{}`)
	d.cwd = "/nonexistent/folder"
	d.fails("working directory", "list", `{}`)
}

func TestList(t *testing.T) {
	d := newDesk(t, files.Options{ListEntries: 6})
	if got := d.ok("list", `{}`); got != "[empty folder]" {
		t.Errorf("got %q", got)
	}
	d.put("b.txt", "12345")
	d.put("a/inner", "")
	d.put("Z", "")
	d.put("odd\nname", "1")
	d.link("b.txt", "link")
	if err := syscall.Mkfifo(filepath.Join(d.cwd, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := "Z\t0\na/\nb.txt\t5\nlink\t-> b.txt\n\"odd\\nname\"\t1\npipe\t[p---------]"
	for _, args := range []string{`{}`, `{"path":"."}`, `{"path":` + string(mustJSON(t, d.cwd)) + `}`, `{"path":"a/.."}`} {
		if got := d.ok("list", "%s", []byte(args)); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
	d.put("zz", "")
	d.put("zzz", "")
	r := d.result("list", `{}`)
	if got := text(r); got != want+"\n[2 more entries]" || string(r.Meta) != `{"path":".","entries":8,"shown":6}` {
		t.Errorf("%q, meta %s", got, r.Meta)
	}
	d.fails("is not a folder", "list", `{"path":"b.txt"}`)
	d.fails("there is no file or folder none", "list", `{"path":"none"}`)
}

func TestRead(t *testing.T) {
	d := newDesk(t, files.Options{ReadLines: 4, ReadBytes: 100, LineBytes: 20})
	d.put("empty", "")
	d.put("three", "one\ntwo\nthree")
	d.put("many", "1\n2\n3\n4\n5\n6\n")
	d.put("long", "short\n"+strings.Repeat("ä", 50)+"\nend\n")
	d.put("wide", strings.Repeat("123456789012345678\n", 4)+strings.Repeat("x", 15)+"\nlast\n")
	d.put("latin1", "gr\xfc\xdfe\n")
	d.put("crlf", "a\r\nb\r\n")
	d.put("bin", "\x7fELF\x00\x01\x02")
	for _, tt := range []struct{ args, want string }{
		{`{"path":"empty"}`, "[the file is empty]"},
		{`{"path":"three"}`, "one\ntwo\nthree"},
		{`{"path":"./x/../three"}`, "one\ntwo\nthree"},
		{`{"path":"many"}`, "[lines 1 to 4 of 6; go on with offset 5]\n1\n2\n3\n4\n"},
		{`{"path":"many","offset":5}`, "[lines 5 to 6 of 6]\n5\n6\n"},
		{`{"path":"many","offset":2,"limit":2}`, "[lines 2 to 3 of 6; go on with offset 4]\n2\n3\n"},
		{`{"path":"many","limit":1000}`, "[lines 1 to 4 of 6; go on with offset 5]\n1\n2\n3\n4\n"},
		{`{"path":"long"}`, "short\n" + strings.Repeat("ä", 10) + " [80 more bytes in this line]\nend\n"},
		{`{"path":"wide","offset":3}`, "[lines 3 to 6 of 6]\n" + strings.Repeat("123456789012345678\n", 2) + strings.Repeat("x", 15) + "\nlast\n"},
		{`{"path":"latin1"}`, "gr\uFFFDe\n"},
		{`{"path":"crlf"}`, "a\r\nb\r\n"},
	} {
		if got := d.ok("read", "%s", []byte(tt.args)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.args, got, tt.want)
		}
	}
	d2 := newDesk(t, files.Options{ReadBytes: 50})
	d2.put("wide", strings.Repeat("123456789\n", 9))
	if got, want := d2.ok("read", `{"path":"wide"}`), "[lines 1 to 5 of 9; go on with offset 6]\n"+strings.Repeat("123456789\n", 5); got != want {
		t.Errorf("bound in bytes: %q", got)
	}
	if r := d.result("read", `{"path":"many","offset":5}`); string(r.Meta) != `{"path":"many","bytes":12,"from":5,"lines":2}` {
		t.Errorf("meta %s", r.Meta)
	}
	d.fails("only 6 lines", "read", `{"path":"many","offset":7}`)
	d.fails("bin is not text: 7 bytes of application/octet-stream", "read", `{"path":"bin"}`)
	d.fails("there is no file or folder none", "read", `{"path":"none"}`)
	d.put("sub/f", "")
	d.fails("sub is a folder", "read", `{"path":"sub"}`)
	if err := syscall.Mkfifo(filepath.Join(d.cwd, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.fails("not a regular file", "read", `{"path":"pipe"}`) // and does not block
}

func TestReadHugeFileInBoundedMemory(t *testing.T) {
	d := newDesk(t, files.Options{})
	f, err := os.Create(filepath.Join(d.cwd, "huge"))
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Repeat("x", 1<<20) + "\n"
	for range 3 {
		if _, err := f.WriteString(line); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(1 << 33); err != nil { // a hole: no such bytes on the disk
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := d.ok("read", `{"path":"huge","limit":2}`)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
		t.Errorf("%d bytes allocated for two cut lines", n)
	}
	if !strings.HasPrefix(got, "[lines 1 to 2; go on with offset 3]\nxxx") || len(got) > 9000 {
		t.Errorf("%d bytes: %.80q", len(got), got)
	}
	d.fails("cannot be edited", "edit", `{"path":"huge","old":"x","new":"y"}`)
	if got := d.ok("search", `{"pattern":"x"}`); got != "[no matches]\n[files of more than 4194304 bytes not searched: 1]" {
		t.Errorf("search: %q", got)
	}
}

func TestWrite(t *testing.T) {
	d := newDesk(t, files.Options{})
	if got := d.ok("write", `{"path":"a/b/c.txt","content":%s}`, "one\ntwo"); got != "created a/b/c.txt: 7 bytes, 2 lines" || d.get("a/b/c.txt") != "one\ntwo" {
		t.Errorf("%q, file %q", got, d.get("a/b/c.txt"))
	}
	script := filepath.Join(d.cwd, "a/b/c.txt")
	if err := os.Chmod(script, 0o750); err != nil {
		t.Fatal(err)
	}
	d.link("a/b/c.txt", "link")
	r := d.result("write", `{"path":"link","content":""}`)
	if text(r) != "replaced link: 0 bytes, 0 lines" || string(r.Meta) != `{"path":"link","bytes":0,"lines":0}` {
		t.Errorf("%q, meta %s", text(r), r.Meta)
	}
	info, err := os.Lstat(script)
	if err != nil || info.Mode() != 0o750 || info.Size() != 0 {
		t.Errorf("the link's target: %v, %v", info.Mode(), err)
	}
	if info, err := os.Lstat(filepath.Join(d.cwd, "link")); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v", err)
	}
	d.fails("a is a folder", "write", `{"path":"a","content":""}`)
	d.fails("write: ", "write", `{"path":"link/x","content":""}`)
	d.fails("", "write", `{"path":"","content":""}`)
	d.put("locked", "keep")
	if err := os.Chmod(filepath.Join(d.cwd, "locked"), 0o444); err != nil {
		t.Fatal(err)
	}
	d.fails("write-protected", "write", `{"path":"locked","content":"x"}`)
	d.noTemp()
}

func mustJSON(t testing.TB, s string) []byte {
	t.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// noTemp checks that no temporary file stayed behind.
func (d *desk) noTemp() {
	d.t.Helper()
	err := filepath.WalkDir(d.dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".tmp") {
			d.t.Errorf("left behind: %s", path)
		}
		return err
	})
	if err != nil {
		d.t.Fatal(err)
	}
}

func TestWriteIsAtomic(t *testing.T) {
	d := newDesk(t, files.Options{})
	a, b := strings.Repeat("a", 1<<16), strings.Repeat("b", 1<<16)
	d.put("f", a)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if data, err := os.ReadFile(filepath.Join(d.cwd, "f")); err != nil || string(data) != a && string(data) != b {
				t.Errorf("read %d bytes in between, %v", len(data), err)
				return
			}
		}
	})
	for range 5 {
		d.ok("write", `{"path":"f","content":%s}`, b)
		d.ok("write", `{"path":"f","content":%s}`, a)
	}
	close(stop)
	wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := d.scope.Execute(ctx, tool.CallInput{Name: "write", Args: `{"path":"f","content":""}`, Cwd: d.cwd}, tool.ExecOptions{})
	if !r.IsError || d.get("f") != a {
		t.Errorf("cancelled write: %+v", r)
	}
	d.noTemp()
}

func TestEdit(t *testing.T) {
	d := newDesk(t, files.Options{EditBytes: 1000})
	const start = "alpha\nbeta\ngamma\nbeta\n"
	d.put("f", start)
	d.fails("does not occur", "edit", `{"path":"f","old":"delta","new":"x"}`)
	d.fails("occurs 2 times in f, at lines 2, 4;", "edit", `{"path":"f","old":"beta","new":"x"}`)
	d.fails("the same", "edit", `{"path":"f","old":"beta","new":"beta"}`)
	d.fails("", "edit", `{"path":"f","old":"","new":"x"}`)
	d.fails("there is no file g", "edit", `{"path":"g","old":"a","new":"b"}`)
	if got := d.get("f"); got != start {
		t.Fatalf("a failed edit changed the file: %q", got)
	}
	if got := d.ok("edit", `{"path":"f","old":%s,"new":"<&>"}`, "gamma\nbeta"); got != "edited f at line 3" || d.get("f") != "alpha\nbeta\n<&>\n" {
		t.Errorf("%q, file %q", got, d.get("f"))
	}
	d.put("f", start)
	r := d.result("edit", `{"path":"f","old":"beta","new":"","replace_all":true}`)
	if text(r) != "edited f: 2 replacements, the first at line 2" || d.get("f") != "alpha\n\ngamma\n\n" || string(r.Meta) != `{"path":"f","bytes":14,"replacements":2,"line":2}` {
		t.Errorf("%q, file %q, meta %s", text(r), d.get("f"), r.Meta)
	}
	d.put("bytes", "gr\xfc\xdfe ok\n") // what is not touched stays byte for byte
	if d.ok("edit", `{"path":"bytes","old":"ok","new":"fine"}`); d.get("bytes") != "gr\xfc\xdfe fine\n" {
		t.Errorf("file %q", d.get("bytes"))
	}
	d.put("crlf", "a\r\nb\r\n")
	d.fails(`lines end in \r\n`, "edit", `{"path":"crlf","old":%s,"new":"x"}`, "a\nb")
	d.put("bin", "a\x00b")
	d.fails("is not text", "edit", `{"path":"bin","old":"a","new":"b"}`)
	d.put("big", strings.Repeat("x", 1001))
	d.fails("cannot be edited", "edit", `{"path":"big","old":"x","new":"b"}`)
	d.noTemp()
}

func TestSearch(t *testing.T) {
	d := newDesk(t, files.Options{SearchMatches: 4})
	d.put("main.go", "package main\n\nfunc main() {}\n")
	d.put("a/b/deep.go", "func deep() {}\r\n")
	d.put("a/note.md", "a func in prose\n")
	d.put(".git/config", "func\n")
	d.put("bin", "func\x00")
	d.put("long", strings.Repeat("ä", 400)+"needle"+strings.Repeat("ö", 400)+"\n")
	d.link("main.go", "link.go")
	for _, tt := range []struct{ args, want string }{
		{`{"pattern":"^func \\w+"}`, "a/b/deep.go:1: func deep() {}\nmain.go:3: func main() {}"},
		{`{"pattern":"FUNC"}`, "[no matches]"},
		{`{"pattern":"(?i)FUNC","glob":"*.md"}`, "a/note.md:1: a func in prose"},
		{`{"pattern":"func","path":"a"}`, "a/b/deep.go:1: func deep() {}\na/note.md:1: a func in prose"},
		{`{"pattern":"func","path":"a","glob":"b/*"}`, "a/b/deep.go:1: func deep() {}"},
		{`{"pattern":"func","glob":"**/*.{md,txt}"}`, "a/note.md:1: a func in prose"},
		{`{"pattern":"func","glob":"[!a-l]*.go"}`, "main.go:3: func main() {}"},
		{`{"pattern":"func","path":"main.go"}`, "main.go:3: func main() {}"},
		{`{"pattern":"func","path":".git"}`, ".git/config:1: func"},
		{`{"pattern":"needle"}`, "long:1: …" + strings.Repeat("ä", 50) + "needle" + strings.Repeat("ö", 97) + "…"},
	} {
		if got := d.ok("search", "%s", []byte(tt.args)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.args, got, tt.want)
		}
	}
	d.put("many", strings.Repeat("hit\n", 9))
	r := d.result("search", `{"pattern":"hit"}`)
	if text(r) != "many:1: hit\nmany:2: hit\nmany:3: hit\nmany:4: hit\n[stopped after 4 matches; there are more]" || string(r.Meta) != `{"matches":4,"files":1,"more":true}` {
		t.Errorf("%q, meta %s", text(r), r.Meta)
	}
	d.fails("pattern is not valid", "search", `{"pattern":"("}`)
	d.fails("class without an end", "search", `{"pattern":"a","glob":"[a"}`)
	d.fails("brace without an end", "search", `{"pattern":"a","glob":"{a"}`)
	d.fails("there is no file or folder none", "search", `{"pattern":"a","path":"none"}`)
}

// TestConfinement tries every way out that is known.
func TestConfinement(t *testing.T) {
	d := newDesk(t, files.Options{})
	secret := filepath.Join(d.dir, "secret")
	if err := os.WriteFile(secret, []byte("treasure\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d.put("in/f", "x")
	d.link("../secret", "out-file")
	d.link("..", "out-dir")
	d.link(secret, "out-abs")
	d.link("../new-file", "out-new")
	d.link("loop", "loop")
	d.link("in", "inside")
	paths := []string{
		"../secret", "in/../../secret", secret, "out-file", "out-dir/secret", "out-abs", "inside/../../secret",
		"./../secret", "/etc/passwd", "out-dir/in/../secret", d.cwd + "/../secret", d.cwd + "2", "..", "/", "a\x00b", "loop",
	}
	for _, p := range append(paths, "out-new") {
		d.fails("", "read", `{"path":%s}`, p)
		d.fails("", "write", `{"path":%s,"content":"gone"}`, p)
		d.fails("", "edit", `{"path":%s,"old":"treasure","new":"gone"}`, p)
		d.fails("", "search", `{"pattern":"treasure","path":%s}`, p)
		d.fails("", "list", `{"path":%s}`, p)
	}
	d.fails("", "write", `{"path":"out-dir/made","content":"x"}`)
	d.fails("", "write", `{"path":"out-dir/deep/made","content":"x"}`)
	if got := d.ok("search", `{"pattern":"treasure"}`); got != "[no matches]" {
		t.Errorf("search went out: %q", got)
	}
	entries, err := os.ReadDir(d.dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("outside: %v, %v", entries, err)
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "treasure\n" {
		t.Errorf("secret: %q, %v", data, err)
	}
	// Links that stay inside, and absolute paths inside, are fine.
	for _, p := range []string{"inside/f", filepath.Join(d.cwd, "in/f"), "in/../inside/f"} {
		if got := d.ok("read", `{"path":%s}`, p); got != "x" {
			t.Errorf("%s: %q", p, got)
		}
	}
	// The working directory itself may be reached through a link.
	alias := filepath.Join(t.TempDir(), "alias")
	if err := os.Symlink(d.cwd, alias); err != nil {
		t.Fatal(err)
	}
	real := d.cwd
	d.cwd = alias
	for _, p := range []string{filepath.Join(alias, "in/f"), filepath.Join(real, "in/f")} {
		if got := d.ok("read", `{"path":%s}`, p); got != "x" {
			t.Errorf("%s: %q", p, got)
		}
	}
}

// FuzzPath writes to a path and checks that nothing outside was touched and that
// a success can be read back.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"a", "../a", "/etc/passwd", "in/../../a", "out/a", "out", "a/b/c", ".", "..", "a\x00", "in//./f", "\\..\\a", "out-abs/x", "in/out/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		d := newDesk(t, files.Options{})
		d.put("in/f", "x")
		outside := filepath.Join(d.dir, "outside")
		if err := os.Mkdir(outside, 0o755); err != nil {
			t.Fatal(err)
		}
		d.link("../outside", "out")
		d.link(outside, "out-abs")
		d.link("../../outside", "in/out")
		quoted := strings.ToValidUTF8(path, "?")
		args := fmt.Appendf(nil, `{"path":%s,"content":"mark"}`, mustJSON(t, quoted))
		r := d.scope.Execute(t.Context(), tool.CallInput{Name: "write", Args: string(args), Cwd: d.cwd}, tool.ExecOptions{})
		for _, dir := range []string{d.dir, outside} {
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.Name() != "work" && e.Name() != "outside" {
					t.Fatalf("%q made %s", path, filepath.Join(dir, e.Name()))
				}
			}
		}
		if r.IsError {
			return
		}
		args = fmt.Appendf(nil, `{"path":%s}`, mustJSON(t, quoted))
		r = d.scope.Execute(t.Context(), tool.CallInput{Name: "read", Args: string(args), Cwd: d.cwd}, tool.ExecOptions{})
		if text(r) != "mark" {
			t.Fatalf("%q was written but reads %q", path, text(r))
		}
	})
}
