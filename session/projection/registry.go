package projection

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/offshoot-dev/offshoot/session"
)

// Value is the state of one unit. It is immutable and comparable: a pointer, as a
// rule. Whoever receives one must not modify what it points to.
type Value any

// Unit describes one value that is folded over a log (core D24). Its functions
// are pure. They run under logs' locks: they must be quick and call nothing back.
type Unit struct {
	// Key names the unit and its checkpoints.
	Key string
	// Version changes with the meaning or the encoding of the value; a checkpoint
	// of another version is not read.
	Version int
	// Types are the event types that Apply is called for; nil means all.
	Types []session.Type
	// Init returns the value before the session's first own event.
	Init func(h *session.Header) Value
	// Apply returns the value after e; the same value if e changes nothing, which
	// is how a change is told. p is the event's typed payload, a *session.Opaque
	// for types that this product does not interpret.
	Apply func(v Value, e *session.Event, p session.Payload) Value
	// Append appends the value as JSON, whole: Parse of it and Apply of the events
	// behind it must lead to what Apply alone leads to.
	Append func(buf []byte, v Value) []byte
	// Parse reads what Append wrote.
	Parse func(h *session.Header, data []byte) (Value, error)
	// Final reports that no later event matters any more to who reads the value
	// from a checkpoint, so the log behind it is not read. nil means never.
	Final func(h *session.Header, v Value) bool
}

// maxUnits bounds a registry, since cells keep their marks in a word.
const maxUnits = 64

// VersionError refuses a unit whose key is registered with another version (core D26).
type VersionError struct {
	Key        string
	Have, Want int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("projection unit %q is registered with version %d, not %d", e.Key, e.Have, e.Want)
}

// ErrUnknownUnit: no unit of that key is registered.
var ErrUnknownUnit = errors.New("projection unit is not registered")

// Registry holds units. It is safe for concurrent use.
type Registry struct {
	mu   sync.Mutex // held while set is replaced; guards refs
	refs map[string]int
	set  atomic.Pointer[set] // a set is never changed
}

// NewRegistry returns a registry with the given units, as a rule BuiltIn().
// Errors are those of Register.
func NewRegistry(units ...Unit) (*Registry, error) {
	r := &Registry{refs: map[string]int{}}
	r.set.Store(newSet(nil))
	for _, u := range units {
		if _, err := r.Register(u); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Register adds a unit for sessions that are prepared from now on and for reads.
// A unit of the same key and version that is registered already is kept and
// counted: it leaves when every registration was taken back (core D26). The
// returned function takes this one back; it is idempotent.
//
// Errors: *VersionError; a unit that lacks a key or a function; too many units.
func (r *Registry) Register(u Unit) (unregister func(), err error) {
	if u.Key == "" || u.Init == nil || u.Apply == nil || u.Append == nil || u.Parse == nil {
		return nil, fmt.Errorf("register projection unit %q: it needs a key, Init, Apply, Append and Parse", u.Key)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.current()
	i := now.index(u.Key)
	switch {
	case i >= 0 && now.units[i].Version != u.Version:
		return nil, &VersionError{Key: u.Key, Have: now.units[i].Version, Want: u.Version}
	case i < 0 && len(now.units) == maxUnits:
		return nil, fmt.Errorf("register projection unit %q: there are %d units already", u.Key, maxUnits)
	case i < 0:
		u.Types = slices.Clone(u.Types)
		r.set.Store(newSet(append(slices.Clone(now.units), u)))
	}
	r.refs[u.Key]++
	return sync.OnceFunc(func() { r.release(u.Key) }), nil
}

func (r *Registry) release(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refs[key]--; r.refs[key] > 0 {
		return
	}
	delete(r.refs, key)
	r.set.Store(newSet(slices.DeleteFunc(r.Units(), func(u Unit) bool { return u.Key == key })))
}

// Units returns the registered units in order of registration.
func (r *Registry) Units() []Unit { return slices.Clone(r.current().units) }

func (r *Registry) current() *set { return r.set.Load() }

func (r *Registry) unit(key string) (*Unit, error) {
	s := r.current()
	if i := s.index(key); i >= 0 {
		return &s.units[i], nil
	}
	return nil, fmt.Errorf("projection unit %q: %w", key, ErrUnknownUnit)
}

// set is an immutable list of units with the units of each event type.
type set struct {
	units  []Unit
	byType map[session.Type][]int
	every  []int // those that want all types

	scratch *sync.Pool // of *[]byte, what values are encoded into
}

func newSet(units []Unit) *set {
	s := &set{units: units, byType: map[session.Type][]int{}, scratch: &sync.Pool{New: func() any { return new([]byte) }}}
	for i := range units {
		if units[i].Types == nil {
			s.every = append(s.every, i)
		}
		for _, t := range units[i].Types {
			s.byType[t] = nil
		}
	}
	for t := range s.byType {
		for i := range units {
			if units[i].concerns(t) {
				s.byType[t] = append(s.byType[t], i)
			}
		}
	}
	return s
}

func (s *set) index(key string) int {
	return slices.IndexFunc(s.units, func(u Unit) bool { return u.Key == key })
}

// of returns the units that an event type concerns.
func (s *set) of(t session.Type) []int {
	if list, ok := s.byType[t]; ok {
		return list
	}
	return s.every
}

func (u *Unit) concerns(t session.Type) bool {
	return u.Types == nil || slices.Contains(u.Types, t)
}

// step is Apply with panics contained: a unit that was written elsewhere must not
// take a log down. ok is false after a panic.
func (u *Unit) step(v Value, e *session.Event, p session.Payload) (next Value, err error) {
	defer func() {
		if x := recover(); x != nil {
			next, err = v, fmt.Errorf("projection unit %q panicked at seq %d: %v", u.Key, e.Seq, x)
		}
	}()
	return u.Apply(v, e, p), nil
}

// detach returns the value without the memory of the log that it was folded over: a
// string of an event that was read back is a part of a whole batch, and a listing
// keeps its values and not the logs. A value that the unit cannot read back stays.
func (u *Unit) detach(h *session.Header, v Value) Value {
	text, err := u.encode(v)
	if err != nil || string(text) == "null" {
		return v
	}
	own, err := u.parse(h, text)
	if err != nil {
		return v
	}
	return own
}

// encode is Append with panics contained.
func (u *Unit) encode(v Value) (text []byte, err error) {
	defer func() {
		if x := recover(); x != nil {
			text, err = nil, fmt.Errorf("projection unit %q panicked: %v", u.Key, x)
		}
	}()
	return u.Append(nil, v), nil
}

// parse is Parse with panics contained.
func (u *Unit) parse(h *session.Header, data []byte) (v Value, err error) {
	defer func() {
		if x := recover(); x != nil {
			v, err = nil, fmt.Errorf("projection unit %q panicked: %v", u.Key, x)
		}
	}()
	return u.Parse(h, data)
}
