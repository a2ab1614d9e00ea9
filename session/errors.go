package session

import (
	"errors"
	"fmt"
)

// Errors of stores and registries.
var (
	// ErrNotFound: no session has this id.
	ErrNotFound = errors.New("session not found")
	// ErrExists: a session of this id exists already, live or stored.
	ErrExists = errors.New("session exists already")
	// ErrClosed: the store, writer or session was closed.
	ErrClosed = errors.New("closed")
	// ErrNotLive: the operation needs a session that was entered in the registry.
	ErrNotLive = errors.New("session is not live")
	// ErrOpenTurn: the operation needs a session without an open turn.
	ErrOpenTurn = errors.New("session has an open turn")
	// ErrUnknownOutcome: a write failed and the store cannot tell what it holds, so
	// the events that were to be stored may or may not be. The next write settles it.
	ErrUnknownOutcome = errors.New("the outcome of the write is unknown")
	// ErrInUse: a deletion was refused because a live process owns a
	// session of that tree, or because another session needs this one.
	ErrInUse = errors.New("session tree is in use by a live process")
	// ErrWithdrawn: the session was withdrawn, so nothing of it is stored.
	ErrWithdrawn = errors.New("session was withdrawn")
)

// named words whose fault it is; a log whose header cannot be read has no id.
func named(id ID) string {
	if id == "" {
		return "the log"
	}
	return "session " + string(id)
}

// UnsavedError says that a session was closed with events that could not be stored: they
// are lost. Nothing else went wrong with it. Its text is that of Err.
type UnsavedError struct {
	ID  ID
	Err error
}

func (e *UnsavedError) Error() string { return e.Err.Error() }

func (e *UnsavedError) Unwrap() error { return e.Err }

// CorruptError says that stored bytes contradict the contract (core D11).
type CorruptError struct {
	ID  ID
	Seq int64 // the event concerned, or -1
	Err error
}

func (e *CorruptError) Error() string {
	if e.Seq >= 0 {
		return fmt.Sprintf("%s is corrupt at seq %d: %v", named(e.ID), e.Seq, e.Err)
	}
	return fmt.Sprintf("%s is corrupt: %v", named(e.ID), e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// UnsupportedError says that a log is well formed but from another build: a
// format version or a required event type that this one does not know (core S7, D11).
type UnsupportedError struct {
	ID  ID
	Seq int64 // the event concerned, or -1
	Msg string
}

func (e *UnsupportedError) Error() string {
	if e.Seq >= 0 {
		return fmt.Sprintf("%s is not supported at seq %d: %s", named(e.ID), e.Seq, e.Msg)
	}
	return fmt.Sprintf("%s is not supported: %s", named(e.ID), e.Msg)
}

// OwnedError refuses an Open: another live process owns a session of the tree.
// Code is OWNED_ELSEWHERE on the seam.
type OwnedError struct {
	ID    ID
	Owner Owner
}

func (e *OwnedError) Error() string {
	return fmt.Sprintf("session %s is owned by %s", e.ID, e.Owner)
}

// FencedError refuses an append: ownership was taken by another process. The
// writer can never append again; its holder cancels the whole tree.
type FencedError struct {
	ID ID
}

func (e *FencedError) Error() string {
	return fmt.Sprintf("session %s: ownership was taken over by another process", e.ID)
}

// ConflictError refuses an append whose expected head is not the stored one.
type ConflictError struct {
	ID         ID
	Want, Head int64
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("session %s: append expected head %d but the log stands at %d", e.ID, e.Want, e.Head)
}

// PrefixError refuses a Create whose prefix owner has not stored that much.
type PrefixError struct {
	ID     ID
	Prefix PrefixRef
	Head   int64 // what the owner has; -1 if it does not exist
}

func (e *PrefixError) Error() string {
	return fmt.Sprintf("session %s: prefix of %d events of %s is not stored (it has %d)", e.ID, e.Prefix.Len, e.Prefix.ID, e.Head)
}

// InvariantError is an append or a seed that breaks a rule of the log (core I4–I6, I11, I14).
type InvariantError struct {
	ID   ID
	Seq  int64
	Type Type
	Rule string // the id of the rule, e.g. "I4"
	Msg  string
}

func (e *InvariantError) Error() string {
	return fmt.Sprintf("session %s: %s at seq %d breaks %s: %s", e.ID, e.Type, e.Seq, e.Rule, e.Msg)
}
