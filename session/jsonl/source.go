package jsonl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/offshoot-dev/offshoot/session"
)

// Source is a stream of one log or several that can be read more than once.
type Source struct {
	// Name is what errors call it.
	Name string
	// Open returns it from the beginning. Whoever calls it closes what it returns.
	Open func() (io.ReadSeekCloser, error)

	path string // where a folder of logs keeps it, or ""
}

// File returns the source of a regular file.
func File(path string) Source {
	return Source{Name: path, Open: func() (io.ReadSeekCloser, error) {
		// Looked at first: opening a pipe would wait for its other end.
		info, err := os.Stat(path)
		if err == nil && !info.Mode().IsRegular() {
			err = errors.New("not a regular file")
		}
		if err != nil {
			return nil, err
		}
		return os.Open(path)
	}}
}

// Folder returns the sources that lie in a folder of logs, in a project of one, or in
// a session of that: every file of the right name, at most two levels down; below
// the folder of a session nothing is looked for. A log
// in the upstream's compressed form is an *session.UnsupportedError; a folder
// without any log is an error.
func Folder(dir string) ([]Source, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	list, err := folder(dir, abs, 2)
	if err == nil && len(list) == 0 {
		err = &Error{Name: dir, Err: fmt.Errorf("no %s lies in this folder or two levels below it: %w", FileName, fs.ErrNotExist)}
	}
	return list, err
}

func folder(dir, abs string, levels int) ([]Source, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	// What else lies in the folder of a session is the session's own business.
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch e.Name() {
		case FileName:
			s := File(path)
			s.path = filepath.Join(abs, e.Name())
			return []Source{s}, nil
		case compressedName:
			return nil, &Error{Name: path, Err: &session.UnsupportedError{
				ID: session.ID(filepath.Base(abs)), Seq: -1, Msg: "the log is compressed, which this build does not read; expand it with zstd -d first",
			}}
		}
	}
	var list []Source
	for _, e := range entries {
		if !e.IsDir() || levels == 0 {
			continue
		}
		below, err := folder(filepath.Join(dir, e.Name()), filepath.Join(abs, e.Name()), levels-1)
		if err != nil {
			return nil, err
		}
		list = append(list, below...)
	}
	return list, nil
}

// Spool keeps what r has to say in a temporary file, its owner's alone, so that it can
// be read more than once; remove takes the file away. Where the system allows it the
// file has no name from the beginning, and goes with the process at the latest.
func Spool(ctx context.Context, r io.Reader, name string) (_ Source, remove func() error, err error) {
	f, err := os.CreateTemp("", "offshoot-import-*.jsonl")
	if err != nil {
		return Source{}, nil, err
	}
	unlinked := os.Remove(f.Name()) == nil
	remove = func() error {
		err := f.Close()
		if !unlinked {
			err = errors.Join(err, os.Remove(f.Name()))
		}
		return err
	}
	size, err := io.Copy(f, reading(func(p []byte) (int, error) {
		if err := context.Cause(ctx); err != nil {
			return 0, err
		}
		return r.Read(p)
	}))
	if err != nil {
		return Source{}, nil, errors.Join(fmt.Errorf("read %s: %w", name, err), remove())
	}
	return Source{Name: name, Open: func() (io.ReadSeekCloser, error) {
		return section{io.NewSectionReader(f, 0, size)}, nil
	}}, remove, nil
}

// section is a part of a file that stays open when it is closed.
type section struct{ *io.SectionReader }

func (section) Close() error { return nil }

// reading is a function as an io.Reader.
type reading func([]byte) (int, error)

func (f reading) Read(p []byte) (int, error) { return f(p) }
