package compact

// Code says what kept a compaction from being made (core D41).
type Code string

// The codes.
const (
	// CodeBusy: the agent has a turn under way, or is gone.
	CodeBusy Code = "busy"
	// CodeCancelled: the context ended.
	CodeCancelled Code = "cancelled"
	// CodeChanged: the conversation was replaced by somebody else meanwhile.
	CodeChanged Code = "changed"
	// CodeSummary: the model gave no summary.
	CodeSummary Code = "summary"
	// CodeCommit: the log refused what was to be written.
	CodeCommit Code = "commit"
	// CodePersistence: what must be stored before the model is asked, or before Compact
	// returns, could not be stored.
	CodePersistence Code = "persistence"
	// CodeNothing: there is nothing that could be left out. The conversation is short, or
	// all of it belongs to what must stay.
	CodeNothing Code = "nothing"
)

// Error is a compaction that failed. The conversation is as it was before, or as far
// as an earlier part of the same compaction brought it.
type Error struct {
	Code Code
	Err  error // never nil
}

func (e *Error) Error() string { return "compaction (" + string(e.Code) + "): " + e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }
