package job

import (
	"context"
	"errors"
	"fmt"
)

// State is where a job stands.
type State string

// The states (core D43). Running and Stopping count against the owner's bound.
const (
	Running   State = "running"
	Stopping  State = "stopping" // killed, and not over yet
	Completed State = "completed"
	Killed    State = "killed"
	Failed    State = "failed"
)

// Ended reports whether the state is final.
func (s State) Ended() bool { return s != Running && s != Stopping }

// Outcome is what a job ends with. State is Completed, Killed or Failed; Text is the
// result, or why there is none.
type Outcome struct {
	State State
	Text  string
}

// Spec is a job to be started.
type Spec struct {
	// Kind begins the job's id: lower-case letters, digits and hyphens.
	Kind string
	// Label is a short name for people and the model.
	Label string
	// Run does the work and returns when everything that it held is released. ctx
	// ends when the job is killed, with a *KillError as its cause; it is no tool
	// call's context. A panic makes the job Failed.
	Run func(ctx context.Context) Outcome
}

// Info is what there is to know of a job at one moment. Text is empty until it ended.
type Info struct {
	ID    string
	Kind  string
	Label string
	State State
	Text  string
}

// KillError is the cause of the end of a killed job's context.
type KillError struct{ Reason string }

func (e *KillError) Error() string { return e.Reason }

// DefaultReason is the reason of a kill that gives none.
const DefaultReason = "the background job was killed"

// ownerGone is the reason of the kill that comes with the owner's disposal.
const ownerGone = "the agent that started this background job has ended"

// LimitError refuses a job because its owner has Limit that are not over.
type LimitError struct{ Limit int }

func (e *LimitError) Error() string {
	return fmt.Sprintf("limit reached: %d background jobs are not over, the most that you may have at once", e.Limit)
}

// UnknownError says that an owner has no job of an id; Why is for the model to read.
type UnknownError struct{ ID, Why string }

func (e *UnknownError) Error() string { return e.Why }

// Errors of Start.
var (
	// ErrClosing: the registry takes no more jobs.
	ErrClosing = errors.New("no background job is started any more: the process is ending")
	// ErrNoOwner: a job needs an owner that is live in the registry's agents.
	ErrNoOwner = errors.New("a background job needs a live agent that owns it")
)
