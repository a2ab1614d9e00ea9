package scripted

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/offshoot-dev/offshoot/llm"
)

// Bounds of one agent's survey.
const (
	maxFolders     = 60  // listed in all
	foldersPerStep = 12  // listed in one answer
	maxReads       = 5   // files read
	maxReadmes     = 2   // of them README files
	readLimit      = 60  // lines of one file
	maxErrandNames = 100 // folders of one errand
)

// plan is how the working directory is divided.
type plan struct {
	errands []errand
	// passed are the top-level folders that were left out, dropped how many more
	// did not fit into the errands.
	passed  []string
	dropped int
}

// planSurvey makes up to maxGroups errands of a listing of the working directory.
func planSurvey(here listing) plan {
	var p plan
	var folders, files []string
	for _, e := range here.entries {
		switch {
		case e.kind == entryFolder && passedOver(e.name):
			p.passed = append(p.passed, e.name)
		case e.kind == entryFolder && utf8.ValidString(e.name):
			folders = append(folders, e.name)
		case e.kind == entryFolder:
			p.dropped++ // no call can name it
		default:
			files = append(files, e.name)
		}
	}
	if len(folders) == 0 && len(files) == 0 {
		folders, p.passed = slices.DeleteFunc(p.passed, func(s string) bool { return !utf8.ValidString(s) }), nil
	}
	slices.Sort(folders)
	slices.Sort(files)
	if len(folders) == 0 {
		p.errands = splitFiles(files)
		return p
	}
	groups := maxGroups
	if len(files) > 0 {
		p.errands = append(p.errands, errand{Files: &fileRange{}})
		groups--
	}
	for _, part := range parts(folders, groups) {
		if over := len(part) - maxErrandNames; over > 0 {
			part, p.dropped = part[:maxErrandNames], p.dropped+over
		}
		p.errands = append(p.errands, errand{Folders: part})
	}
	return p
}

// splitFiles divides files by ranges of their names.
func splitFiles(files []string) []errand {
	named := slices.DeleteFunc(slices.Clone(files), func(s string) bool { return !utf8.ValidString(s) })
	split := parts(named, maxGroups)
	if len(split) == 0 {
		return []errand{{Files: &fileRange{}}}
	}
	errands := make([]errand, len(split))
	for i, part := range split {
		errands[i].Files = &fileRange{}
		if i > 0 {
			errands[i].Files.After = split[i-1][len(split[i-1])-1]
		}
		if i < len(split)-1 {
			errands[i].Files.UpTo = part[len(part)-1]
		}
	}
	return errands
}

// parts cuts a list into at most n parts of about the same length.
func parts(list []string, n int) [][]string {
	n = min(n, len(list))
	out := make([][]string, 0, n)
	for i := range n {
		out = append(out, list[i*len(list)/n:(i+1)*len(list)/n])
	}
	return out
}

func (p plan) titles() []string {
	titles := make([]string, len(p.errands))
	for i, e := range p.errands {
		titles[i] = e.title()
	}
	return titles
}

// whole is all errands in one.
func (p plan) whole() errand {
	var all errand
	for _, e := range p.errands {
		all.Folders = append(all.Folders, e.Folders...)
		if e.Files != nil {
			all.Files = &fileRange{}
		}
	}
	return all
}

// describe says what a listing of the working directory showed.
func (p plan) describe(here listing) string {
	var folders, files, links, others int
	for _, e := range here.entries {
		switch e.kind {
		case entryFolder:
			folders++
		case entryLink:
			links++
		case entryOther:
			others++
		default:
			files++
		}
	}
	seen := []string{count(folders, "folder", "folders"), count(files, "file", "files")}
	if links > 0 {
		seen = append(seen, count(links, "link", "links"))
	}
	if others > 0 {
		seen = append(seen, count(others, "special file", "special files"))
	}
	s := "The working directory holds " + joinAnd(seen) + "."
	if len(p.passed) > 0 {
		names := make([]string, len(p.passed))
		for i, n := range p.passed {
			names[i] = printable(n) + "/"
		}
		s += " Passed over as hidden or third-party: " + joinAnd(names) + "."
	}
	if p.dropped > 0 {
		s += " Left out: " + count(p.dropped, "more folder", "more folders") + "."
	}
	for _, n := range here.notes {
		s += " The listing says: " + n + "."
	}
	return s + "\n"
}

