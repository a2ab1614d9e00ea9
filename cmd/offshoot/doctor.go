package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
)

func newDoctorCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the store, the configuration, the routes to models, the MCP servers and the products",
		Long: "Says in one line each whether the store opens and all of it can be listed, how big it is and\n" +
			"how much room the disk has; what the configuration files say; which model a run would use;\n" +
			"and of each route whether its key is set, whether its endpoint answers (GET /models, 5 s)\n" +
			"and takes the key; and of each MCP server whether its program is found, whether it starts and\n" +
			"answers, and how many tools it has: it is started for that, and ended. So is each product\n" +
			"that agents can be delegated to, unless the folder is not trusted: whether it is found, which\n" +
			"version answers the handshake and how soon, and what can be asked of it. It changes nothing\n" +
			"itself, asks no host but those of the servers, the products and the routes that have a key or\n" +
			"need none, and never shows a key.\n\n" +
			"A route that is not set, or a local server that is not running, is no fault unless the\n" +
			"configuration uses it. Exit codes: 0 when nothing fails, else 1.\n\n" +
			"--json writes one object a line: check, name, status (ok, failed, not set, not running or\n" +
			"not checked), detail; of the store path, sessions, sizeBytes, freeBytes; of routes endpoint,\n" +
			"keyEnv, key (set, not set, not needed, accepted, refused), reachable, latencyMs, inUse; of MCP\n" +
			"servers path or endpoint, server, tools, leftOut; of products path, server, latencyMs,\n" +
			"features.",
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			eff, err := a.load(cmd, config.Flags{}, "")
			if err != nil && config.Faults(err) == nil {
				return err
			}
			return a.examine(cmd.Context(), eff, err, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write one JSON object a line")
	return cmd
}

// What a check comes to.
const (
	checkOK         = "ok"
	checkFailed     = "failed"
	checkNotSet     = "not set"
	checkNotRunning = "not running"
	checkSkipped    = "not checked"
)

