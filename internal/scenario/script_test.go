package scenario_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// A script is one story: a file of testdata, parsed.
type script struct {
	path    string
	lines   []string // the file, as it is
	title   string
	clauses []string // the clauses that the story tells, in the order of the file
	steps   []*step
}

// A step is one directive with its block and the outcome that the file expects.
type step struct {
	line  int // of the directive, from 1
	last  int // of the last line of its block
	run   action
	want  []string // without their mark
	text  string
	block []blockLine
}

// A blockLine is one indented line below a directive.
type blockLine struct {
	line int
	text string
}

// An action plays a step in a world.
type action func(w *world)

// clauseLine is how the head of a script names a clause, with what it says.
var clauseLine = regexp.MustCompile(`^(C\d{3})  \S`)

// mark begins a line of an outcome.
const mark = "|"

// headEnd stands between the head of a script and its steps.
const headEnd = "---"

// load reads and parses a script.
func load(path string) (*script, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parse(path, string(data))
}

// parse reads a script strictly: whatever it does not know is an error that names the
// file and the line.
func parse(path, text string) (*script, error) {
	s := &script{path: path, lines: strings.Split(strings.TrimSuffix(text, "\n"), "\n")}
	at, err := s.head()
	if err != nil {
		return nil, err
	}
	for ; at < len(s.lines); at++ {
		if err := s.take(at+1, s.lines[at]); err != nil {
			return nil, err
		}
	}
	if len(s.steps) == 0 {
		return nil, s.fault(len(s.lines), "the story has no step")
	}
	for _, st := range s.steps {
		if err := s.compile(st); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *script) fault(line int, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", s.path, line, fmt.Sprintf(format, args...))
}

// head reads the title, the prose and the clauses, and returns the index of the first
// line behind them.
func (s *script) head() (int, error) {
	title, ok := strings.CutPrefix(s.lines[0], "# ")
	if !ok || strings.TrimSpace(title) == "" {
		return 0, s.fault(1, "the first line is not \"# \" and a title")
	}
	s.title = title
	for i, line := range s.lines[1:] {
		switch m := clauseLine.FindStringSubmatch(line); {
		case line == headEnd:
			if len(s.clauses) == 0 {
				return 0, s.fault(i+2, "the story names no clause")
			}
			return i + 2, nil
		case m != nil:
			if n := len(s.clauses); n > 0 && s.clauses[n-1] >= m[1] {
				return 0, s.fault(i+2, "%s does not come after %s", m[1], s.clauses[n-1])
			}
			s.clauses = append(s.clauses, m[1])
		case len(line) > 1 && line[0] == 'C' && line[1] >= '0' && line[1] <= '9':
			return 0, s.fault(i+2, "a clause is C and three digits, two spaces and what it says")
		case strings.HasPrefix(line, mark):
			return 0, s.fault(i+2, "an outcome stands in the head")
		}
	}
	return 0, s.fault(len(s.lines), "no line is %q", headEnd)
}

// take adds one line below the head to the steps.
func (s *script) take(n int, line string) error {
	var last *step
	if len(s.steps) > 0 {
		last = s.steps[len(s.steps)-1]
	}
	indented := strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t")
	switch {
	case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
	case strings.HasPrefix(line, mark):
		if last == nil || last.last+len(last.want) != n-1 {
			return s.fault(n, "the outcome stands below no step")
		}
		text := strings.TrimPrefix(line, mark)
		if text != "" && !strings.HasPrefix(text, " ") {
			return s.fault(n, "a line of an outcome begins with %q", mark+" ")
		}
		last.want = append(last.want, strings.TrimPrefix(text, " "))
	case indented:
		if last == nil || last.last != n-1 || last.want != nil {
			return s.fault(n, "the indented line stands below no directive")
		}
		last.block = append(last.block, blockLine{n, strings.TrimSpace(line)})
		last.last = n
	case line != strings.TrimSpace(line):
		return s.fault(n, "a directive is not indented, and a line of its block by four spaces")
	default:
		s.steps = append(s.steps, &step{line: n, last: n, text: line})
	}
	return nil
}

// compile looks a step's directive up and parses what belongs to it.
func (s *script) compile(st *step) error {
	a, err := lex(st.text)
	if err != nil {
		return s.fault(st.line, "%v", err)
	}
	name := a.word("a directive")
	d, ok := directives()[name]
	if !ok {
		return s.fault(st.line, "no directive is named %q", name)
	}
	a.block = st.block
	run := d.parse(a)
	a.end()
	if a.err != nil {
		line := st.line
		if a.errLine != 0 {
			line = a.errLine
		}
		return s.fault(line, "%v (usage: %s)", a.err, d.usage)
	}
	if len(st.block) > 0 && !a.blockTaken {
		return s.fault(st.block[0].line, "%s takes no indented lines (usage: %s)", name, d.usage)
	}
	st.run = run
	return nil
}

// rewrite returns the script's text with other outcomes; got holds one for each step.
func (s *script) rewrite(got [][]string) string {
	var b strings.Builder
	at := 0
	copyTo := func(end int) {
		for ; at < end; at++ {
			b.WriteString(s.lines[at] + "\n")
		}
	}
	for i, st := range s.steps {
		copyTo(st.last)
		for _, line := range got[i] {
			b.WriteString(strings.TrimRight(mark+" "+line, " ") + "\n")
		}
		at += len(st.want)
	}
	copyTo(len(s.lines))
	return b.String()
}
