package proc

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// startBound is how long a supervisor may take to start its process. It only ends
// the wait for a program that does not become a supervisor at all.
const startBound = 30 * time.Second

// The descriptors of a supervisor, beside the input and output of its process.
const (
	ordersFD = 3
	statusFD = 4
)

// spec is the first line of a supervisor's orders. Bytes, since JSON would change
// text that is not UTF-8.
type spec struct {
	Path []byte   `json:"path"`
	Args [][]byte `json:"args"` // with the program
	Dir  []byte   `json:"dir"`
	Env  [][]byte `json:"env"`
}

// status is a line that a supervisor says: first Started or Failed, then Exit, then
// Gone, which is its last.
type status struct {
	Started *started `json:"started,omitempty"`
	Failed  *failed  `json:"failed,omitempty"`
	Exit    *Exit    `json:"exit,omitempty"`
	Gone    *gone    `json:"gone,omitempty"`
}

type started struct {
	Pid   int    `json:"pid"`
	Birth uint64 `json:"birth"`
}

// failed is an *os.PathError, or just a text.
type failed struct {
	Op    string        `json:"op,omitempty"`
	Path  []byte        `json:"path,omitempty"`
	Errno syscall.Errno `json:"errno,omitempty"`
	Text  string        `json:"text,omitempty"`
}

type gone struct {
	Left  int   `json:"left"`            // see Exit.Left
	Stuck []int `json:"stuck,omitempty"` // what could not be killed
}

func (f *failed) err() error {
	if f.Errno != 0 {
		return &os.PathError{Op: f.Op, Path: string(f.Path), Err: f.Errno}
	}
	return errors.New(f.Text)
}

// order sends an order. It cannot block, since a supervisor takes every order, or is
// gone, and then the reader of its status knows. One that is stopped is woken for it.
func (p *Process) order(o byte) {
	_, _ = p.orders.Write([]byte{o})
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
}

// runSupervised is runAlone with a supervisor between: it starts one, lets it start
// the process, and follows what it says. When the supervisor is killed, which is
// not in its nature, what it kept is swept from here, as well as that goes.
func (p *Process) runSupervised(pl *plumbing, started chan<- error) {
	said, err := p.startSupervisor(pl)
	if err != nil {
		pl.close(pl.ours...)
		started <- err
		return
	}
	pl.copy()
	started <- nil

	exited := false
	var end *gone
	for end == nil {
		var st status
		if err = said.next(&st); err != nil {
			break
		}
		switch {
		case st.Exit != nil && !exited:
			p.exit, exited = *st.Exit, true
			close(p.exited)
			select {
			case <-p.closing: // Close gives the rest its grace
			default:
				p.order(orderKill)
			}
		case st.Gone != nil:
			end = st.Gone
		}
	}
	_ = p.orders.Close() // never read to the end
	_ = said.file.Close()
	waitErr := p.cmd.Wait()
	if !exited {
		p.exit = Exit{Code: -1}
		close(p.exited)
	}
	if end != nil {
		p.exit.Left = end.Left
		if len(end.Stuck) > 0 {
			p.exitErr = stillThere(p.pid, end.Stuck)
		}
	} else {
		left, sweepErr := p.sweep()
		p.exit.Left = left
		p.exitErr = errors.Join(fmt.Errorf("process %d: its supervisor ended before it (%w); what was orphaned may be left",
			p.pid, errors.Join(err, waitErr)), sweepErr)
	}
	pl.drain()
	close(p.done)
}

// startSupervisor starts the supervisor and waits until it has started the process.
func (p *Process) startSupervisor(pl *plumbing) (said *statuses, err error) {
	defer func() { pl.close(pl.child...) }()
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	pl.child, p.orders = append(pl.child, theirs), ours
	heard, speak, err := os.Pipe()
	if err != nil {
		_ = ours.Close() // never used
		return nil, err
	}
	pl.child = append(pl.child, speak)
	said = &statuses{file: heard, r: bufio.NewReader(heard)}
	defer func() {
		if err != nil {
			_, _ = ours.Close(), heard.Close() // what they told is in the error
		}
	}()

	first, err := json.Marshal(spec{Path: []byte(p.cmd.Path), Args: toBytes(p.cmd.Args), Dir: []byte(p.cmd.Dir), Env: toBytes(p.cmd.Env)})
	if err != nil {
		return nil, err
	}
	p.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{os.Args[0], supervisorArg, p.cmd.Path}, Env: supervisorEnviron(),
		Stdin: p.cmd.Stdin, Stdout: p.cmd.Stdout, Stderr: p.cmd.Stderr,
		ExtraFiles: []*os.File{theirs, speak}, // ordersFD and statusFD
		// A supervisor that is stopped is woken for its last work.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGCONT},
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start its supervisor: %w", err)
	}
	pl.close(theirs, speak) // or its end would not be seen here
	deadline := time.Now().Add(startBound)
	err = errors.Join(ours.SetDeadline(deadline), heard.SetDeadline(deadline))
	if err == nil {
		_, err = ours.Write(append(first, '\n'))
	}
	var st status
	if heardErr := said.next(&st); heardErr != nil {
		err = errors.Join(err, heardErr)
	}
	switch {
	case err != nil:
		err = fmt.Errorf("its supervisor does not start it: %w", err)
	case st.Failed != nil:
		err = st.Failed.err()
	case st.Started == nil:
		err = errors.New("its supervisor does not say that it started it")
	default:
		p.pid, p.birth = st.Started.Pid, st.Started.Birth
		err = errors.Join(ours.SetDeadline(time.Time{}), heard.SetDeadline(time.Time{}))
	}
	if err != nil {
		_ = ours.Close() // a supervisor that runs ends its tree
		if st.Failed == nil && p.pid == 0 {
			_ = p.cmd.Process.Kill() // it may have ended
		}
		_ = p.cmd.Wait() // its exit code says less than err
		return nil, err
	}
	return said, nil
}

// statuses reads what a supervisor says.
type statuses struct {
	file *os.File
	r    *bufio.Reader
}

func (s *statuses) next(st *status) error {
	line, err := s.r.ReadBytes('\n')
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return json.Unmarshal(line, st)
}

// supervisorEnviron returns the environment of a supervisor, which is not that of
// its process: it has no mark of the tree, only those of the trees around.
func supervisorEnviron() []string {
	all := os.Environ()
	env := Scrub(all)
	for _, entry := range all {
		if strings.HasPrefix(entry, markVar+"=") {
			env = append(env, entry)
		}
	}
	return env
}

func toBytes(in []string) [][]byte {
	out := make([][]byte, len(in))
	for i, s := range in {
		out[i] = []byte(s)
	}
	return out
}

func toStrings(in [][]byte) []string {
	out := make([]string, len(in))
	for i, b := range in {
		out[i] = string(b)
	}
	return out
}
