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

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
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

func (o Options) read(ctx context.Context, call *tool.Call, args *readArgs) (*output, error) {
	if strings.HasPrefix(args.Path, session.SpillScheme) {
		return o.readSpill(ctx, call, args)
	}
	return inDir(func(ctx context.Context, d *dir, args *readArgs) (*output, error) {
		return o.readFile(ctx, call, d, args)
	})(ctx, call, args)
}

// readSpill reads a text of the log in the same windows as a file. A line that is
// longer than the tool shows counts as several, so that every byte can be reached.
// A window fits into the result whatever it holds: it is never cut and kept again.
func (o Options) readSpill(ctx context.Context, call *tool.Call, args *readArgs) (*output, error) {
	ref, err := session.ParseSpillRef(args.Path)
	if err != nil {
		return nil, err
	}
	if o.Spill == nil {
		return nil, fmt.Errorf("%s: no results are kept here", args.Path)
	}
	text, err := o.Spill(ctx, call, ref)
	if err != nil {
		return nil, err
	}
	w := o.window(call, args)
	w.lines = &foldedText{ctx: ctx, rest: text, most: max(w.maxLine, utf8.UTFMax)}
	return w.read(args.Path, args.Path, int64(len(text)))
}

func (o Options) readFile(ctx context.Context, call *tool.Call, d *dir, args *readArgs) (*output, error) {
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
	w := o.window(call, args)
	w.lines = &lineReader{ctx: ctx, r: bufio.NewReaderSize(f, 64<<10)}
	return w.read(args.Path, filepath.ToSlash(local), info.Size())
}

// What a window takes of the result beside its lines, or more: its note, and the
// mark of a line that is cut. leastLine is a line where the bound leaves no room.
const (
	noteRoom  = 120
	markRoom  = 50
	leastLine = 64
)

// window returns the window that args ask for, but for its lines. It is made to fit
// into what the model is shown of the call's result, if that is a line at all.
func (o Options) window(call *tool.Call, args *readArgs) *window {
	w := &window{from: max(args.Offset, 1), limit: o.ReadLines, maxBytes: o.ReadBytes, maxLine: o.LineBytes}
	if args.Limit > 0 {
		w.limit = min(args.Limit, o.ReadLines)
	}
	if call.Limit > 0 {
		w.maxBytes = min(w.maxBytes, max(call.Limit-noteRoom-markRoom, leastLine))
		w.maxLine = min(w.maxLine, w.maxBytes)
	}
	return w
}

// read fills the window. size is that of the whole, name what the log calls it.
func (w *window) read(path, name string, size int64) (*output, error) {
	if err := w.fill(size <= countBytes); err != nil {
		return nil, err
	}
	if w.shown == 0 && w.total > 0 {
		return nil, fmt.Errorf("%s has only %d lines, none from %d on", path, w.total, w.from)
	}
	meta := readMeta{Path: name, Bytes: size, From: w.from, Lines: w.shown}
	return &output{text: w.note() + w.text(), meta: meta}, nil
}

// window is the part of a file that one reading returns.
type window struct {
	from, limit       int
	maxBytes, maxLine int
	lines             lineSource

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
		if cut > 0 && inside {
			line += fmt.Sprintf(" [%d more bytes in this line]\n", cut)
		}
		switch {
		case n < w.from:
		case !inside, w.shown > 0 && w.buf.Len()+len(line) > w.maxBytes:
			w.more = true
			if !count {
				return nil
			}
		default:
			w.buf.WriteString(line)
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

// lineSource gives lines one by one.
type lineSource interface {
	// next returns at most keep bytes of the next line, with its line break if it was
	// not cut, and how many bytes of it are missing, the line break not counted. It
	// fails with io.EOF behind the last line.
	next(keep int) (line string, cut int, err error)
}

// foldedText gives the lines of a text. One that is longer than most bytes comes in
// pieces of that length, each as if it were a line, but without a line break.
type foldedText struct {
	ctx  context.Context // of one call
	rest string
	most int // at least utf8.UTFMax
}

func (t *foldedText) next(int) (line string, cut int, err error) {
	if err := t.ctx.Err(); err != nil {
		return "", 0, err
	}
	if t.rest == "" {
		return "", 0, io.EOF
	}
	n := strings.IndexByte(t.rest[:min(len(t.rest), t.most+1)], '\n') + 1
	if n == 0 {
		n = len(validPrefix(t.rest[:min(len(t.rest), t.most)]))
	}
	line, t.rest = t.rest[:n], t.rest[n:]
	return line, 0, nil
}

// lineReader reads lines of any length in bounded memory.
type lineReader struct {
	ctx context.Context // of one call
	r   *bufio.Reader
}

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
