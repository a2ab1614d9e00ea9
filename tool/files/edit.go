package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

type editArgs struct {
	Path       string `json:"path"`
	Old        string `json:"old"`
	New        string `json:"new"`
	ReplaceAll bool   `json:"replace_all"`
}

type editMeta struct {
	Path         string `json:"path"`
	Bytes        int    `json:"bytes"`
	Replacements int    `json:"replacements"`
	Line         int    `json:"line"` // of the first one
}

func (o Options) edit(ctx context.Context, d *dir, args *editArgs) (*output, error) {
	if args.Old == "" {
		return nil, errors.New("the text to replace is empty")
	}
	if args.Old == args.New {
		return nil, errors.New("the old and the new text are the same")
	}
	local, err := d.local(args.Path)
	if err != nil {
		return nil, err
	}
	target, info, err := d.final(local)
	if err != nil {
		return nil, err
	}
	if info == nil {
		return nil, fmt.Errorf("there is no file %s", args.Path)
	}
	if err := mustBeRegular(args.Path, info); err != nil {
		return nil, err
	}
	if info.Size() > o.EditBytes {
		return nil, fmt.Errorf("%s has %d bytes; files of more than %d cannot be edited", args.Path, info.Size(), o.EditBytes)
	}
	data, err := d.content(target, o.EditBytes)
	if err != nil {
		return nil, err
	}
	if binary(data) {
		return nil, fmt.Errorf("%s is not text", args.Path)
	}
	old := []byte(args.Old)
	n := bytes.Count(data, old)
	switch {
	case n == 0:
		return nil, notFound(args, data)
	case n > 1 && !args.ReplaceAll:
		return nil, fmt.Errorf("the text to replace occurs %d times in %s, at lines %s; take in more of the lines around it, or set replace_all",
			n, args.Path, lineNumbers(data, old))
	}
	meta := editMeta{Path: filepath.ToSlash(local), Replacements: n, Line: lineOf(data, bytes.Index(data, old))}
	data = bytes.ReplaceAll(data, old, []byte(args.New))
	meta.Bytes = len(data)
	if err := d.replace(ctx, target, info, data); err != nil {
		return nil, err
	}
	text := fmt.Sprintf("edited %s at line %d", meta.Path, meta.Line)
	if n > 1 {
		text = fmt.Sprintf("edited %s: %d replacements, the first at line %d", meta.Path, n, meta.Line)
	}
	return &output{text: text, meta: meta}, nil
}

// content reads a regular file of at most limit bytes.
func (d *dir) content(local string, limit int64) ([]byte, error) {
	f, _, err := d.regular(local)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s grew beyond %d bytes", local, limit)
	}
	return data, nil
}

func notFound(args *editArgs, data []byte) error {
	hint := "; read the file again and copy the text exactly"
	crlf := strings.ReplaceAll(strings.ReplaceAll(args.Old, "\r\n", "\n"), "\n", "\r\n")
	if strings.Contains(args.Old, "\n") && bytes.Contains(data, []byte(crlf)) {
		hint = "; its lines end in \\r\\n, and so must those of old and new"
	}
	return fmt.Errorf("the text to replace does not occur in %s%s", args.Path, hint)
}

func lineOf(data []byte, at int) int { return 1 + bytes.Count(data[:at], []byte("\n")) }

// lineNumbers lists where old begins, the first few places.
func lineNumbers(data, old []byte) string {
	var b strings.Builder
	at := 0
	for i := range 6 {
		k := bytes.Index(data[at:], old)
		if k < 0 {
			break
		}
		if i == 5 {
			b.WriteString(" and more")
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, lineOf(data, at+k))
		at += k + len(old)
	}
	return b.String()
}
