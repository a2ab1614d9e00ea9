package subagent

import (
	"fmt"

	"github.com/offshoot-dev/offshoot/subagent/internal/compose"
)

// Code is the stable name of a failure of the seam (seam ERR-02).
type Code string

// The codes, each with when it is raised. What a model can do about it stands with the
// tools (package delegate).
const (
	// CodeDuplicateProvider: a provider of that name is registered already.
	CodeDuplicateProvider Code = "DUPLICATE_PROVIDER"
	// CodeNoProvider: no provider of that name is registered.
	CodeNoProvider Code = "NO_PROVIDER"
	// CodeUnsupportedCapability: the provider cannot do what the request asks for.
	CodeUnsupportedCapability Code = "UNSUPPORTED_CAPABILITY"
	// CodeContinuationUnavailable: no service is bound to the Host.
	CodeContinuationUnavailable Code = "CONTINUATION_UNAVAILABLE"
	// CodePersistenceUnavailable: sessions are not stored, so nothing can be continued.
	CodePersistenceUnavailable Code = "PERSISTENCE_UNAVAILABLE"
	// CodeDuplicateChild: a session of the id that was asked for exists.
	CodeDuplicateChild Code = "DUPLICATE_CHILD"
	// CodeNotResumable: the child is not there, not continuable, or cannot be read or built.
	CodeNotResumable Code = "NOT_RESUMABLE"
	// CodeUnauthorized: whoever calls is not the exact live agent that may do this.
	CodeUnauthorized Code = "UNAUTHORIZED"
	// CodeActivationClosing: the child, or the agent that would own it, is being closed.
	CodeActivationClosing Code = "ACTIVATION_CLOSING"
	// CodeDraining: the service, or everything below an agent above the child, is ending.
	CodeDraining Code = "DRAINING"
	// CodeParentUnavailable: the parent of a child that reports takes no message.
	CodeParentUnavailable Code = "PARENT_UNAVAILABLE"
	// CodeActivationTeardownFailed: a child is released, and something failed on the way.
	CodeActivationTeardownFailed Code = "ACTIVATION_TEARDOWN_FAILED"
	// CodeActivationSetupRevoked: a setup contribution was removed while the child was made.
	CodeActivationSetupRevoked Code = "ACTIVATION_SETUP_REVOKED"
	// CodeActivationReleaseFailed: what a setup contribution had installed is taken back,
	// and something failed on the way.
	CodeActivationReleaseFailed Code = "ACTIVATION_SETUP_RELEASE_FAILED"
	// CodeCancelled: the caller's ctx ended while subagents were listed.
	CodeCancelled Code = "CANCELLED"
	// CodeProjectionsUnavailable: there is no projection registry to list by.
	CodeProjectionsUnavailable Code = "SUBAGENT_CONTROL_PROJECTIONS_UNAVAILABLE"
	// CodeSessionStoreUnavailable: there is no session registry to list from.
	CodeSessionStoreUnavailable Code = "SUBAGENT_CONTROL_SESSION_STORE_UNAVAILABLE"
	// CodeOwnedElsewhere: another live process holds the child's tree.
	CodeOwnedElsewhere Code = "OWNED_ELSEWHERE"
	// CodeOwnershipConflict: a session of that id is live here and nobody's to continue.
	CodeOwnershipConflict Code = "OWNERSHIP_CONFLICT"
	// CodeInvalidRequest: a field of the request makes no sense.
	CodeInvalidRequest Code = "INVALID_REQUEST"
	// CodeUnsupportedSchema: the output schema uses what cannot be enforced.
	CodeUnsupportedSchema Code = "UNSUPPORTED_SCHEMA"
	// CodeStartFailed: a child in another process could not be started; the text names the
	// stage that failed and what was seen.
	CodeStartFailed Code = "START_FAILED"
	// CodeUntrustedFolder: a child in another process would work in a folder that the person
	// has not trusted.
	CodeUntrustedFolder Code = "UNTRUSTED_FOLDER"
	// CodeForbidden: what the child's product may do cannot be kept within what is permitted.
	CodeForbidden Code = "FORBIDDEN"
	// CodeLimitReached: a bound on depth, children or live agents is reached.
	CodeLimitReached Code = "LIMIT_REACHED"
)

// Error is a failure of the seam. errors.Is compares codes, so that
//
//	errors.Is(err, &subagent.Error{Code: subagent.CodeNoProvider})
//
// and the sentinels below decide by code.
type Error struct {
	Code Code
	Msg  string
	Err  error
}

func (e *Error) Error() string {
	switch {
	case e.Msg == "" && e.Err != nil:
		return e.Err.Error()
	case e.Err != nil:
		return e.Msg + ": " + e.Err.Error()
	case e.Msg == "":
		return string(e.Code)
	}
	return e.Msg
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Sentinels for errors.Is.
var (
	ErrDuplicateProvider       = &Error{Code: CodeDuplicateProvider}
	ErrNoProvider              = &Error{Code: CodeNoProvider}
	ErrUnsupportedCapability   = &Error{Code: CodeUnsupportedCapability}
	ErrInvalidRequest          = &Error{Code: CodeInvalidRequest}
	ErrUnsupportedSchema       = &Error{Code: CodeUnsupportedSchema}
	ErrDraining                = &Error{Code: CodeDraining}
	ErrContinuationUnavailable = &Error{Code: CodeContinuationUnavailable}
	ErrPersistenceUnavailable  = &Error{Code: CodePersistenceUnavailable}
	ErrDuplicateChild          = &Error{Code: CodeDuplicateChild}
	ErrNotResumable            = &Error{Code: CodeNotResumable}
	ErrUnauthorized            = &Error{Code: CodeUnauthorized}
	ErrActivationClosing       = &Error{Code: CodeActivationClosing}
	ErrParentUnavailable       = &Error{Code: CodeParentUnavailable}
	ErrTeardownFailed          = &Error{Code: CodeActivationTeardownFailed}
	ErrSetupRevoked            = &Error{Code: CodeActivationSetupRevoked}
	ErrReleaseFailed           = &Error{Code: CodeActivationReleaseFailed}
	ErrOwnedElsewhere          = &Error{Code: CodeOwnedElsewhere}
	ErrOwnershipConflict       = &Error{Code: CodeOwnershipConflict}
	ErrStartFailed             = &Error{Code: CodeStartFailed}
	ErrUntrustedFolder         = &Error{Code: CodeUntrustedFolder}
	ErrForbidden               = &Error{Code: CodeForbidden}
	ErrLimitReached            = &Error{Code: CodeLimitReached}
	ErrCancelled               = &Error{Code: CodeCancelled}
	ErrProjectionsUnavailable  = &Error{Code: CodeProjectionsUnavailable}
	ErrSessionStoreUnavailable = &Error{Code: CodeSessionStoreUnavailable}
)

func errorf(code Code, format string, args ...any) error {
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...)}
}

// DepthError refuses a child that would lie deeper than a cap allows; it tells
// both (seam ERR-03).
type DepthError = compose.DepthError

// DepthRangeError refuses a child whose depth cannot be represented.
type DepthRangeError = compose.DepthRangeError

// DepthTypeError refuses a malformed cap or run-time depth.
type DepthTypeError = compose.DepthTypeError
