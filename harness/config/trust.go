package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// trustFile is the list of trusted folders in the data folder.
const trustFile = "trusted.json"

type trustList struct {
	Version int      `json:"version"`
	Folders []string `json:"folders"` // absolute, without symbolic links, sorted
}

// Trusted reports whether the person has trusted exactly this folder; folders above and below it do not count. Folders are
// compared as absolute paths without symbolic links. A list that cannot be read or makes no sense is an *Error, never "no".
func Trusted(dataDir, dir string) (bool, error) {
	list, err := readTrust(dataDir)
	if err != nil || len(list.Folders) == 0 {
		return false, err
	}
	real, err := realFolder(dir)
	if err != nil {
		return false, err
	}
	return slices.Contains(list.Folders, real), nil
}

// Trusts reports whether a folder is trusted now: what the embedding program says of the folder that is worked in counts,
// and else the person's list, which may have changed since the configuration was read, as may what a path leads to.
func (e *Effective) Trusts(dir string) (bool, error) {
	if e.stated && dir == e.Cwd {
		return e.Trusted, nil
	}
	return Trusted(e.DataDir, dir)
}

// Trust remembers dir in the data folder, which is made when it is not there (0700), and returns the folder as remembered.
// The list is replaced in one step and is on disk when Trust returns (0600). Of two processes that trust at the same moment
// one may lose its entry; the list is whole in any case. Errors are *Error: KindUsage for a folder that is not one, KindIO
// for a list that cannot be read or written.
func Trust(dataDir, dir string) (string, error) {
	real, err := realFolder(dir)
	if err != nil {
		return "", err
	}
	list, err := readTrust(dataDir)
	if err != nil {
		return "", err
	}
	if slices.Contains(list.Folders, real) {
		return real, nil
	}
	list.Version, list.Folders = 1, append(list.Folders, real)
	slices.Sort(list.Folders)
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(list); err != nil {
		return "", fmt.Errorf("trust %s: %w", real, err)
	}
	if err := replaceFile(dataDir, trustFile, buf.Bytes()); err != nil {
		return "", &Error{Kind: KindIO, File: filepath.Join(dataDir, trustFile), Msg: "cannot be written", Err: unwrapPath(err)}
	}
	return real, nil
}

func readTrust(dataDir string) (trustList, error) {
	path := filepath.Join(dataDir, trustFile)
	data, found, err := readFile(path)
	if err != nil || !found {
		return trustList{}, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var list trustList
	err = dec.Decode(&list)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the list")
		}
	}
	if err == nil && list.Version != 1 {
		err = fmt.Errorf("version %d is unknown", list.Version)
	}
	if err != nil {
		return trustList{}, &Error{Kind: KindIO, File: path, Msg: "is not a list of trusted folders", Err: err}
	}
	return list, nil
}

// realFolder is dir as an absolute path without symbolic links.
func realFolder(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", &Error{Kind: KindUsage, File: dir, Msg: "is not a folder that can be used", Err: unwrapPath(err)}
	}
	info, err := os.Stat(abs)
	if err != nil {
		return "", &Error{Kind: KindUsage, File: dir, Msg: "is not a folder that can be used", Err: unwrapPath(err)}
	}
	if !info.IsDir() {
		return "", &Error{Kind: KindUsage, File: dir, Msg: "is not a folder"}
	}
	return abs, nil
}

// replaceFile writes dir/name in one step: a reader, also one after a crash, sees the old file or the new one.
func replaceFile(dir, name string, data []byte) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, name+".*.tmp") // made with 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the error that matters is already there
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, name)); err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir makes a rename in dir durable. Windows has no such call and keeps its directory entries itself.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	return err
}