// finding is the result of one check, and its form in JSON.
type finding struct {
	Check  string `json:"check"` // store, configuration, model, route, mcp or product
	Name   string `json:"name,omitempty"`
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`

	Path      string  `json:"path,omitempty"`
	Sessions  *int64  `json:"sessions,omitempty"`
	SizeBytes *int64  `json:"sizeBytes,omitempty"`
	FreeBytes *uint64 `json:"freeBytes,omitempty"`

	Endpoint  string `json:"endpoint,omitempty"`
	KeyEnv    string `json:"keyEnv,omitempty"`
	Key       string `json:"key,omitempty"`
	Reachable *bool  `json:"reachable,omitempty"`
	LatencyMS *int64 `json:"latencyMs,omitempty"`
	InUse     bool   `json:"inUse,omitempty"`

	Server  string    `json:"server,omitempty"`
	Tools   *int64    `json:"tools,omitempty"`
	LeftOut []leftOut `json:"leftOut,omitempty"`

	Features []string `json:"features,omitempty"`
}

// leftOut is a tool of a server that no agent gets.
type leftOut struct {
	Tool string `json:"tool"`
	Why  string `json:"why"`
}

func (f *finding) title() string { return strings.TrimSpace(f.Check + " " + f.Name) }

// examination writes findings as they are made and counts those that failed.
type examination struct {
	out    *bufio.Writer
	json   bool
	faults int64
	first  string
}

// add writes one finding at once: the next may take its time.
func (e *examination) add(f finding) error {
	if f.Status == checkFailed {
		if e.faults++; e.faults == 1 {
			e.first = f.title() + ": " + f.Detail
		}
	}
	var err error
	if e.json {
		var line []byte
		if line, err = encode(f); err == nil {
			_, err = e.out.Write(append(line, '\n'))
		}
	} else {
		status := f.Status
		if status == checkFailed {
			status = "FAILED"
		}
		_, err = fmt.Fprintf(e.out, "%-11s  %-16s  %s\n", status, printable(f.title()), oneLine(f.Detail))
	}
	return errors.Join(err, e.out.Flush())
}

// examine checks everything. eff is nil when the configuration has the faults of
// loadErr, and then nobody knows which store and routes there are.
func (a *app) examine(ctx context.Context, eff *config.Effective, loadErr error, asJSON bool) error {
	e := &examination{out: bufio.NewWriter(a.stdout), json: asJSON}
	var err error
	if loadErr != nil {
		_, lines := explain(loadErr)
		for _, line := range lines {
			err = errors.Join(err, e.add(finding{Check: "configuration", Status: checkFailed, Detail: line}))
		}
		err = errors.Join(err, e.add(finding{Check: "store, routes", Status: checkSkipped, Detail: "the configuration must be put right first"}))
	} else {
		err = a.examineAll(ctx, eff, e)
	}
	switch {
	case err != nil:
		return fmt.Errorf("doctor: %w", err)
	case e.faults > 0:
		return fmt.Errorf("doctor: %s; the first: %s", plural(e.faults, "fault"), e.first)
	}
	return nil
}

func (a *app) examineAll(ctx context.Context, eff *config.Effective, e *examination) error {
	err := e.add(examineStore(ctx, eff.Config.Store))
	for _, f := range a.examineConfiguration(ctx, eff) {
		err = errors.Join(err, e.add(f))
	}
	p := &prober{now: a.now, timeout: probeTimeout}
	used := routesInUse(eff, a.env)
	for _, name := range eff.RouteNames() {
		if err != nil {
			return err // nobody reads on
		}
		err = e.add(a.examineRoute(ctx, p, eff, eff.Config.Routes[name], used[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(eff.Config.MCP)) {
		if err != nil {
			return err
		}
		err = e.add(a.examineServer(ctx, eff, name))
	}
	for _, name := range slices.Sorted(maps.Keys(eff.Config.Products())) {
		if err != nil {
			return err
		}
		err = e.add(a.examineProduct(ctx, eff, name))
	}
	return err
}

// examineProduct starts a product, makes the handshake and ends it.
func (a *app) examineProduct(ctx context.Context, eff *config.Effective, name string) finding {
	f := finding{Check: "product", Name: name, Status: checkOK}
	r, err := harness.ProbeProduct(ctx, eff, name, a.env)
	f.Path = r.Path
	if err != nil {
		f.Status = checkFailed
		if errors.Is(err, subagent.ErrUntrustedFolder) {
			f.Status = checkSkipped
		}
		_, lines := explain(err)
		f.Detail = strings.Join(lines, "; ")
		return f
	}
	ready := r.Ready.Milliseconds()
	f.Server, f.LatencyMS, f.Features = r.About, &ready, r.Features
	f.Detail = fmt.Sprintf("%s: %s; ready in %d ms; takes %s", r.Path, r.About, ready, strings.Join(append([]string{"a prompt"}, r.Features...), ", "))
	return f
}

// examineServer starts an MCP server and ends it.
func (a *app) examineServer(ctx context.Context, eff *config.Effective, name string) finding {
	f := finding{Check: "mcp", Name: name, Status: checkOK}
	r, err := harness.ProbeServer(ctx, eff, name, a.env)
	if eff.Config.MCP[name].Command != "" {
		f.Path = r.Found
	} else {
		f.Endpoint = r.Found
	}
	if err != nil {
		_, lines := explain(err)
		f.Status, f.Detail = checkFailed, strings.Join(lines, "; ")
		return f
	}
	tools := int64(len(r.Tools))
	f.Server, f.Tools = r.About, &tools
	f.Detail = fmt.Sprintf("%s: %s; %s", r.Found, r.About, plural(tools, "tool"))
	for _, l := range r.LeftOut {
		f.LeftOut = append(f.LeftOut, leftOut(l))
		f.Detail += fmt.Sprintf("; left out: %s (%s)", l.Tool, l.Why)
	}
	return f
}

// leastRoom is how much room on the disk is too little to keep a log on.
const leastRoom = 16 << 20

// selfChecker is a store that can check its own file.
type selfChecker interface {
	QuickCheck(ctx context.Context) error
}

// examineStore looks at the store without changing it.
func examineStore(ctx context.Context, c config.Store) finding {
	f := finding{Check: "store", Status: checkOK, Path: c.Path}
	if c.Driver == config.DriverMemory {
		f.Detail = "memory: nothing is kept beyond a process"
		return f
	}
	fail := func(text string) finding {
		f.Status, f.Detail = checkFailed, text
		return f
	}
	room := ""
	if free, known, err := freeSpace(existing(filepath.Dir(c.Path))); err != nil {
		room = "; its free space cannot be told: " + err.Error()
	} else if known {
		f.FreeBytes = &free
		room = "; " + bytesText(free) + " free"
	}
	s, err := openShelf(ctx, c)
	if err != nil {
		return fail(err.Error())
	}
	if s.store == nil {
		f.Detail = c.Path + ": not made yet" + room
	} else {
		sessions, broken, err := s.takeStock(ctx)
		if err = s.close(ctx, err); err != nil {
			return fail(err.Error())
		}
		size := fileSize(c.Path) + fileSize(c.Path+"-wal")
		f.Sessions, f.SizeBytes = &sessions, &size
		f.Detail = fmt.Sprintf("%s: %s, %s%s", c.Path, plural(sessions, "session"), bytesText(uint64(size)), room)
		if broken > 0 {
			return fail(fmt.Sprintf("%s: %d of %s cannot be read; see offshoot sessions verify", c.Path, broken, plural(sessions, "session")))
		}
	}
	if f.FreeBytes != nil && *f.FreeBytes < leastRoom {
		return fail(f.Detail + ", which is too little")
	}
	return f
}

// takeStock reads the record of every session.
func (s *shelf) takeStock(ctx context.Context) (sessions, broken int64, err error) {
	if c, ok := s.store.(selfChecker); ok {
		if err := c.QuickCheck(ctx); err != nil {
			return 0, 0, err
		}
	}
	for rec, err := range s.records(ctx, session.Filter{}, session.Page{}) {
		if err != nil {
			return sessions, broken, err
		}
		if sessions++; rec.Err != nil {
			broken++
		}
	}
	return sessions, broken, nil
}

// fileSize is 0 for a file that is not there.
func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// existing is the nearest folder above a path that there is.
func existing(path string) string {
	for {
		_, err := os.Stat(path)
		up := filepath.Dir(path)
		if !errors.Is(err, fs.ErrNotExist) || up == path {
			return path
		}
		path = up
	}
}

func bytesText(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1024, "KiB"
	for _, next := range []string{"MiB", "GiB", "TiB", "PiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, next
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}

// examineConfiguration says which files were read, whether a system can be made of
// what they say, and which model it would use.
func (a *app) examineConfiguration(ctx context.Context, eff *config.Effective) []finding {
	var files []string
	for _, file := range eff.Files {
		text := file.Path
		if !file.Found {
			text += " (not there)"
		}
		files = append(files, text)
	}
	conf := finding{Check: "configuration", Status: checkOK, Detail: strings.Join(files, ", ")}
	o, fault := a.overview(ctx, eff)
	all := []finding{conf}
	if fault != nil {
		_, lines := explain(fault)
		all = all[:0]
		for _, line := range lines {
			all = append(all, finding{Check: "configuration", Status: checkFailed, Detail: line})
		}
	}
	model := finding{Check: "model", Status: checkFailed, Detail: o.ModelError}
	if o.Model != nil {
		model.Status, model.Detail = checkOK, o.Model.Ref+" ("+o.Model.Why+")"
	}
	return append(all, model)
}

// probeTimeout bounds the wait for one endpoint.
const probeTimeout = 5 * time.Second
