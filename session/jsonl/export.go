package jsonl

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"

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

// WriteFile makes a file of what write writes. The file is there with all of it,
// synced, or not at all (core D15), and its owner's alone. One that is there already
// is left alone: the error wraps fs.ErrExist.
func WriteFile(path string, write func(*Writer) error) (err error) {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("write %s: %w", path, fs.ErrExist)
	}
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".export-*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if rerr := os.Remove(f.Name()); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}()
	w := NewWriter(f)
	if err = write(w); err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
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
