package files

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// countBytes is the size of the largest file whose lines are all counted for the
// sake of a note.
const countBytes = 64 << 20

type readArgs struct {
	Path   string `json:"path"`
	Offset int    `json:"offset"`
	Limit  int    `json:"limit"`
}

type readMeta struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	From  int    `json:"from"`
	Lines int    `json:"lines"`
}

func (o Options) read(ctx context.Context, d *dir, args *readArgs) (*output, error) {
	local, err := d.local(args.Path)
	if err != nil {
		return nil, err
	}
	f, info, err := d.regular(local)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	if err := refuseBinary(args.Path, f.File, info.Size()); err != nil {
		return nil, err
	}
	w := window{
		from: max(args.Offset, 1), limit: o.ReadLines, maxBytes: o.ReadBytes, maxLine: o.LineBytes,
		lines: lineReader{ctx: ctx, r: bufio.NewReaderSize(f, 64<<10)},
	}
	if args.Limit > 0 {
		w.limit = min(args.Limit, o.ReadLines)
	}
	if err := w.fill(info.Size() <= countBytes); err != nil {
		return nil, err
	}
	if w.shown == 0 && w.total > 0 {
		return nil, fmt.Errorf("%s has only %d lines, none from %d on", args.Path, w.total, w.from)
	}
	meta := readMeta{Path: filepath.ToSlash(local), Bytes: info.Size(), From: w.from, Lines: w.shown}
	return &output{text: w.note() + w.text(), meta: meta}, nil
}

// window is the part of a file that one reading returns.
type window struct {
	from, limit       int
	maxBytes, maxLine int
	lines             lineReader

	buf   strings.Builder
	shown int
	more  bool // there are lines behind the last one shown
	total int  // lines in the file, 0 if they were not counted or there are none
}

// fill reads the window, and the rest of the file if count asks for the total.
func (w *window) fill(count bool) error {
	n := 0
	for {
		inside := n+1 >= w.from && w.shown < w.limit && !w.more
		keep := 0
		if inside {
			keep = w.maxLine
		}
		line, cut, err := w.lines.next(keep)
		if errors.Is(err, io.EOF) {
			w.total = n
			return nil
		}
		if err != nil {
			return err
		}
		n++
		switch {
		case n < w.from:
		case !inside, w.shown > 0 && w.buf.Len()+len(line) > w.maxBytes:
			w.more = true
			if !count {
				return nil
			}
		default:
			w.buf.WriteString(line)
			if cut > 0 {
				fmt.Fprintf(&w.buf, " [%d more bytes in this line]\n", cut)
			}
			w.shown++
		}
	}
}

func (w *window) text() string {
	if w.shown == 0 {
		return "[the file is empty]"
	}
	return w.buf.String()
}

func (w *window) note() string {
	if !w.more && w.from == 1 {
		return ""
	}
	last := w.from + w.shown - 1
	of := ""
	if w.total > 0 {
		of = fmt.Sprintf(" of %d", w.total)
	}
	if !w.more {
		return fmt.Sprintf("[lines %d to %d%s]\n", w.from, last, of)
	}
	return fmt.Sprintf("[lines %d to %d%s; go on with offset %d]\n", w.from, last, of, last+1)
}

// lineReader reads lines of any length in bounded memory.
type lineReader struct {
	ctx context.Context // of one call
	r   *bufio.Reader
}

// next returns at most keep bytes of the next line, with its line break if it was
// not cut, and how many bytes of it are missing, the line break not counted. It
// fails with io.EOF behind the last line.
func (l *lineReader) next(keep int) (line string, cut int, err error) {
	var b strings.Builder
	begun, over := false, 0
	for {
		if err := l.ctx.Err(); err != nil {
			return "", 0, err
		}
		part, err := l.r.ReadSlice('\n')
		begun = begun || len(part) > 0
		k := min(len(part), keep-b.Len())
		b.Write(part[:k])
		over += len(part) - k
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && !begun:
			return "", 0, io.EOF
		case err != nil && !errors.Is(err, io.EOF):
			return "", 0, err
		}
		if over > 0 && err == nil {
			over-- // the line break is no loss
		}
		line = b.String()
		if over > 0 {
			whole := validPrefix(line)
			over += len(line) - len(whole)
			line = whole
		} else if len(part) > k {
			line += "\n"
		}
		return line, over, nil
	}
}

// validPrefix drops an incomplete rune at the end of s.
func validPrefix(s string) string {
	for i := len(s) - 1; i >= 0 && i >= len(s)-utf8.UTFMax; i-- {
		if utf8.RuneStart(s[i]) {
			if !utf8.FullRuneInString(s[i:]) {
				return s[:i]
			}
			break
		}
	}
	return s
}
