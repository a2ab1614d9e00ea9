package jsonl_test

import (
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/jsonl"
)

// put writes a file below dir and returns its path.
func put(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// core D13: a folder of logs is read from its top, from a project or from a session,
// and nothing else in it is touched.
func TestFolder_D13(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "--p--/root/session.jsonl", whole("root", "", 0, 1))
	put(t, dir, "--p--/k~002F1/session.jsonl", whole("k/1", "root", 1, 1))
	put(t, dir, "--p--/root/other.txt", "an artifact of the session")
	put(t, dir, "--p--/root/deep/down/session.jsonl", "no log, but what the session keeps beside it")
	for _, tt := range []struct{ from, want string }{
		{".", "root k/1"}, {"--p--", "root k/1"}, {"--p--/root", "root"},
	} {
		s := newShop(t)
		sources, err := jsonl.Folder(filepath.Join(dir, filepath.FromSlash(tt.from)))
		if err == nil {
			_, err = s.load(sources...)
		}
		if err != nil || s.ids() != tt.want {
			t.Errorf("%s: %v, stored: %s", tt.from, err, s.ids())
		}
	}
	for name, want := range map[string]string{
		"--p--/wrong/session.jsonl": `folder of session "wrong"`,
		"--q--/root/session.jsonl":  "belongs into that of --p--",
	} {
		dir := t.TempDir()
		path := put(t, dir, name, whole("root", "", 0, 1))
		s := newShop(t)
		sources, err := jsonl.Folder(dir)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.load(sources...)
		var corrupt *session.CorruptError
		if !errors.As(err, &corrupt) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path+":1:") || s.ids() != "" {
			t.Errorf("%s: %v", name, err)
		}
		// Named itself, a file may lie anywhere.
		if _, err := s.load(jsonl.File(path)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := jsonl.Folder(t.TempDir())
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder: %v", err)
	}
}

// core D17: the compressed form is refused by name, and so is what would block.
func TestFolderRefuses_D17(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "--p--/a/session.jsonl", whole("a", "", 0, 1))
	path := put(t, dir, "--p--/b/session.jsonl.zstd", "…")
	var unsupported *session.UnsupportedError
	if _, err := jsonl.Folder(dir); !errors.As(err, &unsupported) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "zstd -d") {
		t.Errorf("a compressed log: %v", err)
	}
	s := newShop(t)
	if _, err := s.load(jsonl.File(dir)); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder as a file: %v", err)
	}
	if _, err := s.load(jsonl.File(filepath.Join(dir, "none"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// A stream is kept in a file that nobody else can open, and that goes when it is done with.
func TestSpool(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Setenv("TMP", temp)
	src, remove, err := jsonl.Spool(t.Context(), strings.NewReader(whole("s", "", 0, 1)), "standard input")
	if err != nil {
		t.Fatal(err)
	}
	s := newShop(t)
	logs, err := s.load(src)
	if err != nil || logs[0].Name != "standard input" {
		t.Fatalf("%v, %+v", err, logs)
	}
	if got := tree(t, temp); runtime.GOOS != "windows" && got != "" {
		t.Errorf("spooled to %q", got)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	boom := errors.New("boom")
	if _, _, err := jsonl.Spool(t.Context(), failing{boom}, "standard input"); !errors.Is(err, boom) {
		t.Errorf("a stream that fails: %v", err)
	}
	if got := tree(t, temp); got != "" {
		t.Errorf("left behind: %s", got)
	}
}

// tree lists what lies below a folder with its mode.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		out = append(out, info.Mode().String()+" "+filepath.ToSlash(rel))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, "\n")
}

func entry(t *testing.T, id, cwd string, lines ...string) jsonl.Entry {
	return jsonl.Entry{Header: session.Header{ID: session.ID(id), Cwd: cwd}, Events: func() (iter.Seq2[session.Event, error], error) {
		return parse(t, lines), nil
	}}
}

// core D13, D15: a folder is written whole or not at all, over nothing, for its owner's
// eyes.
func TestWriteFolder_D15(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes are those of a unix")
	}
	temp := t.TempDir()
	dir := filepath.Join(temp, "new", "logs")
	if err := jsonl.WriteFolder(dir, []jsonl.Entry{entry(t, "a/b", "/p q", turn, end), entry(t, "..", "", turn)}); err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"drwx------ new", "drwx------ new/logs", "drwx------ new/logs/--p~0020q--", "drwx------ new/logs/--p~0020q--/a~002Fb",
		"-rw------- new/logs/--p~0020q--/a~002Fb/session.jsonl", "drwx------ new/logs/_no-cwd", "drwx------ new/logs/_no-cwd/~002E~002E",
		"-rw------- new/logs/_no-cwd/~002E~002E/session.jsonl",
	}, "\n")
	if diff := cmp.Diff(want, tree(t, temp)); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	data, err := os.ReadFile(filepath.Join(dir, "--p~0020q--/a~002Fb/session.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if want := file(`{"type":"session","version":0,"id":"a/b","createdAt":0,"cwd":"/p q","delegationDepth":0}`, turn, end); string(data) != want {
		t.Errorf("written: %s", data)
	}
	boom := errors.New("boom")
	bad := jsonl.Entry{Header: session.Header{ID: "bad"}, Events: func() (iter.Seq2[session.Event, error], error) { return nil, boom }}
	broken := jsonl.Entry{Header: session.Header{ID: "broken"}, Events: func() (iter.Seq2[session.Event, error], error) {
		return func(yield func(session.Event, error) bool) { yield(session.Event{}, boom) }, nil
	}}
	for name, tt := range map[string]struct {
		entries []jsonl.Entry
		want    error
	}{
		"one lies there":     {[]jsonl.Entry{entry(t, "c", "/new"), entry(t, "..", "")}, fs.ErrExist},
		"the same twice":     {[]jsonl.Entry{entry(t, "c", "/new"), entry(t, "c", "/new")}, fs.ErrExist},
		"one cannot be read": {[]jsonl.Entry{entry(t, "c", "/new", turn), bad}, boom},
		"one breaks off":     {[]jsonl.Entry{entry(t, "c", "/new", turn), broken}, boom},
	} {
		before := tree(t, temp)
		if err := jsonl.WriteFolder(dir, tt.entries); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(before, tree(t, temp)); diff != "" {
			t.Errorf("%s: left behind:\n%s", name, diff)
		}
	}
}

// core D15: a file is there whole or not at all, and over nothing.
func TestWriteFile_D15(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	write := func(w *jsonl.Writer) error { return w.Write(&session.Header{ID: "s"}, parse(t, []string{turn})) }
	boom := errors.New("boom")
	err := jsonl.WriteFile(path, func(w *jsonl.Writer) error { return errors.Join(write(w), w.Flush(), boom) })
	if !errors.Is(err, boom) || tree(t, dir) != "" {
		t.Errorf("%v, left behind: %s", err, tree(t, dir))
	}
	if err := jsonl.WriteFile(path, write); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(before), "turn/start") {
		t.Fatalf("%s, %v", before, err)
	}
	// Also one that came to be while this one was written.
	for _, fn := range []func(*jsonl.Writer) error{write, func(w *jsonl.Writer) error {
		return os.WriteFile(path, before, 0o600)
	}} {
		if err := jsonl.WriteFile(path, fn); !errors.Is(err, fs.ErrExist) {
			t.Errorf("over another file: %v", err)
		}
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
	if got := tree(t, dir); got != "" {
		t.Errorf("left behind: %s", got)
	}
	if err := jsonl.WriteFile(filepath.Join(dir, "none", "out"), write); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("into no folder: %v", err)
	}
}

