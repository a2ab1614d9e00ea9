package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// scanEntries is how many entries of a folder are looked at before it counts as
// endless.
const scanEntries = 100_000

type listArgs struct {
	Path string `json:"path"`
}

type listMeta struct {
	Path    string `json:"path"`
	Entries int    `json:"entries"`
	Shown   int    `json:"shown"`
}

func (o Options) list(ctx context.Context, d *dir, args *listArgs) (*output, error) {
	local, err := d.local(args.Path)
	if err != nil {
		return nil, err
	}
	info, err := d.root.Stat(local)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a folder", args.Path)
	}
	names, more, err := d.names(ctx, local)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var b strings.Builder
	shown := 0
	for _, name := range names[:min(len(names), o.ListEntries)] {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		line, err := d.entry(filepath.Join(local, name), name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			line = printable(name) + "\t[" + err.Error() + "]"
		}
		b.WriteString(line)
		b.WriteByte('\n')
		shown++
	}
	switch {
	case more:
		fmt.Fprintf(&b, "[more than %d entries; %d shown]", len(names), shown)
	case len(names) > o.ListEntries:
		fmt.Fprintf(&b, "[%d more entries]", len(names)-o.ListEntries)
	case shown == 0:
		b.WriteString("[empty folder]")
	}
	return &output{
		text: strings.TrimSuffix(b.String(), "\n"),
		meta: listMeta{Path: filepath.ToSlash(local), Entries: len(names), Shown: shown},
	}, nil
}

// names returns the names in a folder, at most scanEntries, and whether there are more.
func (d *dir) names(ctx context.Context, local string) (names []string, more bool, err error) {
	f, err := d.root.Open(local)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = f.Close() }() // only read
	for len(names) < scanEntries {
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		part, err := f.Readdirnames(1024)
		names = append(names, part...)
		if errors.Is(err, io.EOF) {
			return names, false, nil
		}
		if err != nil {
			return nil, false, err
		}
	}
	return names, true, nil
}

func (d *dir) entry(local, name string) (string, error) {
	info, err := d.root.Lstat(local)
	if err != nil {
		return "", err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return printable(name) + "/", nil
	case mode.IsRegular():
		return fmt.Sprintf("%s\t%d", printable(name), info.Size()), nil
	case mode&fs.ModeSymlink != 0:
		target, err := d.root.Readlink(local)
		if err != nil {
			return "", err
		}
		return printable(name) + "\t-> " + printable(target), nil
	default:
		return fmt.Sprintf("%s\t[%s]", printable(name), mode.Type()), nil
	}
}

// printable quotes a name that would break the lines of a result.
func printable(name string) string {
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return strconv.Quote(name)
	}
	return name
}
