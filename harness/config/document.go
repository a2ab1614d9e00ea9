package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxFileBytes bounds a configuration file.
const maxFileBytes = 1 << 20

// readFile reads a configuration file. A file that is not there gives nil, false and no error.
func readFile(path string) (data []byte, found bool, err error) {
	data, fault := readRegular(os.DirFS(filepath.Dir(path)), filepath.Base(path), path, maxFileBytes)
	switch {
	case fault == nil:
		return data, true, nil
	case errors.Is(fault.Err, os.ErrNotExist):
		return nil, false, nil
	}
	return nil, false, fault
}

// readRegular reads a file of at most limit bytes. Only regular files are read: opening a pipe would wait for its writer.
// full is the file's path, for the error.
func readRegular(fsys fs.FS, name, full string, limit int64) ([]byte, *Error) {
	unreadable := func(err error) *Error {
		return &Error{Kind: KindIO, File: full, Msg: "cannot be read", Err: unwrapPath(err)}
	}
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return nil, unreadable(err)
	}
	if !info.Mode().IsRegular() {
		return nil, &Error{Kind: KindIO, File: full, Msg: "is not a regular file"}
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, unreadable(err)
	}
	defer func() { _ = f.Close() }() // read only: nothing is lost when it fails
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, unreadable(err)
	}
	if int64(len(data)) > limit {
		return nil, &Error{Kind: KindUsage, File: full, Msg: fmt.Sprintf("is larger than %d bytes", limit)}
	}
	return data, nil
}

// unwrapPath takes the path out of an error whose path is already told.
func unwrapPath(err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err
	}
	return err
}

// parseDocument parses data into the mapping at its top, or nil for a file that says nothing. It reports everything that is
// wrong with the file as YAML: the encoding, the syntax, a second document, duplicate keys, anchors, aliases, own tags.
// Aliases are refused and never followed, so the work stays proportional to the file.
func parseDocument(file string, data []byte, f *faults) *yaml.Node {
	fault := func(line int, format string, args ...any) {
		f.at(Source{Kind: FromUser, File: file, Line: line}, "", format, args...)
	}
	data = bytes.TrimPrefix(data, []byte("\uFEFF"))
	if line, problem := checkText(data); problem != "" {
		fault(line, "%s", problem)
		return nil
	}
	lines := 1 + bytes.Count(bytes.TrimRight(data, "\n"), []byte("\n")) // where a file ends too early, its last one
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) {
			line, msg := syntaxFault(err)
			fault(min(line, lines), "%s", msg)
		}
		return nil
	}
	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		fault(second.Line, "a second document begins here; a configuration file holds one")
	} else if !errors.Is(err, io.EOF) {
		line, msg := syntaxFault(err)
		fault(min(line, lines), "%s", msg)
	}
	if len(doc.Content) != 1 {
		return nil
	}
	root := doc.Content[0]
	before := len(f.list)
	checkNode(root, fault)
	switch {
	case len(f.list) > before:
		return nil
	case isNull(root):
		return nil
	case root.Kind != yaml.MappingNode:
		fault(root.Line, "the file must be a mapping of keys to values, not %s", describe(root))
		return nil
	}
	return root
}

// checkText finds the first place that is not UTF-8 text. The library reports neither fault with a line.
func checkText(data []byte) (line int, problem string) {
	line = 1
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return line, "is not UTF-8 text"
		case r == '\n':
			line++
		case r < ' ' && r != '\t' && r != '\r', r >= 0x7f && r <= 0x9f && r != 0x85, r == 0xFEFF, r == 0xFFFE, r == 0xFFFF:
			return line, fmt.Sprintf("holds the control character %U", r)
		}
		i += size
	}
	return 0, ""
}

// checkNode refuses, in the whole tree, what no key of ours ever needs.
func checkNode(n *yaml.Node, fault func(line int, format string, args ...any)) {
	if n.Kind == yaml.AliasNode {
		fault(n.Line, "alias *%s: aliases are not supported", n.Value)
		return
	}
	if n.Anchor != "" {
		fault(n.Line, "anchor &%s: anchors are not supported", n.Anchor)
	}
	if strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!") {
		fault(n.Line, "tag %s: tags are not supported", n.Tag)
	}
	if n.Kind != yaml.MappingNode {
		for _, c := range n.Content {
			checkNode(c, fault)
		}
		return
	}
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge":
			fault(key.Line, "merge keys (<<) are not supported")
		case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str":
			fault(key.Line, "a key must be plain text, not %s", describe(key))
		case first[key.Value] > 0:
			fault(key.Line, "duplicate key %q; it is already on line %d", key.Value, first[key.Value])
		default:
			first[key.Value] = key.Line
		}
		if key.Anchor != "" || key.Kind == yaml.AliasNode {
			checkNode(key, fault)
		}
		checkNode(value, fault)
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// describe names what stands where something else was wanted.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!bool":
		return "true or false"
	case "!!int", "!!float":
		return "a number"
	case "!!timestamp":
		return "a date"
	}
	return "text"
}

// syntaxFault takes the library's message apart. The library counts lines from 0 for what its parser finds, unlike its
// scanner, and names no line at all for the first.
func syntaxFault(err error) (line int, msg string) {
	msg = strings.TrimPrefix(err.Error(), "yaml: ")
	line = 1
	if m := regexp.MustCompile(`^line ([0-9]+): `).FindStringSubmatch(msg); m != nil {
		line, _ = strconv.Atoi(m[1]) // digits by the pattern; a number too large gives the largest
		msg = msg[len(m[0]):]
		for _, found := range []string{
			"did not find expected <", "did not find expected node content", "did not find expected key", "did not find expected '-'",
			"did not find expected ','", "found duplicate %", "found incompatible", "found undefined tag",
		} {
			if strings.HasPrefix(msg, found) {
				line++
			}
		}
	}
	return line, "is not valid YAML: " + msg
}