// surveyStep is the next thing that a survey does, or nil when it has seen enough.
func surveyStep(req *llm.Request, turn []Result, e errand) Step {
	s := surveyOf(turn, e)
	if next := s.next(); len(next) > 0 {
		titles := make([]string, len(next))
		for i, f := range next {
			titles[i] = printable(f) + "/"
			if f == "." {
				titles[i] = "the working directory"
			}
		}
		step := Step{Split(2), SayLiteral("I list " + joinAnd(titles) + "."), Split(1)}
		for _, f := range next {
			step = append(step, CallLiteral(toolList, pathArgs(f)))
		}
		return step
	}
	if len(s.readings) > 0 || toolNamed(req, toolRead) == nil {
		return nil
	}
	picks := s.picks()
	if len(picks) == 0 {
		return nil
	}
	step := Step{Split(2), SayLiteral("I read the beginning of " + joinAnd(mapped(picks, printable)) + "."), Split(1)}
	for _, f := range picks {
		args := strings.TrimSuffix(pathArgs(f), "}") + fmt.Sprintf(`,"limit":%d}`, readLimit)
		step = append(step, CallLiteral(toolRead, args))
	}
	return step
}

// survey is what the tool results in a request say of an errand.
type survey struct {
	errand   errand
	listings map[string]listing // by path
	// roots are the folders of the errand, in order, with what lies below them.
	roots    []*branch
	readings []reading
	// unopened folders were seen and not listed yet, in the order of their depth.
	unopened []string
}

// branch is a folder of the errand with all that was seen below it.
type branch struct {
	path    string
	folders int
	files   []surveyedFile
	bytes   int64
	sized   bool // every size is known
	links   int
	others  int
	passed  []string
	failed  []string
	notes   []string
	closed  int // folders that were not listed
}

type surveyedFile struct {
	path string
	size int64
}

func surveyOf(turn []Result, e errand) *survey {
	s := &survey{errand: e, listings: map[string]listing{}}
	for _, r := range turn {
		switch name := pathOf(r); r.Call.Name {
		case toolList:
			if _, again := s.listings[name]; !again {
				s.listings[name] = parseList(r)
			}
		case toolRead:
			s.readings = append(s.readings, parseRead(name, r))
		}
	}
	if e.Files != nil {
		s.roots = append(s.roots, s.walk(".", e.Files))
	}
	for _, f := range e.Folders {
		s.roots = append(s.roots, s.walk(f, nil))
	}
	slices.SortStableFunc(s.unopened, func(a, b string) int {
		return cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/"))
	})
	return s
}

// walk collects what was seen below a folder; of the working directory only files
// within a range.
func (s *survey) walk(top string, only *fileRange) *branch {
	b := &branch{path: top, sized: true}
	pending := []string{top}
	for len(pending) > 0 {
		dir := pending[0]
		pending = pending[1:]
		l, ok := s.listings[dir]
		if !ok {
			if utf8.ValidString(dir) {
				s.unopened = append(s.unopened, dir)
			}
			b.closed++
			continue
		}
		if l.failed != "" {
			b.failed = append(b.failed, printable(dir)+": "+l.failed)
			continue
		}
		for _, n := range l.notes {
			b.notes = append(b.notes, printable(dir)+": "+n)
		}
		for _, e := range l.entries {
			if only != nil && (e.kind == entryFolder || !only.holds(e.name)) {
				continue
			}
			full := path.Join(dir, e.name)
			switch {
			case e.kind == entryFolder && passedOver(e.name):
				b.folders++
				b.passed = append(b.passed, full)
			case e.kind == entryFolder:
				b.folders++
				pending = append(pending, full)
			case e.kind == entryLink:
				b.links++
			case e.kind == entryOther:
				b.others++
			default:
				b.files = append(b.files, surveyedFile{full, e.size})
				b.bytes += max(e.size, 0)
				b.sized = b.sized && e.size >= 0
			}
		}
	}
	return b
}

