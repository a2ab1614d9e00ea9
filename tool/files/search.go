package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

// matchBytes is how much of a matching line is shown.
const matchBytes = 300

// resultBytes bounds all matches together.
const resultBytes = 48 << 10

var (
	errEnough = errors.New("enough matches")
	errHuge   = errors.New("too large to search")
)

type searchArgs struct {
	Pattern string `json:"pattern"`
	Path    string `json:"path"`
	Glob    string `json:"glob"`
}

type searchMeta struct {
	Matches int  `json:"matches"`
	Files   int  `json:"files"`
	More    bool `json:"more,omitempty"`
}

type searcher struct {
	dir      *dir
	re       *regexp.Regexp
	glob     *regexp.Regexp // nil: every file
	byName   bool           // glob is compared with the file's name alone
	base     string         // the searched folder
	maxLines int
	maxFile  int64

	buf        []byte
	out        strings.Builder
	meta       searchMeta
	huge, sick int // files left out for their size, or because they cannot be read
}

func (o Options) search(ctx context.Context, d *dir, args *searchArgs) (*output, error) {
	s := &searcher{dir: d, maxLines: o.SearchMatches, maxFile: o.SearchFileBytes}
	var err error
	if s.re, err = regexp.Compile(args.Pattern); err != nil {
		return nil, fmt.Errorf("the pattern is not valid: %w", err)
	}
	if args.Glob != "" {
		if s.glob, err = compileGlob(args.Glob); err != nil {
			return nil, err
		}
		s.byName = !strings.Contains(args.Glob, "/")
	}
	local, err := d.local(args.Path)
	if err != nil {
		return nil, err
	}
	info, err := d.root.Stat(local)
	if err != nil {
		return nil, err
	}
	s.base = filepath.ToSlash(local)
	if info.IsDir() {
		err = s.tree(ctx)
	} else if err = mustBeRegular(args.Path, info); err == nil {
		err = s.file(ctx, s.base)
	}
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	s.meta.More = err != nil
	return &output{text: s.text(), meta: s.meta}, nil
}

// tree searches every file below the base, in order of their paths.
func (s *searcher) tree(ctx context.Context) error {
	return fs.WalkDir(s.dir.root.FS(), s.base, func(name string, e fs.DirEntry, err error) error {
		if ctxErr := ctx.Err(); ctxErr != nil {
			return ctxErr
		}
		switch {
		case err != nil:
			if name == s.base {
				return err
			}
			s.sick++
			return nil
		case e.IsDir() && e.Name() == ".git" && name != s.base:
			return fs.SkipDir
		case !e.Type().IsRegular() || !s.admits(name):
			return nil
		}
		return s.file(ctx, name)
	})
}

func (s *searcher) admits(name string) bool {
	if s.glob == nil {
		return true
	}
	if s.byName {
		return s.glob.MatchString(path.Base(name))
	}
	if s.base != "." {
		name = strings.TrimPrefix(name, s.base+"/")
	}
	return s.glob.MatchString(name)
}

// file searches one file. It fails with errEnough when the result is full.
func (s *searcher) file(ctx context.Context, name string) error {
	data, err := s.load(name)
	switch {
	case errors.Is(err, errHuge):
		s.huge++
		return nil
	case err != nil:
		s.sick++ // counted, and told in the result
		return nil
	}
	if binary(data) {
		return nil
	}
	if literal, _ := s.re.LiteralPrefix(); literal != "" && !bytes.Contains(data, []byte(literal)) {
		return nil
	}
	matched := false
	for n := 1; len(data) > 0; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		data = rest
		line = bytes.TrimSuffix(line, []byte("\r"))
		loc := s.re.FindIndex(line)
		if loc == nil {
			continue
		}
		if s.meta.Matches >= s.maxLines || s.out.Len() > resultBytes {
			return errEnough
		}
		if !matched {
			matched = true
			s.meta.Files++
		}
		s.meta.Matches++
		fmt.Fprintf(&s.out, "%s:%d: %s\n", printable(name), n, excerpt(line, loc[0]))
	}
	return nil
}

// load reads a file into the buffer that all files share.
func (s *searcher) load(name string) ([]byte, error) {
	f, info, err := s.dir.regular(filepath.FromSlash(name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	if info.Size() > s.maxFile {
		return nil, errHuge
	}
	buf := bytes.NewBuffer(s.buf[:0])
	buf.Grow(int(info.Size()) + bytes.MinRead)
	_, err = buf.ReadFrom(io.LimitReader(f, s.maxFile))
	s.buf = buf.Bytes()
	return s.buf, err
}

// excerpt shows the part of a line around a match at byte at.
func excerpt(line []byte, at int) string {
	if len(line) <= matchBytes {
		return string(line)
	}
	from := max(0, min(at-matchBytes/3, len(line)-matchBytes))
	to := min(len(line), from+matchBytes)
	for from > 0 && from < to && !utf8.RuneStart(line[from]) {
		from++
	}
	for to < len(line) && to > from && !utf8.RuneStart(line[to]) {
		to--
	}
	text := string(line[from:to])
	if from > 0 {
		text = "…" + text
	}
	if to < len(line) {
		text += "…"
	}
	return text
}

func (s *searcher) text() string {
	if s.meta.Matches == 0 {
		s.out.WriteString("[no matches]\n")
	}
	if s.meta.More {
		fmt.Fprintf(&s.out, "[stopped after %d matches; there are more]\n", s.meta.Matches)
	}
	if s.huge > 0 {
		fmt.Fprintf(&s.out, "[files of more than %d bytes not searched: %d]\n", s.maxFile, s.huge)
	}
	if s.sick > 0 {
		fmt.Fprintf(&s.out, "[files that cannot be read: %d]\n", s.sick)
	}
	return strings.TrimSuffix(s.out.String(), "\n")
}

// compileGlob turns a glob into an expression for whole slash-separated paths.
func compileGlob(glob string) (*regexp.Regexp, error) {
	var b strings.Builder
	b.WriteString(`\A`)
	depth := 0
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case strings.HasPrefix(glob[i:], "**/"):
			b.WriteString(`(?:.*/)?`)
			i += 2
		case strings.HasPrefix(glob[i:], "**"):
			b.WriteString(`.*`)
			i++
		case c == '*':
			b.WriteString(`[^/]*`)
		case c == '?':
			b.WriteString(`[^/]`)
		case c == '{':
			depth++
			b.WriteString(`(?:`)
		case c == '}' && depth > 0:
			depth--
			b.WriteString(`)`)
		case c == ',' && depth > 0:
			b.WriteString(`|`)
		case c == '[':
			end := strings.IndexByte(glob[i:], ']')
			if end < 2 {
				return nil, fmt.Errorf("the glob %q has a class without an end", glob)
			}
			class := strings.ReplaceAll(glob[i+1:i+end], `\`, `\\`)
			if class[0] == '!' {
				class = "^/" + class[1:]
			}
			b.WriteString("[" + class + "]")
			i += end
		case c == '\\' && i+1 < len(glob):
			i++
			b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
		default:
			b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
		}
	}
	if depth > 0 {
		return nil, fmt.Errorf("the glob %q has a brace without an end", glob)
	}
	re, err := regexp.Compile(`(?s:` + b.String() + `)\z`)
	if err != nil {
		return nil, fmt.Errorf("the glob %q is not valid: %w", glob, err)
	}
	return re, nil
}
