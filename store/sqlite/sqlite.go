// Package sqlite keeps sessions in one SQLite file that several processes may
// have open at once: the command, a server and a second terminal.
//
// One goroutine of the store owns the write connection. It takes all waiting
// writes into one transaction, so that the steps of concurrent sessions share a
// sync (group commit); a refused request never fails the others. Readers have
// connections of their own that cannot write. A batch of events is one row, as
// it was appended.
//
// The file and its companions are readable by their owner only. Floor 6.
package sqlite

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	driver "modernc.org/sqlite"

	"github.com/offshoot-dev/offshoot/session"
)

// ErrReadOnly refuses a write on a store that was opened with OpenReadOnly.
var ErrReadOnly = errors.New("store was opened for reading only")

// Sync says when a commit is on disk.
type Sync uint8

const (
	// Full syncs every commit before it returns: the default, and the only
	// setting under which accepted means durable.
	Full Sync = iota
	// Normal syncs at checkpoints only: a power cut may lose the last commits,
	// the end of a process loses none. It is for test suites.
	Normal
)

// Options of Open. The zero value is what a product uses.
type Options struct {
	Synchronous Sync
	// TakeoverAge is the age of a heartbeat from which another process may take
	// an owner's sessions; 0 is 15 s. All processes on a file must use the same.
	// An owner's own deadline is two thirds of it.
	TakeoverAge time.Duration
	// Heartbeat is the interval at which an owner that holds sessions renews; 0
	// is a third of TakeoverAge.
	Heartbeat time.Duration
	// BusyTimeout bounds the wait for another process's transaction; 0 is 10 s.
	BusyTimeout time.Duration
	// Socket is the control socket's address that the owner row tells others.
	Socket string
	// Now is the clock; nil is time.Now. Given another one, owners of this host are
	// judged by it alone (see Store.alive).
	Now func() time.Time

	// uptime is how long the host is up; nil is not known.
	uptime func() time.Duration
}

func (o *Options) fill() {
	if o.TakeoverAge <= 0 {
		o.TakeoverAge = 15 * time.Second
	}
	if o.Heartbeat <= 0 {
		o.Heartbeat = o.TakeoverAge / 3
	}
	if o.BusyTimeout <= 0 {
		o.BusyTimeout = 10 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
		if o.uptime == nil {
			o.uptime = hostUptime
		}
	}
	if o.uptime == nil {
		o.uptime = func() time.Duration { return 0 }
	}
}

// Stats counts what the store wrote since it was opened.
type Stats struct {
	// Commits is the number of durable transactions: each cost one sync.
	Commits int64
	// Requests is the number of writes that those transactions carried.
	Requests int64
	// Unsynced is the number of transactions that needed no sync of their own:
	// heartbeats, and sessions given up.
	Unsynced int64
}

// Store is a session.Store in a file. It is safe for concurrent use.
type Store struct {
	path  string
	opt   Options
	owner session.Owner // Heartbeat is unset; lastBeat has it
	ctx   context.Context
	ro    bool

	reads *readPool
	// noUptime: the file is from a time when owners did not say how long their host
	// was up, and this store may not change that.
	noUptime bool

	mu       sync.Mutex // guards queue, and the setting of closed
	closed   atomic.Bool
	queue    []*request
	inflight sync.WaitGroup // calls between enter and leave
	wake     chan struct{}  // capacity 1: the queue is not empty
	stop     chan struct{}
	worker   sync.WaitGroup

	lastBeat atomic.Pointer[time.Time]
	// doubt: a commit failed, and none has succeeded since. See settle.
	doubt    atomic.Bool
	commits  atomic.Int64
	requests atomic.Int64
	unsynced atomic.Int64

	// Only the worker touches these, and Close after it joined the worker.
	write *writeConn
	held  map[int64]*Writer

	closeOnce sync.Once
	closeErr  error
}