// disk is a file of which a power cut leaves what was synced.
type disk struct {
	text, safe string
	closed     bool
	fail       error // of Sync
}

func (d *disk) Write(p []byte) (int, error) {
	d.text += string(p)
	return len(p), nil
}

func (d *disk) Sync() error {
	if d.fail == nil {
		d.safe = d.text
	}
	return d.fail
}

func (d *disk) Close() error {
	d.closed = true
	return nil
}

// core D15: a file has its name only when all of it is on the disk.
func TestExportIsSynced_D15(t *testing.T) {
	write := func(w *jsonl.Writer) error { return w.Write(&session.Header{ID: "s"}, parse(t, []string{turn})) }
	good, bad := &disk{}, &disk{fail: errors.New("disk on fire")}
	if err := jsonl.Fill(good, write); err != nil || !strings.Contains(good.text, "turn/start") || good.safe != good.text || !good.closed {
		t.Errorf("%v: written %q, synced %q", err, good.text, good.safe)
	}
	if err := jsonl.Fill(bad, write); !errors.Is(err, bad.fail) || !bad.closed {
		t.Errorf("a sync that failed: %v", err)
	}
}

// What an export that was killed has left goes with the next one; what one is at work on
// stays, and so does what is nobody's export.
func TestWriteFileSweeps(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files are not locked there, and nothing is swept")
	}
	dir := t.TempDir()
	put(t, dir, ".offshoot-export-1.tmp", "half a lo")
	put(t, dir, ".offshoot-export-2", "mine")
	put(t, dir, "3.tmp", "mine")
	put(t, dir, ".offshoot-export-4.tmp/file", "mine")
	write := func(w *jsonl.Writer) error { return w.Write(&session.Header{ID: "s"}, parse(t, []string{turn})) }
	err := jsonl.WriteFile(filepath.Join(dir, "outer"), func(w *jsonl.Writer) error {
		if _, err := os.Stat(filepath.Join(dir, ".offshoot-export-1.tmp")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("what was left is there: %v", err)
		}
		// Another export into the same folder meanwhile.
		return errors.Join(jsonl.WriteFile(filepath.Join(dir, "inner"), write), write(w))
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "-rw------- .offshoot-export-2\ndrwx------ .offshoot-export-4.tmp\n-rw------- .offshoot-export-4.tmp/file\n-rw------- 3.tmp\n-rw------- inner\n-rw------- outer"
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("what lies there (-want +got):\n%s", diff)
	}
}
