package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// maxLinks is how many links one path may lead over.
const maxLinks = 40

// dir is a working directory that nothing leads out of.
type dir struct {
	ctx  context.Context // of the call that opened it
	path string
	root *os.Root
}

func openDir(ctx context.Context, cwd string) (*dir, error) {
	if cwd == "" {
		return nil, errors.New("this session has no working directory")
	}
	root, err := os.OpenRoot(cwd)
	if err != nil {
		return nil, fmt.Errorf("open the working directory: %w", err)
	}
	return &dir{ctx: ctx, path: cwd, root: root}, nil
}

func (d *dir) close() {
	_ = d.root.Close() // a handle on a directory: there is nothing to lose
}

// OutsideError says that a path leads out of the working directory.
type OutsideError struct{ Path string }

func (e *OutsideError) Error() string {
	return fmt.Sprintf("%q is outside of the working directory", e.Path)
}

// local turns what a model wrote into a clean path below the working directory.
// An absolute path that lies there is taken as well. It decides by the text alone;
// that links do not lead out is os.Root's part.
func (d *dir) local(path string) (string, error) {
	if path == "" {
		return ".", nil
	}
	if strings.ContainsRune(path, 0) {
		return "", fmt.Errorf("the path %q has a NUL byte", path)
	}
	clean := filepath.Clean(path)
	if !filepath.IsAbs(clean) {
		if !filepath.IsLocal(clean) {
			return "", &OutsideError{path}
		}
		return clean, nil
	}
	bases := []string{d.path}
	if real, err := filepath.EvalSymlinks(d.path); err == nil && real != d.path {
		bases = append(bases, real)
	}
	for _, base := range bases {
		if rel, err := filepath.Rel(base, clean); err == nil && filepath.IsLocal(rel) {
			return rel, nil
		}
	}
	return "", &OutsideError{path}
}

// final follows links in the last place of a local path, so that writing goes
// through a link instead of replacing it. It returns the file's info, or nil if
// there is no such file yet.
func (d *dir) final(path string) (string, fs.FileInfo, error) {
	for range maxLinks {
		info, err := d.root.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return path, nil, nil
		}
		if err != nil {
			return "", nil, err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			return path, info, nil
		}
		target, err := d.root.Readlink(path)
		if err != nil {
			return "", nil, err
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		if path, err = d.local(target); err != nil {
			return "", nil, fmt.Errorf("follow a link: %w", err)
		}
	}
	return "", nil, fmt.Errorf("%s: more than %d links", path, maxLinks)
}

// regular opens a regular file for reading.
func (d *dir) regular(path string) (*regularFile, fs.FileInfo, error) {
	local, err := d.local(path)
	if err != nil {
		return nil, nil, err
	}
	// Opening a pipe or a device can block or act, so this comes first.
	info, err := d.root.Stat(local)
	if err != nil {
		return nil, nil, err
	}
	if err := mustBeRegular(path, info); err != nil {
		return nil, nil, err
	}
	f, err := d.root.Open(local)
	if err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = mustBeRegular(path, info)
	}
	if err != nil {
		_ = f.Close() // only read
		return nil, nil, err
	}
	// Some files call themselves regular and still make a reader wait (/proc/kmsg).
	// os.Root opens without blocking, so a deadline ends such a read with the call.
	stop := context.AfterFunc(d.ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	return &regularFile{File: f, stop: stop}, info, nil
}

// regularFile is a file whose reads end with the call.
type regularFile struct {
	*os.File
	stop func() bool
}

func (f *regularFile) Close() error {
	f.stop()
	return f.File.Close()
}

// explain puts the commonest failure into words.
func explain(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) && errors.Is(err, fs.ErrNotExist) {
		return &missingError{path: filepath.ToSlash(pe.Path), err: err}
	}
	return err
}

type missingError struct {
	path string
	err  error
}

func (e *missingError) Error() string { return "there is no file or folder " + e.path }
func (e *missingError) Unwrap() error { return e.err }

func mustBeRegular(path string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return fmt.Errorf("%s is a folder", path)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file (%s)", path, info.Mode().Type())
	}
	return nil
}

// sniffBytes is how much of a file decides whether it is text.
const sniffBytes = 8000

// binary reports whether the beginning of a file is that of something else than text.
func binary(head []byte) bool {
	return bytes.IndexByte(head[:min(len(head), sniffBytes)], 0) >= 0
}

// refuseBinary looks at the beginning of f, an opened file, and goes back to it.
func refuseBinary(path string, f *os.File, size int64) error {
	head := make([]byte, sniffBytes)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if head = head[:n]; binary(head) {
		return fmt.Errorf("%s is not text: %d bytes of %s", path, size, http.DetectContentType(head))
	}
	return nil
}
