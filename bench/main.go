// Command bench measures the work that the design's cost table names, on the
// fixed fixture, and prints one table with the targets beside what it measured.
//
// Each group of rows runs in a process of its own, several times in turn with the
// others, so that no group lives in the heap of another and a busy moment of the
// machine does not fall on one row alone. A row is the median of all its samples.
//
// Nothing here fails because it is slow. Floor B.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"time"

	"github.com/offshoot-dev/offshoot/harness/supervise"
	"github.com/offshoot-dev/offshoot/internal/fakeagent"
)

func main() {
	supervise.Main()
	fakeagent.Become()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	rows     *regexp.Regexp
	rounds   int
	samples  int
	sample   time.Duration
	dir      string
	offshoot string
	group    string
	list     string
	tree     string
	peers    int
	exec     string
	args     []string
	cpu, mem string
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var rows string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&rows, "rows", "", "measure only the groups with a row that matches this `PATTERN`")
	f.IntVar(&o.rounds, "rounds", 3, "how often each group runs, each time in a new process")
	f.IntVar(&o.samples, "samples", 3, "samples of a row in one round")
	f.DurationVar(&o.sample, "sample", 120*time.Millisecond, "how long a sample takes at least")
	f.StringVar(&o.dir, "dir", os.TempDir(), "`FOLDER` for the databases; on a file system in memory a sync costs nothing")
	f.StringVar(&o.offshoot, "offshoot", "", "measure this `BINARY` instead of building one")
	f.StringVar(&o.group, "group", "", "run this `GROUP` in this process and print its samples as JSON")
	f.StringVar(&o.list, "list", "", "list the children in this `DATABASE` and exit")
	f.StringVar(&o.tree, "tree", "", "grow a tree of agents in this `STORE` (live, memory or sqlite) and exit")
	f.IntVar(&o.peers, "peers", 0, "hold `N` external children at work at once and exit")
	f.StringVar(&o.exec, "exec", "", "run the command in the arguments as the one process of the row `WORK` and print its sample")
	f.StringVar(&o.cpu, "cpuprofile", "", "with -group: write a CPU profile to this `FILE`")
	f.StringVar(&o.mem, "memprofile", "", "with -group: write a profile of every allocation to this `FILE`")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.args = f.Args()
	if o.exec == "" && f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	var err error
	if o.rows, err = regexp.Compile(rows); err != nil {
		return o, fmt.Errorf("flag -rows: %w", err)
	}
	return o, nil
}

func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	switch {
	case err != nil:
		return err
	case o.list != "":
		return listFile(ctx, o.list)
	case o.tree != "":
		return tree(ctx, o.tree, o.dir)
	case o.peers > 0:
		return holdPeers(ctx, o.peers, o.dir)
	case o.exec != "":
		s, err := process(ctx, o.exec, o.args)
		if err != nil {
			return err
		}
		return json.NewEncoder(stdout).Encode(s)
	case o.group != "":
		return runGroup(ctx, o, stdout)
	}
	return runAll(ctx, o, stdout, stderr)
}

// runGroup measures one group in this process.
func runGroup(ctx context.Context, o options, stdout io.Writer) (err error) {
	work, ok := groups()[o.group]
	if !ok {
		return fmt.Errorf("no group is named %q", o.group)
	}
	if o.mem != "" {
		runtime.MemProfileRate = 1
		defer func() { err = errors.Join(err, writeProfile(o.mem, pprof.Lookup("allocs").WriteTo)) }()
	}
	if o.cpu != "" {
		f, err := os.Create(o.cpu)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return errors.Join(err, f.Close())
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, f.Close())
		}()
	}
	b := &bench{options: o, out: json.NewEncoder(stdout), files: new(atomic.Int64)}
	if err := work(ctx, b); err != nil {
		return fmt.Errorf("group %s: %w", o.group, err)
	}
	return nil
}

func writeProfile(path string, write func(io.Writer, int) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f, 0), f.Close())
}

// runAll measures every group in processes of their own and prints the table.
func runAll(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	dir, err := os.MkdirTemp(o.dir, "offshoot-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	o.dir = dir
	names := chosen(o.rows)
	if len(names) == 0 {
		return fmt.Errorf("no row matches %q", o.rows)
	}
	if o.offshoot == "" {
		if o.offshoot, err = build(ctx, dir, stderr); err != nil {
			return err
		}
	}
	head, err := conditions(dir)
	if err != nil {
		return err
	}
	began := time.Now()
	got := results{}
	for round := range o.rounds {
		if _, err := fmt.Fprintf(stderr, "bench: round %d of %d\n", round+1, o.rounds); err != nil {
			return err
		}
		for _, name := range names {
			if err := collect(ctx, o, name, got, stderr); err != nil {
				return err
			}
		}
	}
	if _, err := fmt.Fprintf(stdout, "%s, load at the end %s; %d rounds in %s\n\n", head, loadAverage(), o.rounds, time.Since(began).Round(time.Second)); err != nil {
		return err
	}
	return printTable(stdout, got)
}

// build makes the command as it ships, in the module that it belongs to.
func build(ctx context.Context, dir string, stderr io.Writer) (string, error) {
	const module = "github.com/offshoot-dev/offshoot"
	run := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stderr = stderr
		return cmd.Output()
	}
	path := filepath.Join(dir, "offshoot")
	root, err := run("list", "-m", "-f", "{{.Dir}}", module)
	if err == nil {
		_, err = run("-C", strings.TrimSpace(string(root)), "build", "-trimpath", "-o", path, "./cmd/offshoot")
	}
	if err != nil {
		return "", fmt.Errorf("build the command (run bench in its own folder, or give -offshoot): %w", err)
	}
	return path, nil
}

// collect runs one group once.
func collect(ctx context.Context, o options, name string, got results, stderr io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, "-group", name, "-dir", o.dir, "-offshoot", o.offshoot,
		"-samples", fmt.Sprint(o.samples), "-sample", o.sample.String())
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var bad error
	for lines := bufio.NewScanner(out); lines.Scan() && bad == nil; {
		var s sample
		if bad = json.Unmarshal(lines.Bytes(), &s); bad == nil {
			got[s.Work] = append(got[s.Work], s)
		}
	}
	return errors.Join(cmd.Wait(), bad)
}
