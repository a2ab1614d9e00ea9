package session

import (
	"errors"
	"fmt"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
)

// EventType implements Payload.
func (p *Retry) EventType() Type { return TypeRetry }
func (p *Retry) appendJSON(buf []byte) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), "retryId", p.RetryID)
	buf = jsonx.AppendIntField(buf, "turn", p.Turn)
	buf = jsonx.AppendIntField(buf, "step", p.Step)
	buf = jsonx.AppendStringField(buf, "provider", p.Provider)
	mode := "normal"
	if p.Always {
		mode = "always"
	}
	buf = jsonx.AppendStringField(buf, "mode", mode)
	buf = jsonx.AppendStringField(buf, "policyKey", p.PolicyKey)
	buf = jsonx.AppendIntField(buf, "retry", p.Attempt)
	if !p.Always {
		buf = jsonx.AppendIntField(buf, "maxRetries", p.MaxRetries)
	}
	buf = jsonx.AppendIntField(buf, "delayMs", p.DelayMS)
	return append(appendFailure(jsonx.AppendKey(buf, "failure"), &p.Failure), '}')
}

func (p *Retry) check() error {
	err := errors.Join(checkNatural("delay", p.DelayMS), checkFailure(&p.Failure))
	if !p.Always {
		err = errors.Join(err, checkNatural("retry limit", p.MaxRetries))
	}
	return err
}

func decodeRetry(data []byte) (*Retry, error) {
	p := &Retry{}
	required := []string{"retryId", "turn", "step", "provider", "mode", "policyKey", "retry", "delayMs", "failure"}
	return p, fields(data, required, func(key string, raw []byte) error {
		switch key {
		case "retryId":
			return setString(&p.RetryID, raw)
		case "provider":
			return setString(&p.Provider, raw)
		case "mode":
			s, err := jsonx.WalkString(raw)
			if err == nil && s != "normal" && s != "always" {
				err = fmt.Errorf("mode %q is unknown", s)
			}
			p.Always = s == "always"
			return err
		case "policyKey":
			return setString(&p.PolicyKey, raw)
		case "retry":
			return setInt(&p.Attempt, raw)
		case "maxRetries":
			return setInt(&p.MaxRetries, raw)
		case "delayMs":
			return setMillis(&p.DelayMS, raw)
		case "failure":
			return decodeFailure(&p.Failure, raw)
		}
		return stepKey(key, raw, &p.Turn, &p.Step)
	})
}

// EventType implements Payload.
func (p *RetryStarted) EventType() Type { return TypeRetryStarted }
func (p *RetryStarted) appendJSON(buf []byte) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), "retryId", p.RetryID)
	buf = jsonx.AppendIntField(buf, "turn", p.Turn)
	buf = jsonx.AppendIntField(buf, "step", p.Step)
	return append(jsonx.AppendIntField(buf, "retry", p.Attempt), '}')
}

func decodeRetryStarted(data []byte) (*RetryStarted, error) {
	p := &RetryStarted{}
	return p, fields(data, []string{"retryId", "turn", "step", "retry"}, func(key string, raw []byte) error {
		switch key {
		case "retryId":
			return setString(&p.RetryID, raw)
		case "retry":
			return setInt(&p.Attempt, raw)
		}
		return stepKey(key, raw, &p.Turn, &p.Step)
	})
}

// EventType implements Payload.
func (p *ApprovalAsked) EventType() Type { return TypeApprovalAsked }
func (p *ApprovalAsked) appendJSON(buf []byte) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), "id", p.ID)
	buf = jsonx.AppendStringField(buf, "toolName", p.ToolName)
	if p.CallID != "" {
		buf = jsonx.AppendStringField(buf, "callId", p.CallID)
	}
	if p.Reason != "" {
		buf = jsonx.AppendStringField(buf, "reason", p.Reason)
	}
	return append(buf, '}')
}

func decodeApprovalAsked(data []byte) (*ApprovalAsked, error) {
	p := &ApprovalAsked{}
	return p, fields(data, []string{"id", "toolName"}, func(key string, raw []byte) error {
		switch key {
		case "id":
			return setString(&p.ID, raw)
		case "toolName":
			return setString(&p.ToolName, raw)
		case "callId":
			return setString(&p.CallID, raw)
		case "reason":
			return setString(&p.Reason, raw)
		}
		return jsonx.UnknownKey(key)
	})
}

// EventType implements Payload.
func (p *ApprovalDecided) EventType() Type { return TypeApprovalDecided }
func (p *ApprovalDecided) appendJSON(buf []byte) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), "id", p.ID)
	return append(jsonx.AppendStringField(buf, "outcome", p.Outcome), '}')
}

