// Package shell is the model-facing tool bash and the seam behind it: an Executor
// runs the command, on this machine by default.
//
// A composition mounts at most one executor (core T32). Floor 6.
package shell

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/offshoot-dev/offshoot/tool"
)

// ToolName is the name under which a model calls a shell.
const ToolName = "bash"

// Bounds of a command's time, and how much of its output is kept. This bound is for
// the memory of a process whose commands may print without end; what the model reads
// is bounded far below it by the pipeline, and the rest is kept in the log. What this
// one drops is gone.
const (
	DefaultTimeout = 120 * time.Second
	MaxTimeout     = 10 * time.Minute
	DefaultOutput  = 8 << 20
)

//go:embed bash.md
var description string

// Spec is one command to run.
type Spec struct {
	// Command is a line for the shell.
	Command string
	// Dir is the absolute working directory.
	Dir string
	// Timeout bounds the run; it is positive.
	Timeout time.Duration
	// MaxOutput bounds Outcome.Output in bytes.
	MaxOutput int
}

// Outcome is what a command has come to.
type Outcome struct {
	// Output is standard output and standard error as they came. If they were longer
	// than Spec.MaxOutput, a DroppedLine stands for their middle. It need not be valid
	// UTF-8.
	Output string
	// Total is the number of bytes that the command wrote.
	Total int64
	// Code is the exit code, -1 if a signal ended the command; Signal is its name.
	Code   int
	Signal string
	// TimedOut says that the command was ended because its time was over.
	TimedOut bool
	// Ended is how many background processes were ended with the shell.
	Ended int
	// Took is how long the command ran.
	Took time.Duration
}

// DroppedLine is the line that an Executor puts in place of n bytes of output that it
// dropped because a command printed more than most.
func DroppedLine(n, most int) string {
	return fmt.Sprintf("\n[... %d bytes of output are lost here: the command printed more than %d bytes, the most that are kept of it ...]\n", n, most)
}

// Executor runs commands somewhere.
type Executor interface {
	// Name names the executor to people, e.g. "local".
	Name() string
	// Run runs one command to its end. When ctx ends or the time is over, the command
	// and everything it started is ended before Run returns. A command that fails is an
	// Outcome; an error says that the command could not be run or was cancelled: then
	// it wraps ctx's cause, and the Outcome holds what there is. Run may be called
	// concurrently.
	Run(ctx context.Context, spec Spec) (Outcome, error)
}

// Options configure the tool. The zero value is usable.
type Options struct {
	// DefaultTimeout is the time of a call that asks for none; 0 is DefaultTimeout.
	// MaxTimeout is the longest that a call may ask for; 0 is MaxTimeout.
	DefaultTimeout time.Duration
	MaxTimeout     time.Duration
	// MaxOutput bounds the output in bytes; 0 is DefaultOutput.
	MaxOutput int
}

func (o Options) withDefaults() (Options, error) {
	if o.DefaultTimeout < 0 || o.MaxTimeout < 0 || o.MaxOutput < 0 {
		return o, errors.New("define the shell tool: a negative bound")
	}
	if o.MaxTimeout == 0 {
		o.MaxTimeout = MaxTimeout
	}
	if o.DefaultTimeout == 0 {
		o.DefaultTimeout = min(DefaultTimeout, o.MaxTimeout)
	}
	if o.MaxOutput == 0 {
		o.MaxOutput = DefaultOutput
	}
	if o.DefaultTimeout > o.MaxTimeout {
		return o, fmt.Errorf("define the shell tool: the default timeout %v is above the longest one, %v", o.DefaultTimeout, o.MaxTimeout)
	}
	return o, nil
}

// Slot holds the one executor of a composition. The zero value is empty. It may be
// used concurrently.
type Slot struct {
	mu sync.Mutex // guards following

	mounted Executor
}

// MountedError says that a second executor was mounted (core T32).
type MountedError struct {
	Mounted, Refused string // names of executors
}

func (e *MountedError) Error() string {
	return fmt.Sprintf("mount shell executor %q: %q is mounted already, and there can be only one", e.Refused, e.Mounted)
}

// Mount puts e into the slot. A second mount is refused with a *MountedError that
// names both (core T32). unmount empties the slot again; it may be called more
// than once.
func (s *Slot) Mount(e Executor) (unmount func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mounted != nil {
		return nil, &MountedError{Mounted: s.mounted.Name(), Refused: e.Name()}
	}
	s.mounted = e
	var once sync.Once
	return func() {
		once.Do(func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.mounted = nil
		})
	}, nil
}

