package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	driver "modernc.org/sqlite"
)

// Primary result codes of SQLite that the store tells apart.
const (
	codePerm     = 3
	codeBusy     = 5
	codeReadOnly = 8
	codeIOErr    = 10
	codeCorrupt  = 11
	codeFull     = 13
	codeCantOpen = 14
	codeNotADB   = 26
	// An extended code: no room for the shared memory beside the file.
	codeShmSize = codeIOErr | 19<<8
)

// FormatError says that a file is not a store that this build can use.
type FormatError struct {
	Path string
	Msg  string
}

func (e *FormatError) Error() string { return fmt.Sprintf("store %s: %s", e.Path, e.Msg) }

// Error is a failure of the file or of the engine below. Err is its cause.
type Error struct {
	Op   string
	Path string
	Err  error
}

func (e *Error) Error() string {
	if reason := reason(e.Err); reason != "" {
		return fmt.Sprintf("%s: store %s: %s", e.Op, e.Path, reason)
	}
	return fmt.Sprintf("%s: store %s: %v", e.Op, e.Path, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// code returns the primary result code of an engine's error, or 0.
func code(err error) int {
	var e *driver.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// reason says in plain words what the engine or the system mean, or "".
func reason(err error) string {
	var e *driver.Error
	if errors.As(err, &e) && e.Code() == codeShmSize {
		return "the disk is full"
	}
	switch code(err) {
	case codePerm:
		return "permission denied"
	case codeBusy:
		return "locked by another process"
	case codeReadOnly:
		return "the file or its file system is read-only"
	case codeFull:
		return "the disk is full"
	case codeIOErr:
		return "the disk failed to " + ioWords(err)
	case codeCantOpen:
		return "cannot be opened (missing, no permission, or a read-only file system)"
	case codeCorrupt:
		return "the file is damaged: " + err.Error()
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		switch {
		case errors.Is(err, syscall.ENOTDIR):
			return "a file stands in place of a folder of its path"
		case errors.Is(err, syscall.EROFS):
			return "the file system is read-only"
		case errors.Is(err, fs.ErrPermission):
			return "permission denied: " + pe.Path
		case errors.Is(err, syscall.ENOSPC):
			return "the disk is full"
		case errors.Is(err, fs.ErrNotExist):
			return "does not exist"
		}
	}
	return ""
}

// ioWords says what the system refused to do, with the engine's number for it.
func ioWords(err error) string {
	var e *driver.Error
	if !errors.As(err, &e) {
		return "work"
	}
	what := "work"
	switch e.Code() >> 8 {
	case 1, 2:
		what = "read"
	case 3:
		what = "write"
	case 4, 5:
		what = "sync what was written"
	case 6:
		what = "change the length of a file"
	case 10, 23:
		what = "delete a file"
	case 14, 15, 20:
		what = "lock a file"
	case 18, 19, 21:
		what = "share the memory beside the file"
	}
	return fmt.Sprintf("%s (I/O error %d)", what, e.Code())
}

// wrap names the operation and the file of a backend's failure. Contexts that
// ended and errors of the contract pass as they are.
func (s *Store) wrap(op string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &Error{Op: op, Path: s.path, Err: err}
}

// openError is wrap for the time before there is a store.
func openError(path string, err error) error {
	var format *FormatError
	if errors.As(err, &format) {
		return err
	}
	if code(err) == codeNotADB {
		return &FormatError{Path: path, Msg: "not an Offshoot store: the file is not a database"}
	}
	return &Error{Op: "open", Path: path, Err: err}
}

// prepareFile makes the folders and an empty file of the right modes. SQLite
// gives its companion files the mode of the file.
func prepareFile(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path, openError(path, err)
	}
	if err := os.MkdirAll(filepath.Dir(abs), 0o700); err != nil {
		return abs, openError(abs, err)
	}
	info, err := os.Stat(abs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := createEmpty(abs); err != nil {
			return abs, openError(abs, err)
		}
	case err != nil:
		return abs, openError(abs, err)
	case info.IsDir():
		return abs, &FormatError{Path: abs, Msg: "a folder stands in place of the file"}
	case info.Mode().Perm()&0o077 != 0:
		if err := os.Chmod(abs, 0o600); err != nil {
			return abs, openError(abs, err)
		}
	}
	// The engine would open a file that it cannot write for reading, and say so at the
	// first write only.
	if err := writable(abs); err != nil {
		return abs, openError(abs, &fs.PathError{Op: "write to", Path: abs, Err: err})
	}
	return abs, nil
}

// createEmpty makes the file under another name and links it. Closing a
// descriptor of a file drops every lock that the process has on it, those of a
// store that another goroutine has open included; so no descriptor of ours may
// ever be closed on a file that has its name already.
func createEmpty(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-store-*")
	if err != nil {
		return err
	}
	tmp := f.Name()
	err = f.Close()
	if err == nil {
		err = os.Link(tmp, path)
	}
	if rmErr := os.Remove(tmp); err == nil {
		err = rmErr
	}
	if err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	// No hard links here.
	if f, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
		err = f.Close()
	} else if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return err
}

// existingFile checks that a store is there, and chooses how to open it without
// leaving a trace. With a write-ahead log in place a read-only connection uses
// that and changes nothing. Without one, a read-only connection would leave an
// empty log behind, as it may not remove it; a connection that could write, but
// is told not to, tidies up after itself.
func existingFile(path string) (abs, mode string, err error) {
	if abs, err = filepath.Abs(path); err != nil {
		return path, "", openError(path, err)
	}
	info, err := os.Stat(abs)
	switch {
	case err != nil:
		return abs, "", openError(abs, err)
	case info.IsDir():
		return abs, "", &FormatError{Path: abs, Msg: "a folder stands in place of the file"}
	case info.Size() == 0:
		if w, err := os.Stat(abs + "-wal"); err != nil || w.Size() == 0 {
			return abs, "", openError(abs, &fs.PathError{Op: "open", Path: abs, Err: fs.ErrNotExist})
		}
	}
	if _, err := os.Stat(abs + "-wal"); err == nil {
		return abs, "ro", nil
	}
	return abs, "rw", nil
}

// dsn is the engine's address of the file. The path is escaped by segments, so
// that no character of it reads as a parameter.
func dsn(path, mode string, params url.Values) string {
	p := filepath.ToSlash(path)
	if !strings.HasPrefix(p, "/") {
		p = "/" + p // a drive letter
	}
	u := url.URL{Path: p}
	params.Set("mode", mode)
	return "file://" + u.EscapedPath() + "?" + params.Encode()
}
