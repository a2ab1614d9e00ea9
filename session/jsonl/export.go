package jsonl

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/offshoot-dev/offshoot/session"
)

// Entry is one log to be written into a folder of logs.
type Entry struct {
	Header session.Header
	// Events is called when its turn comes.
	Events func() (iter.Seq2[session.Event, error], error)
}

// WriteFolder writes logs into a folder of logs, which need not exist: all of them or
// none. Nothing is overwritten: a log that lies there already is an error that wraps
// fs.ErrExist, before anything is written. Files and folders that it makes are their
// owner's alone.
func WriteFolder(dir string, entries []Entry) (err error) {
	paths := make([]string, len(entries))
	for i := range entries {
		paths[i] = filepath.Join(dir, Path(&entries[i].Header))
		if _, err := os.Lstat(paths[i]); err == nil {
			return fmt.Errorf("write %s: %w", paths[i], fs.ErrExist)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	var made []string // files and folders, in the order of their making
	defer func() {
		if err == nil {
			return
		}
		for _, path := range slices.Backward(made) {
			// A folder that others put something into meanwhile stays.
			if rerr := os.Remove(path); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
				err = errors.Join(err, rerr)
			}
		}
	}()
	for i := range entries {
		folders, err := makeFolders(filepath.Dir(paths[i]))
		made = append(made, folders...)
		if err != nil {
			return err
		}
		err = WriteFile(paths[i], func(w *Writer) error {
			events, err := entries[i].Events()
			if err != nil {
				return err
			}
			return w.Write(&entries[i].Header, events)
		})
		if err != nil {
			return err
		}
		made = append(made, paths[i])
	}
	return nil
}

// makeFolders makes a folder and those above it, and returns the ones that it made.
func makeFolders(dir string) (made []string, err error) {
	err = os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		if made, err = makeFolders(filepath.Dir(dir)); err != nil {
			return made, err
		}
		err = os.Mkdir(dir, 0o700)
	}
	switch {
	case err == nil:
		return append(made, dir), syncFolder(filepath.Dir(dir))
	case errors.Is(err, fs.ErrExist):
		info, err := os.Stat(dir)
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is not a folder", dir)
		}
		return made, err
	}
	return made, err
}

// Names of the files that an export is written to before it has its own name.
const (
	tempPrefix = ".offshoot-export-"
	tempSuffix = ".tmp"
)

// WriteFile makes a file of what write writes. The file is there with all of it,
// synced, or not at all (core D15), and its owner's alone. One that is there already
// is left alone: the error wraps fs.ErrExist.
//
// It is written under another name in the same folder, .offshoot-export-*.tmp. What a
// process that was killed has left there goes with the next export into that folder,
// where files can be locked.
func WriteFile(path string, write func(*Writer) error) (err error) {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("write %s: %w", path, fs.ErrExist)
	}
	dir := filepath.Dir(path)
	if err := sweep(dir); err != nil {
		return err
	}
	f, held, err := createTemp(dir)
	if err != nil {
		return err
	}
	defer func() {
		if rerr := os.Remove(f.Name()); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		if held != nil {
			err = errors.Join(err, held.Close())
		}
	}()
	if err := fill(f, write); err != nil {
		return err
	}
	if err := publish(f.Name(), path); err != nil {
		return err
	}
	if err := syncFolder(dir); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// output is what of a file an export writes to.
type output interface {
	io.WriteCloser
	Sync() error
}

// fill writes, syncs and closes a file; it is closed in any case.
func fill(f output, write func(*Writer) error) error {
	w := NewWriter(f)
	err := write(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// createTemp makes a file to export to. While held is open, no sweep takes it; it is nil
// where there are no sweeps.
func createTemp(dir string) (f, held *os.File, err error) {
	for range 100 {
		if f, err = os.CreateTemp(dir, tempPrefix+"*"+tempSuffix); err != nil {
			return nil, nil, err
		}
		if !canLock {
			return f, nil, nil
		}
		if held, err = os.Open(f.Name()); err == nil {
			lock(held, true) // where it fails, it fails for a sweep too
			var here, there fs.FileInfo
			if here, err = held.Stat(); err == nil {
				there, err = os.Lstat(f.Name())
			}
			if err == nil && os.SameFile(here, there) {
				return f, held, nil
			}
			err = errors.Join(err, held.Close())
		}
		err = errors.Join(err, f.Close())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, errors.Join(err, os.Remove(f.Name()))
		}
		// A sweep came before the lock.
	}
	return nil, nil, fmt.Errorf("make a file in %s: it is removed again each time", dir)
}

// sweep removes what killed exports have left in a folder. What cannot be seen or
// opened is not ours to remove; whether the folder can be written to is seen next.
func sweep(dir string) error {
	if !canLock {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	var errs []error
	for _, e := range entries {
		if name := e.Name(); !e.Type().IsRegular() || !strings.HasPrefix(name, tempPrefix) || !strings.HasSuffix(name, tempSuffix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		if lock(f, false) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove what an export left behind: %w", err))
			}
		}
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// publish gives a finished file its name unless that is taken.
func publish(temp, path string) error {
	err := os.Link(temp, path)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	// A file system without links: the name is taken first, then filled.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = f.Close(); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// syncFolder makes a new name in a folder durable, where folders can be synced.
func syncFolder(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