// next returns the folders to list now.
func (s *survey) next() []string {
	room := min(maxFolders-len(s.listings), foldersPerStep)
	return s.unopened[:max(min(len(s.unopened), room), 0)]
}

// picks returns the files to read: from each folder of the errand in turn, README
// files from the top down first, then the largest that may be text.
func (s *survey) picks() []string {
	queues := make([][]string, len(s.roots))
	for i, b := range s.roots {
		queues[i] = b.worthReading()
	}
	var picks []string
	for more := true; more; {
		more = false
		for i, q := range queues {
			if len(q) == 0 {
				continue
			}
			if len(picks) == maxReads {
				return picks
			}
			picks, queues[i], more = append(picks, q[0]), q[1:], true
		}
	}
	return picks
}

// worthReading returns the files of a branch in the order in which they are worth
// reading.
func (b *branch) worthReading() []string {
	var readmes, others []surveyedFile
	for _, f := range b.files {
		switch {
		case !utf8.ValidString(f.path) || f.size == 0 || looksBinary(f.path):
		case strings.HasPrefix(strings.ToLower(path.Base(f.path)), "readme"):
			readmes = append(readmes, f)
		default:
			others = append(others, f)
		}
	}
	slices.SortFunc(readmes, func(a, b surveyedFile) int {
		return cmp.Or(cmp.Compare(strings.Count(a.path, "/"), strings.Count(b.path, "/")), cmp.Compare(a.path, b.path))
	})
	slices.SortFunc(others, func(a, b surveyedFile) int {
		return cmp.Or(cmp.Compare(b2i(generated(a.path)), b2i(generated(b.path))), cmp.Compare(b.size, a.size), cmp.Compare(a.path, b.path))
	})
	chosen := slices.Concat(readmes[:min(len(readmes), maxReadmes)], others)
	return mapped(chosen[:min(len(chosen), maxReads)], func(f surveyedFile) string { return f.path })
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// looksBinary reports whether a file's name says that it is no text.
func looksBinary(name string) bool {
	switch kindOf(name) {
	case ".png", ".jpg", ".jpeg", ".gif", ".webp", ".ico", ".bmp", ".pdf", ".zip", ".gz", ".tgz", ".xz", ".zst", ".bz2", ".7z", ".jar", ".class",
		".o", ".a", ".so", ".dylib", ".dll", ".exe", ".wasm", ".bin", ".db", ".sqlite", ".woff", ".woff2", ".ttf", ".otf", ".eot", ".mp3", ".mp4", ".mov", ".wav", ".ogg":
		return true
	default:
		return false
	}
}

// generated reports whether a file is likely a long machine-made one, which says
// little by its beginning.
func generated(name string) bool {
	base := path.Base(name)
	switch base {
	case "package-lock.json", "pnpm-lock.yaml":
		return true
	default:
		ext := kindOf(name)
		return ext == ".sum" || ext == ".lock" || ext == ".map" || ext == ".svg" || strings.HasSuffix(base, ".min.js") || strings.HasSuffix(base, ".min.css")
	}
}

// report says what was seen, and what was not.
func (s *survey) report() string {
	var b strings.Builder
	kinds := map[string]int{}
	for _, r := range s.roots {
		r.write(&b)
		for _, f := range r.files {
			kinds[kindOf(f.path)]++
		}
	}
	if len(kinds) > 0 {
		names := make([]string, 0, len(kinds))
		for k := range kinds {
			names = append(names, k)
		}
		slices.SortFunc(names, func(x, y string) int { return cmp.Or(cmp.Compare(kinds[y], kinds[x]), cmp.Compare(x, y)) })
		b.WriteString("Kinds of files: " + joinAnd(mapped(names, func(k string) string { return fmt.Sprintf("%d %s", kinds[k], k) })) + ".\n")
	}
	for _, r := range s.readings {
		r.write(&b)
	}
	if len(s.readings) == 0 && len(kinds) > 0 {
		b.WriteString("No file was read.\n")
	}
	return b.String()
}

func (b *branch) write(w *strings.Builder) {
	name, seen := printable(b.path)+"/", []string{count(b.folders, "folder", "folders"), count(len(b.files), "file", "files")}
	if b.path == "." {
		name, seen = "Directly in the working directory", seen[1:]
	}
	if b.closed > 0 && b.folders == 0 && len(b.files) == 0 {
		fmt.Fprintf(w, "- %s: not listed.\n", name)
		return
	}
	if len(b.failed) == 0 || b.folders > 0 || len(b.files) > 0 {
		if b.links > 0 {
			seen = append(seen, count(b.links, "link", "links"))
		}
		if b.others > 0 {
			seen = append(seen, count(b.others, "special file", "special files"))
		}
		size := ""
		if b.sized && len(b.files) > 0 {
			size = ", " + bytesText(b.bytes) + " in all"
		}
		fmt.Fprintf(w, "- %s: %s%s.", name, joinAnd(seen), size)
	} else {
		fmt.Fprintf(w, "- %s:", name)
	}
	if len(b.passed) > 0 {
		fmt.Fprintf(w, " Not opened, as hidden or third-party: %s.", joinAnd(mapped(b.passed, func(p string) string { return printable(p) + "/" })))
	}
	if b.closed > 0 {
		fmt.Fprintf(w, " Not opened, to keep this short: %s.", count(b.closed, "folder", "folders"))
	}
	for _, f := range b.failed[:min(len(b.failed), 3)] {
		fmt.Fprintf(w, " Could not be listed: %s.", f)
	}
	for _, n := range b.notes[:min(len(b.notes), 3)] {
		fmt.Fprintf(w, " Cut: %s.", n)
	}
	w.WriteByte('\n')
}

func (r reading) write(w *strings.Builder) {
	name := printable(r.path)
	switch {
	case r.failed != "":
		fmt.Fprintf(w, "- %s could not be read: %s\n", name, r.failed)
		return
	case r.lines == 0:
		fmt.Fprintf(w, "- %s is empty.\n", name)
		return
	case r.total == r.lines:
		fmt.Fprintf(w, "- %s has %s", name, count(r.lines, "line", "lines"))
	case r.total > 0:
		fmt.Fprintf(w, "- %s has %s", name, count(r.total, "line", "lines"))
	default:
		fmt.Fprintf(w, "- %s has more than %s", name, count(r.lines, "line", "lines"))
	}
	if r.begins == "" {
		w.WriteString("; those that were read are blank.\n")
		return
	}
	fmt.Fprintf(w, " and begins: %s\n", r.begins)
}

// findList returns what the list tool said of a path, and whether it was asked.
func findList(turn []Result, name string) (listing, bool) {
	for _, r := range turn {
		if r.Call.Name == toolList && pathOf(r) == name {
			return parseList(r), true
		}
	}
	return listing{}, false
}

// pathOf returns the path that a call named.
func pathOf(r Result) string {
	var args struct {
		Path string `json:"path"`
	}
	if json.Unmarshal([]byte(r.Call.Arguments), &args) != nil || args.Path == "" {
		return "."
	}
	return path.Clean(args.Path)
}

func mapped[T any](list []T, f func(T) string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = f(s)
	}
	return out
}
