package proc

import (
	"io"
	"os"
	"sync"
	"time"
)

// plumbing is the pipes of one process.
type plumbing struct {
	child  []*os.File // the child's ends, closed once it runs
	ours   []*os.File // our ends, closed if it never runs
	copies []copying
	done   sync.WaitGroup // of the copies
}

type copying struct {
	from *os.File
	to   io.Writer
}

func (pl *plumbing) close(files ...*os.File) {
	for _, f := range files {
		_ = f.Close() // a pipe that was never used: there is nothing to lose
	}
}

func (p *Process) plumb(cfg *Config) (pl *plumbing, err error) {
	pl = &plumbing{}
	defer func() {
		if err != nil {
			pl.close(pl.child...)
			pl.close(pl.ours...)
		}
	}()
	outlet := func() (r, w *os.File, err error) {
		if r, w, err = os.Pipe(); err == nil {
			pl.child, pl.ours = append(pl.child, w), append(pl.ours, r)
		}
		return r, w, err
	}
	if cfg.StdinPipe {
		r, w, err := os.Pipe()
		if err != nil {
			return pl, err
		}
		pl.child, pl.ours = append(pl.child, r), append(pl.ours, w)
		p.cmd.Stdin, p.stdin = r, w
	}
	if cfg.StdoutPipe || cfg.Stdout != nil {
		r, w, err := outlet()
		if err != nil {
			return pl, err
		}
		p.cmd.Stdout = w
		if cfg.StdoutPipe {
			p.stdout = r
		} else {
			pl.copies = append(pl.copies, copying{r, cfg.Stdout})
		}
	}
	switch cfg.Stderr {
	case nil:
	case cfg.Stdout:
		p.cmd.Stderr = p.cmd.Stdout // one pipe keeps the order of the lines
	default:
		r, w, err := outlet()
		if err != nil {
			return pl, err
		}
		p.cmd.Stderr = w
		pl.copies = append(pl.copies, copying{r, cfg.Stderr})
	}
	return pl, nil
}

// copy begins to hand the output to its writers.
func (pl *plumbing) copy() {
	for _, c := range pl.copies {
		pl.done.Go(func() {
			// Reading ends with the tree, or with drain's deadline. An error of the writer
			// must not block the child, so the rest is read and dropped.
			if _, err := io.Copy(c.to, c.from); err != nil {
				_, _ = io.Copy(io.Discard, c.from)
			}
		})
	}
}

// drain waits until the output of a tree that has ended is handed over.
func (pl *plumbing) drain() {
	for _, c := range pl.copies {
		_ = c.from.SetReadDeadline(time.Now().Add(drainBound)) // pipes take deadlines
	}
	pl.done.Wait()
	for _, c := range pl.copies {
		_ = c.from.Close() // read to the end
	}
}
