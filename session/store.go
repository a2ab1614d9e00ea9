package session

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"
)

// Store is the contract between the log and a backend (design § 4, Store and
// Ownership; core D1, D11, D12, D18, D21–D23). Package storetest checks it.
//
// A Store value belongs to one process. While it is open it stands in the
// backend as one Owner with a heartbeat; a session's row names its owner and an
// epoch. A tree, all sessions of one root, has at most one owning process, and a
// session at most one writer.
//
// All methods are safe for concurrent use. Errors wrap the sentinels and types of
// this package; anything else is a failure of the backend, after which the
// outcome of a write is unknown until the head was read back.
type Store interface {
	// Create stores a new session in one transaction: its row, its first events,
	// and the ownership by this process. first starts at seq Meta.Prefix.Len,
	// contiguous; it may be empty. Events below that seq are not stored again:
	// they are those of the prefix. A store may keep the slices: neither they nor what
	// they hold are modified afterwards.
	//
	// Errors: ErrExists; *PrefixError when the prefix's owner has not stored that
	// many events; *OwnedError when another live process owns the root's tree.
	Create(ctx context.Context, h Header, meta Meta, first []Event, cells []Checkpoint) (Writer, error)

	// Open takes ownership of a stored session and returns its writer. It is
	// refused with *OwnedError while any session of that root belongs to another
	// live owner, and takes over from a dead one: at once if the owner ran on this
	// host and its process is gone, a zombie, or has another start time; otherwise
	// when its heartbeat is older than the store's takeover age (15 s). Taking over
	// raises the epoch of every session of that root held by the old owner, in the
	// same transaction.
	//
	// A second Open of a session that this process holds already is ErrExists: the
	// registry above serialises them (core D8). Errors also: ErrNotFound.
	Open(ctx context.Context, id ID) (Writer, error)

	// Inspect returns the record of a session and its whole log as of that moment,
	// prefix included. It locks, repairs and changes nothing, not even a time stamp
	// (core D12). The sequence reads lazily and may be ranged over once; a fault in
	// it is a *CorruptError and ends it. Errors: ErrNotFound.
	Inspect(ctx context.Context, id ID) (Record, iter.Seq2[Event, error], error)

	// ReadFrom yields the events from seq on, prefix included, up to the head at
	// the time of the call, under the same promises as Inspect.
	ReadFrom(ctx context.Context, id ID, seq int64) iter.Seq2[Event, error]

	// Exists reports by key whether a session is stored.
	Exists(ctx context.Context, id ID) (bool, error)

	// List returns one page of records without their events, in order of creation
	// time, then id. It changes nothing. A row that cannot be read is one record
	// with Err set, and the listing goes on (core D11).
	List(ctx context.Context, f Filter, p Page) (Listing, error)

	// Delete removes a session. It is refused with ErrInUse while a live process
	// (this one included) owns a session of its tree. Events that other sessions
	// reference as their prefix move, in the same transaction, to the referrer with
	// the longest prefix, which takes over the deleted one's own prefix; the other
	// referrers then name that one. Errors also: ErrNotFound.
	Delete(ctx context.Context, id ID) error

	// Close gives up ownership of everything this process holds, ends the
	// heartbeat and joins every goroutine of the store. Writers fail with ErrClosed
	// afterwards. It is idempotent.
	Close(ctx context.Context) error
}

// Writer is the one writer of a session.
type Writer interface {
	// Append stores events, the first of which has seq head, and is durable on
	// return; cells are stored in the same transaction. The statement that stores
	// them checks that the log stands at head (*ConflictError) and that owner and
	// epoch are still this writer's (*FencedError). All or nothing. events may be
	// empty when only cells are to be stored. A store may keep the slices.
	Append(ctx context.Context, head int64, events []Event, cells []Checkpoint) error

	// Head reads back the number of stored events, prefix included. It is how an
	// unknown outcome is settled, for good: what it does not count will not be there
	// after a crash either. Store.Exists promises the same of a row.
	Head(ctx context.Context) (int64, error)

	// Check confirms that ownership still holds. It costs nothing while the
	// owner's deadline, earlier than the takeover age, has not passed; past it, it
	// renews first (design § 4: an owner past its deadline starts no tool and no
	// model call until it has renewed). Errors: *FencedError, or a failure to renew.
	Check(ctx context.Context) error

	// Discard deletes this session, its events and its checkpoints, in one transaction
	// that checks, as Append does, that owner and epoch are still this writer's
	// (*FencedError), and gives up the ownership: the writer is closed afterwards, and
	// the id can be used again. It is refused with ErrInUse when another session has
	// this one as its prefix or is stored as its child. After an error the session and
	// its ownership are as they were, but for one of unknown outcome, which
	// Store.Exists settles.
	Discard(ctx context.Context) error

	// Close gives up ownership of this session. It is idempotent. Whatever it returns,
	// nothing can be appended any more: after a failure the store goes on trying by
	// itself, an Open by this process does not trip over what is left, and so it is
	// with what a Create or an Open of unknown outcome may have left owned.
	Close(ctx context.Context) error
}

