package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
)

// message is what of govulncheck's stream is read; each object has one of the fields.
type message struct {
	Config *struct {
		Level string `json:"scan_level"`
	} `json:"config"`
	SBOM *struct {
		Modules []struct{} `json:"modules"`
	} `json:"SBOM"`
	OSV *struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	} `json:"osv"`
	Finding *finding `json:"finding"`
}

// finding is one way to a vulnerability: only a module that is required, or a package that is imported, or a function
// that is called, by what stands behind it.
type finding struct {
	OSV   string  `json:"osv"`
	Fixed string  `json:"fixed_version"`
	Trace []frame `json:"trace"`
}

type frame struct {
	Module   string `json:"module"`
	Version  string `json:"version"`
	Package  string `json:"package"`
	Function string `json:"function"`
	Receiver string `json:"receiver"`
	Position *struct {
		Filename string `json:"filename"`
		Line     int    `json:"line"`
	} `json:"position"`
}

// hit is a vulnerability in a module that has a package which is imported.
type hit struct {
	id, module, version, fixed string
	packages                   map[string]bool
	// calls is the shortest of the ways that call it, from the vulnerable function outwards; nil if none was found.
	calls []frame
}

// standard reports whether the Go release is at fault.
func (h hit) standard() bool { return h.module == "stdlib" || h.module == "toolchain" }

// result is what one scan found.
type result struct {
	modules   int
	symbols   bool // whether calls were looked for
	summaries map[string]string
	hits      map[string]*hit // by id and module
}

// others returns how many vulnerabilities of other modules are imported.
func (r result) others() int {
	n := 0
	for _, h := range r.hits {
		if !h.standard() {
			n++
		}
	}
	return n
}

// scan runs govulncheck over all packages of a module. The level is package or symbol.
func scan(ctx context.Context, db, dir, level string) (result, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return result{}, err
	}
	args := []string{"tool", "govulncheck", "-C", dir, "-db", db, "-scan", level, "-format", "json", "./..."}
	cmd := exec.CommandContext(ctx, "go", args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return result{}, fmt.Errorf("govulncheck: %w\n%s", err, stderr.Bytes())
	}
	found, err := decode(&stdout, level)
	if err != nil {
		return result{}, fmt.Errorf("govulncheck's output: %w\n%s", err, stderr.Bytes())
	}
	return found, nil
}

// decode reads the stream of a scan. A stream that does not tell of a scan of that level over some module is an
// error: its silence would be taken for good news.
func decode(in io.Reader, level string) (result, error) {
	r := result{symbols: level == "symbol", summaries: map[string]string{}, hits: map[string]*hit{}}
	configured := false
	for dec := json.NewDecoder(in); ; {
		var m message
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF):
			if !configured || r.modules == 0 {
				return result{}, fmt.Errorf("it tells of no scan of level %s over a module", level)
			}
			return r, nil
		case err != nil:
			return result{}, err
		case m.Config != nil:
			configured = m.Config.Level == level
		case m.SBOM != nil:
			r.modules = len(m.SBOM.Modules)
		case m.OSV != nil:
			r.summaries[m.OSV.ID] = m.OSV.Summary
		case m.Finding != nil:
			if len(m.Finding.Trace) == 0 {
				return result{}, fmt.Errorf("the finding of %s says not where", m.Finding.OSV)
			}
			r.add(*m.Finding)
		}
	}
}

func (r result) add(f finding) {
	at := f.Trace[0]
	if at.Package == "" {
		return // a module that is required, of which nothing vulnerable is imported
	}
	key := f.OSV + " " + at.Module
	h := r.hits[key]
	if h == nil {
		h = &hit{id: f.OSV, module: at.Module, version: at.Version, fixed: f.Fixed, packages: map[string]bool{}}
		r.hits[key] = h
	}
	h.packages[at.Package] = true
	if at.Function != "" && (h.calls == nil || len(f.Trace) < len(h.calls)) {
		h.calls = f.Trace
	}
}
