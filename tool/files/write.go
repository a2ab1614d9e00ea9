package files

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

type writeArgs struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

type writeMeta struct {
	Path    string `json:"path"`
	Bytes   int    `json:"bytes"`
	Lines   int    `json:"lines"`
	Created bool   `json:"created,omitempty"`
}

func (o Options) write(ctx context.Context, d *dir, args *writeArgs) (*output, error) {
	local, err := d.local(args.Path)
	if err != nil {
		return nil, err
	}
	target, old, err := d.final(local)
	if err != nil {
		return nil, err
	}
	if old != nil {
		if err := mustBeRegular(args.Path, old); err != nil {
			return nil, err
		}
	} else if err := d.root.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return nil, err
	}
	if err := d.replace(ctx, target, old, []byte(args.Content)); err != nil {
		return nil, err
	}
	meta := writeMeta{Path: filepath.ToSlash(local), Bytes: len(args.Content), Lines: countLines(args.Content), Created: old == nil}
	verb := "replaced"
	if old == nil {
		verb = "created"
	}
	return &output{text: fmt.Sprintf("%s %s: %d bytes, %d lines", verb, meta.Path, meta.Bytes, meta.Lines), meta: meta}, nil
}

// countLines counts as read does: a last line without a line break is one.
func countLines(s string) int {
	n := strings.Count(s, "\n")
	if s != "" && !strings.HasSuffix(s, "\n") {
		n++
	}
	return n
}

// replace gives target new content in one step: whoever reads it meanwhile sees
// all of the old or all of the new. old is what was found there, or nil; its mode
// is kept. It fails if the file has changed since.
func (d *dir) replace(ctx context.Context, target string, old fs.FileInfo, content []byte) (err error) {
	if old != nil && old.Mode().Perm()&0o222 == 0 {
		return fmt.Errorf("%s is write-protected", filepath.ToSlash(target))
	}
	tmp := filepath.Join(filepath.Dir(target), ".offshoot-"+rand.Text()+".tmp")
	perm := fs.FileMode(0o666) // less the umask
	if old != nil {
		perm = 0o600 // until it has its own
	}
	f, err := d.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.root.Remove(tmp))
		}
	}()
	if err := fill(f, old, content); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	now, err := d.root.Lstat(target)
	switch {
	case errors.Is(err, fs.ErrNotExist) && old == nil:
	case err != nil:
		return err
	case old == nil || !os.SameFile(old, now) || !now.ModTime().Equal(old.ModTime()) || now.Size() != old.Size():
		return fmt.Errorf("%s was changed by somebody else meanwhile; read it again", filepath.ToSlash(target))
	}
	return d.root.Rename(tmp, target)
}

// fill writes and closes a temporary file.
func fill(f *os.File, old fs.FileInfo, content []byte) error {
	_, err := f.Write(content)
	if err == nil && old != nil {
		err = f.Chmod(old.Mode().Perm())
	}
	if err == nil {
		// Without it a crash after the rename could leave an empty file.
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
