package subagent

import (
	"fmt"

	"github.com/offshoot-dev/offshoot/subagent/internal/compose"
)

// Code is the stable name of a failure of the seam (seam ERR-02).
type Code string

// The codes. Those that no operation of this build raises yet are listed so that
// a peer's code keeps its meaning.
const (
	CodeDuplicateProvider        Code = "DUPLICATE_PROVIDER"
	CodeNoProvider               Code = "NO_PROVIDER"
	CodeUnsupportedCapability    Code = "UNSUPPORTED_CAPABILITY"
	CodeContinuationUnavailable  Code = "CONTINUATION_UNAVAILABLE"
	CodePersistenceUnavailable   Code = "PERSISTENCE_UNAVAILABLE"
	CodeDuplicateChild           Code = "DUPLICATE_CHILD"
	CodeNotResumable             Code = "NOT_RESUMABLE"
	CodeUnauthorized             Code = "UNAUTHORIZED"
	CodeActivationClosing        Code = "ACTIVATION_CLOSING"
	CodeDraining                 Code = "DRAINING"
	CodeParentUnavailable        Code = "PARENT_UNAVAILABLE"
	CodeActivationTeardownFailed Code = "ACTIVATION_TEARDOWN_FAILED"
	CodeActivationSetupRevoked   Code = "ACTIVATION_SETUP_REVOKED"
	CodeActivationReleaseFailed  Code = "ACTIVATION_SETUP_RELEASE_FAILED"
	CodeCancelled                Code = "CANCELLED"
	CodeProjectionsUnavailable   Code = "SUBAGENT_CONTROL_PROJECTIONS_UNAVAILABLE"
	CodeSessionStoreUnavailable  Code = "SUBAGENT_CONTROL_SESSION_STORE_UNAVAILABLE"
	CodeOwnedElsewhere           Code = "OWNED_ELSEWHERE"
	CodeOwnershipConflict        Code = "OWNERSHIP_CONFLICT"
	CodeInvalidRequest           Code = "INVALID_REQUEST"
	CodeUnsupportedSchema        Code = "UNSUPPORTED_SCHEMA"
	CodeLimitReached             Code = "LIMIT_REACHED"
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