// Mounted returns the executor in the slot, or nil.
func (s *Slot) Mounted() Executor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mounted
}

// Tools returns the definition of bash over an executor. The tool is neither
// read-only nor safe to run beside others.
func Tools(e Executor, opts Options) ([]tool.Definition, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &bash{executor: e, opts: opts}
	return []tool.Definition{{
		Name:        ToolName,
		Description: strings.TrimSpace(description),
		Parameters: fmt.Appendf(nil, `{"type":"object","properties":{`+
			`"command":{"type":"string","description":"The command line for the shell."},`+
			`"timeout_ms":{"type":"integer","minimum":1,"maximum":%d,"description":"How long the command may take, in milliseconds."}},`+
			`"required":["command"],"additionalProperties":false}`, opts.MaxTimeout.Milliseconds()),
		Execute:  b.execute,
		Describe: describe,
	}}, nil
}

type bash struct {
	executor Executor
	opts     Options
}

type arguments struct {
	Command   string `json:"command"`
	TimeoutMS int64  `json:"timeout_ms"`
}

func (b *bash) execute(ctx context.Context, call *tool.Call) (any, error) {
	var args arguments
	if err := json.Unmarshal(call.Args, &args); err != nil {
		return nil, tool.Errorf(tool.CodeInvalidArgs, "bash: %w", err)
	}
	if strings.TrimSpace(args.Command) == "" {
		return nil, tool.Errorf(tool.CodeInvalidArgs, "bash: the command is empty")
	}
	if call.Cwd == "" {
		return nil, tool.Errorf(tool.CodeToolFailed, "bash: this session has no working directory")
	}
	spec := Spec{Command: args.Command, Dir: call.Cwd, Timeout: b.opts.DefaultTimeout, MaxOutput: b.opts.MaxOutput}
	if args.TimeoutMS > 0 {
		spec.Timeout = min(time.Duration(args.TimeoutMS)*time.Millisecond, b.opts.MaxTimeout)
	}
	out, err := b.executor.Run(ctx, spec)
	call.SetMeta(meta(&out))
	if err != nil {
		return nil, fmt.Errorf("bash: %w", err)
	}
	if out.TimedOut {
		return nil, tool.Errorf(tool.CodeTimeout, "bash: the command was ended because it took longer than %v\n%s", spec.Timeout, report(&out))
	}
	return report(&out), nil
}

// report is what the model reads.
func report(o *Outcome) string {
	var b strings.Builder
	b.Grow(len(o.Output) + 128) // once: it may be long
	b.WriteString(o.Output)
	if o.Output != "" && !strings.HasSuffix(o.Output, "\n") {
		b.WriteByte('\n')
	}
	switch {
	case o.TimedOut:
		if o.Output == "" {
			b.WriteString("[it had printed nothing]\n")
		}
	case o.Signal != "":
		fmt.Fprintf(&b, "[ended by signal %s]\n", o.Signal)
	case o.Code != 0:
		fmt.Fprintf(&b, "[exit code %d]\n", o.Code)
	case o.Output == "":
		b.WriteString("[exit code 0, no output]\n")
	}
	if o.Ended > 0 && !o.TimedOut {
		fmt.Fprintf(&b, "[background processes ended with the shell: %d]\n", o.Ended)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func meta(o *Outcome) []byte {
	data, err := json.Marshal(struct {
		ExitCode   int    `json:"exitCode"`
		Signal     string `json:"signal,omitempty"`
		TimedOut   bool   `json:"timedOut,omitempty"`
		Bytes      int64  `json:"bytes"`
		DurationMS int64  `json:"durationMs"`
	}{o.Code, o.Signal, o.TimedOut, o.Total, o.Took.Milliseconds()})
	if err != nil {
		// Only numbers, a flag and a signal's name: it cannot fail.
		return []byte(`null`)
	}
	return data
}

// describe is the first line of the command, shortened.
func describe(raw []byte) string {
	var args arguments
	if json.Unmarshal(raw, &args) != nil {
		return ""
	}
	line, _, more := strings.Cut(strings.TrimSpace(args.Command), "\n")
	if r := []rune(line); len(r) > 80 {
		line, more = string(r[:80]), true
	}
	if more {
		line += "…"
	}
	return "$ " + line
}