// LossNotifier is an optional ability of a Writer: a store that learns by itself,
// through its heartbeat, that another process took the session over says so. Without
// it the loss shows at the next Append or Check.
type LossNotifier interface {
	// OnLost has fn called once when that happens, or at once if it has happened
	// already. fn comes from a goroutine of the store and does not block.
	OnLost(fn func())
}

// Meta is what a store keeps of a session beside its header.
type Meta struct {
	// Root is the id of the tree's root; the session's own id for a root.
	Root ID
	// Prefix names the events that the session shares with another; zero for none.
	Prefix PrefixRef
}

// PrefixRef names the first Len events of a stored session.
type PrefixRef struct {
	ID  ID
	Len int64
}

// Record is one stored session without its events.
type Record struct {
	Header Header
	Meta   Meta
	// Head is the number of events, prefix included. UpdatedAt is the time of the
	// last write of events in ms: checkpoints alone do not change it.
	Head      int64
	UpdatedAt int64
	// Owner is the process that holds the session, or nil. Live says whether that
	// process was alive when the record was read.
	Owner *Owner
	Live  bool
	// Cells are the stored checkpoints. Those at or past Head are ignored by readers.
	Cells []Checkpoint
	// Child is a session of OriginSubagent, other than this one, that is stored as a
	// child of it, or "" if there is none. Only a listing that asks for it with
	// Page.Children tells.
	Child ID
	// Err is set on a row of a listing that could not be read. It is a *CorruptError
	// or *UnsupportedError. Only Child and, of the header, ID, CreatedAt,
	// ParentSession and Origin are valid then: the row's place in the listing.
	Err error
}

// Cell returns the checkpoint with the given key that a reader may trust.
func (r *Record) Cell(key string) (Checkpoint, bool) {
	for _, c := range r.Cells {
		if c.Key == key && c.Seq < r.Head {
			return c, true
		}
	}
	return Checkpoint{}, false
}

// Checkpoint is the value of one projection unit as of an event (core D28).
// Value is lossless JSON. Seq is the last event folded into it and lies below
// the head that the append which carries it leaves.
type Checkpoint struct {
	Key     string
	Version int
	Seq     int64
	Value   []byte
}

// Keys of the checkpoints that a store keeps in columns of the session's own
// row, so that a listing needs no other table. Others go to a table of their own.
const (
	CellIdentity = "identity"
	CellUsage    = "usage"
	CellTitle    = "title"
	// CellState's value is an object with a string member "state".
	CellState = "state"
)

// Filter selects sessions; zero fields select all.
type Filter struct {
	// Parent selects the sessions whose header names it, but for those that are the
	// root of a tree of their own: one that was imported without its parent keeps
	// the name as lineage and is nobody's child, also when a session of that id
	// comes to be stored later.
	Parent ID
	// Parents selects the children of any of these sessions. nil selects all; an
	// empty list, nothing.
	Parents []ID
	Root    ID
	// Top selects roots of trees.
	Top    bool
	Origin string
	Cwd    string
	// IDPrefix selects the sessions whose id begins with it. What that costs depends on
	// how many there are, not on how many others.
	IDPrefix string
	// State is compared with the member "state" of the CellState checkpoint.
	State string
}

// Page bounds a listing. Limit 0 is the store's default of 1,000. After is the
// Next of the page before, or any other Position. Newest reverses the order.
// Children has each record tell whether the session has children.
type Page struct {
	Limit    int
	After    string
	Newest   bool
	Children bool
}

// Position is the place right behind a session in the order of listings, whether
// it is stored or not: what stands there does not depend on what comes or goes
// before it.
func Position(createdAt int64, id ID) string {
	return strconv.FormatInt(createdAt, 10) + ":" + string(id)
}

// ParsePosition reads what Position wrote.
func ParsePosition(s string) (createdAt int64, id ID, err error) {
	at, rest, found := strings.Cut(s, ":")
	if createdAt, err = strconv.ParseInt(at, 10, 64); !found || err != nil || rest == "" {
		return 0, "", fmt.Errorf("position %q in a listing is malformed", s)
	}
	return createdAt, ID(rest), nil
}

// Listing is one page. Next is the Position of its last record, "" on the last page.
type Listing struct {
	Records []Record
	Next    string
}

// Owner is one process that has a store open.
type Owner struct {
	// ID is unique for each opening of the store.
	ID string
	// Host is boot id and PID namespace, never a name.
	Host string
	PID  int
	// Started is the process's start time as the host tells it, opaque.
	Started string
	// Socket is the control socket's address, or "".
	Socket    string
	Heartbeat time.Time
}

func (o Owner) String() string {
	return fmt.Sprintf("process %d (owner %s)", o.PID, o.ID)
}