func decodeApprovalDecided(data []byte) (*ApprovalDecided, error) {
	p := &ApprovalDecided{}
	return p, fields(data, []string{"id", "outcome"}, func(key string, raw []byte) error {
		switch key {
		case "id":
			return setString(&p.ID, raw)
		case "outcome":
			return setString(&p.Outcome, raw)
		}
		return jsonx.UnknownKey(key)
	})
}

func appendPolicy(buf []byte, name, value string, delegated bool) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), name, value)
	if delegated {
		buf = jsonx.AppendStringField(buf, "source", "delegation")
	}
	return append(buf, '}')
}

func decodePolicy(data []byte, name string, value *string, delegated *bool) error {
	return fields(data, []string{name}, func(key string, raw []byte) error {
		switch key {
		case name:
			return setString(value, raw)
		case "source":
			s, err := jsonx.WalkString(raw)
			*delegated = s == "delegation"
			return err
		}
		return jsonx.UnknownKey(key)
	})
}

// EventType implements Payload.
func (p *ApprovalPolicy) EventType() Type { return TypeApprovalPolicy }
func (p *ApprovalPolicy) appendJSON(buf []byte) []byte {
	return appendPolicy(buf, "policy", p.Policy, p.Delegated)
}

func decodeApprovalPolicy(data []byte) (*ApprovalPolicy, error) {
	p := &ApprovalPolicy{}
	return p, decodePolicy(data, "policy", &p.Policy, &p.Delegated)
}

// EventType implements Payload.
func (p *SandboxMode) EventType() Type { return TypeSandboxMode }
func (p *SandboxMode) appendJSON(buf []byte) []byte {
	return appendPolicy(buf, "mode", p.Mode, p.Delegated)
}

func decodeSandboxMode(data []byte) (*SandboxMode, error) {
	p := &SandboxMode{}
	return p, decodePolicy(data, "mode", &p.Mode, &p.Delegated)
}

// EventType implements Payload.
func (p *Title) EventType() Type { return TypeTitle }
func (p *Title) appendJSON(buf []byte) []byte {
	return append(jsonx.AppendStringField(append(buf, '{'), "title", p.Title), '}')
}

// decodeTitle keeps only the title: other writers note beside it how it came about.
func decodeTitle(data []byte) (*Title, error) {
	p := &Title{}
	return p, fields(data, []string{"title"}, func(key string, raw []byte) error {
		if key == "title" {
			return setString(&p.Title, raw)
		}
		return nil
	})
}

// EventType implements Payload.
func (p *Settled) EventType() Type { return TypeSettled }
func (p *Settled) appendJSON(buf []byte) []byte {
	buf = jsonx.AppendIntField(append(buf, '{'), "epoch", p.Epoch)
	buf = jsonx.AppendStringField(buf, "stopReason", p.StopReason)
	if p.OutputSeq >= 0 {
		buf = jsonx.AppendIntField(buf, "outputSeq", p.OutputSeq)
	}
	return append(buf, '}')
}

func (p *Settled) check() error {
	return errors.Join(checkNatural("epoch", p.Epoch), checkNatural("output seq", max(p.OutputSeq, 0)))
}

func decodeSettled(data []byte) (*Settled, error) {
	p := &Settled{OutputSeq: -1}
	return p, fields(data, []string{"epoch", "stopReason"}, func(key string, raw []byte) error {
		switch key {
		case "epoch":
			return setInt(&p.Epoch, raw)
		case "stopReason":
			return setString(&p.StopReason, raw)
		case "outputSeq":
			return setInt(&p.OutputSeq, raw)
		}
		return jsonx.UnknownKey(key)
	})
}

// EventType implements Payload.
func (p *Persona) EventType() Type { return TypePersona }
func (p *Persona) appendJSON(buf []byte) []byte {
	if p.Literal {
		return append(buf, `{"literal":true}`...)
	}
	return append(buf, `{"literal":false}`...)
}

func decodePersona(data []byte) (*Persona, error) {
	p := &Persona{}
	return p, fields(data, []string{"literal"}, func(key string, raw []byte) error {
		if key == "literal" {
			return setBool(&p.Literal, raw)
		}
		return jsonx.UnknownKey(key)
	})
}

// EventType implements Payload.
func (p *Imported) EventType() Type              { return TypeImported }
func (p *Imported) appendJSON(buf []byte) []byte { return append(buf, '{', '}') }

func decodeImported(data []byte) (*Imported, error) {
	return &Imported{}, fields(data, nil, func(key string, _ []byte) error { return jsonx.UnknownKey(key) })
}
