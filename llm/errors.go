package llm

import (
	"context"
	"errors"

	"github.com/offshoot-dev/offshoot/message"
)

// Codes of refused calls. They are programming or configuration mistakes and are
// never retried.
const (
	// CodeDuplicateAdapter refuses a route that another adapter holds (core M10).
	CodeDuplicateAdapter = "DUPLICATE_ADAPTER"
	// CodeUnsupportedEffort refuses a reasoning effort that the model does not take
	// (core M13).
	CodeUnsupportedEffort = "UNSUPPORTED_REASONING_EFFORT"
	// CodeInvalidPreparedCall refuses the second use of a prepared call, and a
	// request for another route or model than was prepared (core M11).
	CodeInvalidPreparedCall = "INVALID_PREPARED_CALL"
	// CodeStreamGrammar marks a stream that broke the grammar (core I10).
	CodeStreamGrammar = "STREAM_GRAMMAR"
)

func codedError(code, text string) *Error {
	return &Error{Failure: message.Failure{Code: code, Message: text}}
}

// CodeOf returns the failure code of an error that is, or wraps, an *Error, and
// "" for every other error.
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Failure.Code
	}
	return ""
}

// FailureOf turns an error into a failure: that of an *Error with its empty
// fields filled, or one with code UNKNOWN (core M12). err must not be nil.
func FailureOf(err error) message.Failure {
	var e *Error
	if !errors.As(err, &e) {
		return message.Failure{Code: CodeUnknown, Message: err.Error()}
	}
	f := e.Failure
	if f.Code == "" {
		f.Code = CodeUnknown
	}
	if f.Message == "" {
		f.Message = err.Error()
	}
	return f
}

// Failed returns the finish of a failed call.
func Failed(f message.Failure) *Finish {
	return &Finish{Kind: FinishError, Failure: &f}
}

// Aborted returns the finish of a call whose ctx ended. Its message is the text
// of context.Cause(ctx).
func Aborted(ctx context.Context) *Finish {
	text := "the call was aborted"
	if cause := context.Cause(ctx); cause != nil {
		text = cause.Error()
	}
	return &Finish{Kind: FinishAborted, Failure: &message.Failure{Code: CodeAborted, Message: text}}
}