// Open opens the store in the file at path for reading and writing, and creates
// it if need be: folders with mode 0700, the file with 0600. It switches
// commits of this process to fdatasync where the platform has it, as the
// distributions' builds of SQLite do: as durable, and half as long.
//
// ctx bounds nothing but the opening. Errors are one line that names the path:
// *FormatError for a file that is no store of this build, *Error otherwise. The
// caller must Close the store.
func Open(ctx context.Context, path string, opt Options) (*Store, error) {
	opt.fill()
	path, err := prepareFile(path)
	if err != nil {
		return nil, err
	}
	if _, err := driver.Fdatasync(true); err != nil && !errors.Is(err, driver.ErrFdatasyncUnavailable) {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	s := newStore(ctx, path, opt)
	if s.write, err = s.openWrite(); err != nil {
		return nil, err
	}
	s.reads = newReadPool(s.ctx, path, "ro", opt.BusyTimeout)
	s.worker.Go(s.work)
	return s, nil
}

// OpenReadOnly opens an existing store for reading. It makes no file, registers
// no owner and changes nothing; Create, Open and Delete fail with ErrReadOnly.
// A missing or still empty store is an error that is fs.ErrNotExist. It can fail
// on a read-only file system if the store was not closed properly before.
func OpenReadOnly(ctx context.Context, path string, opt Options) (*Store, error) {
	opt.fill()
	path, mode, err := existingFile(path)
	if err != nil {
		return nil, err
	}
	s := newStore(ctx, path, opt)
	s.ro = true
	s.reads = newReadPool(s.ctx, path, mode, opt.BusyTimeout)
	c, err := s.reads.get(ctx)
	if err == nil {
		if err = verifyFormat(s.ctx, c.conn, path); err == nil {
			var has bool
			has, err = hasUptime(s.ctx, c.conn)
			s.noUptime = !has
		}
		s.reads.put(c, err)
	}
	if err != nil {
		_ = s.reads.close() // the opening failed; that is the error to tell
		return nil, openError(path, err)
	}
	return s, nil
}

func newStore(ctx context.Context, path string, opt Options) *Store {
	return &Store{
		path: path,
		opt:  opt,
		ctx:  context.WithoutCancel(ctx),
		owner: session.Owner{
			ID: rand.Text(), Host: hostID(), PID: os.Getpid(), Started: processStart(),
			Socket: opt.Socket,
		},
		wake: make(chan struct{}, 1),
		stop: make(chan struct{}),
		held: map[int64]*Writer{},
	}
}

// Path returns the file's absolute path.
func (s *Store) Path() string { return s.path }

// Owner returns this process as it stands in the owner table; Heartbeat is the
// last one that was stored, or zero.
func (s *Store) Owner() session.Owner {
	o := s.owner
	if t := s.lastBeat.Load(); t != nil {
		o.Heartbeat = *t
	}
	return o
}

// Stats returns the counts so far.
func (s *Store) Stats() Stats {
	return Stats{Commits: s.commits.Load(), Requests: s.requests.Load(), Unsynced: s.unsynced.Load()}
}

// Close implements session.Store. It lets calls that are under way end, gives
// everything up and joins the store's goroutine; ctx bounds none of that. Later
// calls return the same result.
func (s *Store) Close(context.Context) error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closed.Store(true)
		s.mu.Unlock()
		s.inflight.Wait()
		close(s.stop)
		s.worker.Wait()
		var errs []error
		if s.lastBeat.Load() != nil {
			errs = append(errs, s.releaseAll())
		}
		// Readers first: they would keep the write-ahead log from being folded in.
		errs = append(errs, s.reads.close())
		if s.write != nil {
			s.write.fold()
			errs = append(errs, s.write.close())
		}
		if err := errors.Join(errs...); err != nil {
			s.closeErr = fmt.Errorf("close store %s: %w", s.path, err)
		}
	})
	return s.closeErr
}

// enter counts a call in, so that Close waits for it. It reports false once the
// store was closed.
func (s *Store) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return false
	}
	s.inflight.Add(1)
	return true
}

func (s *Store) leave() { s.inflight.Done() }

var _ session.Store = (*Store)(nil)
