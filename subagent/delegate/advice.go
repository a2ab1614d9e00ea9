package delegate

import (
	"errors"
	"fmt"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

// nextStep says what a model can do about a failure of the seam. The failure's own text
// says what is wrong.
func nextStep(code subagent.Code) string {
	switch code {
	case subagent.CodeNoProvider, subagent.CodeUnsupportedCapability:
		return "This kind of subagent is not available now: do the work yourself, or use another tool."
	case subagent.CodePersistenceUnavailable, subagent.CodeContinuationUnavailable:
		return "Subagents that can be continued are not available in this program: do the work yourself, or use another tool."
	case subagent.CodeProjectionsUnavailable, subagent.CodeSessionStoreUnavailable:
		return "Subagents cannot be listed in this program: go on with the ids that you know."
	case subagent.CodeDuplicateChild, subagent.CodeActivationSetupRevoked:
		return "Nothing was started: call again."
	case subagent.CodeNotResumable:
		return "Check the id. If it is right, sending the message again will not help: start another subagent with what it needs to know."
	case subagent.CodeUnauthorized:
		return "You can address only the subagents that you started yourself, by the ids that you were given."
	case subagent.CodeActivationClosing:
		return "If you still need that subagent, call again; if you are the one that is being closed, finish."
	case subagent.CodeDraining:
		return "Nothing more is started or delivered: finish with what you have."
	case subagent.CodeParentUnavailable:
		return "Nobody got the report: put it into your final answer instead."
	case subagent.CodeOwnedElsewhere:
		return "Another running program works with it: leave it alone, and say so in your answer if you need it."
	case subagent.CodeOwnershipConflict:
		return "It cannot take messages now: start another subagent if you still need the work done."
	case subagent.CodeInvalidRequest, subagent.CodeUnsupportedSchema:
		return "Correct the call and try again."
	case subagent.CodeStartFailed:
		return "Nothing was started. Do the work yourself or use another tool, and say in your answer that this kind of subagent did not start and why."
	case subagent.CodeUntrustedFolder, subagent.CodeForbidden:
		return "Calling again will not help: do the work yourself or use another tool, and say in your answer what a person would have to permit."
	case subagent.CodeLimitReached:
		return "Do this work yourself; where the limit is how many are at work at once, you can also wait until one of them is done."
	case subagent.CodeCancelled:
		return "The call was cancelled; call again if you still need it."
	case subagent.CodeActivationTeardownFailed, subagent.CodeActivationReleaseFailed:
		return "Something of it could not be cleaned up: say so in your answer, since a person has to look at it."
	}
	return ""
}

// advised gives a failure of the seam its code, what failed and the next step. One that
// may have had an effect all the same says nothing else.
func advised(what string, err error) error {
	var code subagent.Code
	var se *subagent.Error
	var live *agent.LimitError
	switch {
	case errors.Is(err, agent.ErrUncertain):
		return &tool.Error{Code: tool.CodeOutcomeUnknown, Err: err, Msg: fmt.Sprintf(
			"it is not certain whether this call had any effect: %v\nDo not make it again before you have found out.", err)}
	case errors.As(err, &se):
		code = se.Code
	case errors.As(err, &live):
		code = subagent.CodeLimitReached
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
	msg := what + ": " + err.Error()
	if next := nextStep(code); next != "" {
		msg += "\n" + next
	}
	return &tool.Error{Code: string(code), Err: err, Msg: msg}
}

// sees reports whether an agent has a tool: nothing that a model reads sends it to one that
// it does not have.
func sees(a *agent.Agent, name string) bool { return a.Tools().Toolset().Lookup(name) != nil }

// addressed is advised for a call that names another agent.
func addressed(caller *agent.Agent, what string, err error) error {
	err = advised(what, err)
	var te *tool.Error
	if errors.As(err, &te) && te.Code == string(subagent.CodeUnauthorized) && sees(caller, ListTool) {
		te.Msg += " " + ListTool + " shows them."
	}
	return err
}

// startError words a refusal for the model, which cannot see codes.
func startError(err error) error {
	var depth *subagent.DepthError
	if errors.As(err, &depth) {
		return &tool.Error{Code: string(subagent.CodeLimitReached), Err: err, Msg: fmt.Sprintf(
			"you work at delegation depth %d and the limit is %d: no further delegation is possible, do this work yourself", depth.Depth-1, depth.Cap)}
	}
	return advised("the subagent was not started", err)
}
