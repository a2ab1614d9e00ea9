package session

import (
	"errors"
	"fmt"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
)

// EventType implements Payload.
func (p *CompactionStart) EventType() Type { return TypeCompactionStart }
func (p *CompactionStart) appendJSON(buf []byte) []byte {
	return append(appendTurnOrNull(appendCompaction(buf, p.CompactionID, p.SourceCommandID), p.Turn), '}')
}

func decodeCompactionStart(data []byte) (*CompactionStart, error) {
	p := &CompactionStart{}
	return p, fields(data, []string{"compactionId", "turn"}, func(key string, raw []byte) error {
		if key == "turn" {
			return setTurnOrNull(&p.Turn, raw)
		}
		return compactionKey(key, raw, &p.CompactionID, &p.SourceCommandID)
	})
}

// EventType implements Payload.
func (p *CompactionEnd) EventType() Type { return TypeCompactionEnd }
func (p *CompactionEnd) appendJSON(buf []byte) []byte {
	buf = appendTurnOrNull(appendCompaction(buf, p.CompactionID, p.SourceCommandID), p.Turn)
	if p.Error != "" {
		buf = jsonx.AppendStringField(buf, "error", p.Error)
	}
	return append(buf, '}')
}

// decodeCompactionEnd takes an end without a turn too: earlier writers left it out.
func decodeCompactionEnd(data []byte) (*CompactionEnd, error) {
	p := &CompactionEnd{}
	return p, fields(data, []string{"compactionId"}, func(key string, raw []byte) error {
		switch key {
		case "turn":
			return setTurnOrNull(&p.Turn, raw)
		case "error":
			if raw[0] == '"' {
				return setString(&p.Error, raw)
			}
			p.Error = string(raw)
			return nil
		}
		return compactionKey(key, raw, &p.CompactionID, &p.SourceCommandID)
	})
}

// EventType implements Payload.
func (p *CompactionRequest) EventType() Type { return TypeCompactionRequest }
func (p *CompactionRequest) appendJSON(buf []byte) []byte {
	buf = appendCompaction(buf, p.CompactionID, "")
	buf = jsonx.AppendIntField(buf, "start", p.Start)
	buf = jsonx.AppendIntField(buf, "end", p.End)
	buf = appendConfig(jsonx.AppendKey(buf, "config"), &p.Config)
	return append(AppendMessage(jsonx.AppendKey(buf, "message"), &p.Message), '}')
}

func (p *CompactionRequest) check() error { return checkMessage(&p.Message) }

func decodeCompactionRequest(data []byte) (*CompactionRequest, error) {
	p := &CompactionRequest{}
	err := fields(data, []string{"compactionId", "start", "end", "config", "message"}, func(key string, raw []byte) error {
		switch key {
		case "compactionId":
			return setString(&p.CompactionID, raw)
		case "start":
			return setInt(&p.Start, raw)
		case "end":
			return setInt(&p.End, raw)
		case "config":
			return decodeConfig(&p.Config, raw)
		case "message":
			return decodeMessage(&p.Message, raw)
		}
		return jsonx.UnknownKey(key)
	})
	if err != nil {
		return nil, err
	}
	return p, p.check()
}

// EventType implements Payload.
func (p *CompactionSummary) EventType() Type { return TypeCompactionSummary }
func (p *CompactionSummary) appendJSON(buf []byte) []byte {
	buf = appendCompaction(buf, p.CompactionID, p.SourceCommandID)
	buf = AppendBlocks(jsonx.AppendKey(buf, "summary"), p.Summary)
	buf = p.Shadowed.appendJSON(buf)
	buf = jsonx.AppendStringField(buf, "provider", p.Provider)
	buf = jsonx.AppendStringField(buf, "model", p.Model)
	if p.MaxTokens != 0 {
		buf = jsonx.AppendIntField(buf, "maxTokens", p.MaxTokens)
	}
	if p.Usage != nil {
		buf = appendUsage(jsonx.AppendKey(buf, "usage"), p.Usage)
	}
	if p.RawOutput != nil {
		buf = AppendBlocks(jsonx.AppendKey(buf, "rawOutput"), p.RawOutput)
	}
	if p.ModelCall {
		buf = jsonx.AppendTrueField(buf, "llmStreamCall")
	}
	return append(buf, '}')
}

func (p *CompactionSummary) check() error {
	return errors.Join(p.Shadowed.check(), checkUsage(p.Usage), checkBlocks(p.Summary), checkBlocks(p.RawOutput))
}

func decodeCompactionSummary(data []byte) (*CompactionSummary, error) {
	p := &CompactionSummary{}
	shadowed := shadowedReader{into: &p.Shadowed}
	required := []string{"shadowedRange", "shadowedSeqs", "shadowedTokenCount", "provider", "model"}
	err := fields(data, required, func(key string, raw []byte) (err error) {
		switch key {
		case "summary":
			p.Summary, err = decodeBlocks(raw)
			return err
		case "provider":
			return setString(&p.Provider, raw)
		case "model":
			return setString(&p.Model, raw)
		case "maxTokens":
			return setInt(&p.MaxTokens, raw)
		case "usage":
			p.Usage = &message.Usage{}
			return decodeUsage(p.Usage, raw)
		case "rawOutput":
			p.RawOutput, err = decodeBlocks(raw)
			return err
		case "llmStreamCall":
			return setTrue(&p.ModelCall, raw)
		case "compactionId", "sourceCommandId":
			return compactionKey(key, raw, &p.CompactionID, &p.SourceCommandID)
		}
		return shadowed.set(key, raw)
	})
	if err == nil {
		err = shadowed.check()
	}
	if err != nil {
		return nil, err
	}
	return p, p.check()
}

// EventType implements Payload.
func (p *CompactionPrune) EventType() Type { return TypeCompactionPrune }
func (p *CompactionPrune) appendJSON(buf []byte) []byte {
	return append(p.Shadowed.appendJSON(append(buf, '{')), '}')
}

func (p *CompactionPrune) check() error { return p.Shadowed.check() }

func decodeCompactionPrune(data []byte) (*CompactionPrune, error) {
	p := &CompactionPrune{}
	shadowed := shadowedReader{into: &p.Shadowed}
	if err := fields(data, []string{"shadowedRange", "shadowedSeqs", "shadowedTokenCount"}, shadowed.set); err != nil {
		return nil, err
	}
	return p, shadowed.check()
}

func (s *Shadowed) appendJSON(buf []byte) []byte {
	var first, last int64
	if len(s.Seqs) > 0 {
		first, last = s.Seqs[0], s.Seqs[len(s.Seqs)-1]
	}
	buf = jsonx.AppendIntField(append(jsonx.AppendKey(buf, "shadowedRange"), '{'), "start", first)
	buf = append(jsonx.AppendIntField(buf, "end", last), '}')
	buf = appendSeqs(jsonx.AppendKey(buf, "shadowedSeqs"), s.Seqs)
	return jsonx.AppendIntField(buf, "shadowedTokenCount", s.Tokens)
}

// shadowedReader reads the members of a Shadowed, which lie among others.
type shadowedReader struct {
	into       *Shadowed
	start, end int64
}

func (r *shadowedReader) set(key string, raw []byte) error {
	switch key {
	case "shadowedRange":
		return fields(raw, []string{"start", "end"}, func(key string, raw []byte) error {
			switch key {
			case "start":
				return setInt(&r.start, raw)
			case "end":
				return setInt(&r.end, raw)
			}
			return jsonx.UnknownKey(key)
		})
	case "shadowedSeqs":
		return jsonx.WalkArray(raw, func(raw []byte) error {
			n, err := jsonx.Natural(raw)
			r.into.Seqs = append(r.into.Seqs, n)
			return err
		})
	case "shadowedTokenCount":
		return setInt(&r.into.Tokens, raw)
	}
	return jsonx.UnknownKey(key)
}

func (r *shadowedReader) check() error {
	if err := r.into.check(); err != nil {
		return err
	}
	if first, last := r.into.Seqs[0], r.into.Seqs[len(r.into.Seqs)-1]; first != r.start || last != r.end {
		return fmt.Errorf("shadowedRange is %d to %d, and shadowedSeqs goes from %d to %d", r.start, r.end, first, last)
	}
	return nil
}

func (s *Shadowed) check() error {
	if len(s.Seqs) == 0 {
		return errors.New("nothing is shadowed")
	}
	return checkNatural("shadowedTokenCount", s.Tokens)
}

// appendCompaction opens an object with the ids that the events of one compaction share.
func appendCompaction(buf []byte, id, command string) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), "compactionId", id)
	if command != "" {
		buf = jsonx.AppendStringField(buf, "sourceCommandId", command)
	}
	return buf
}

func compactionKey(key string, raw []byte, id, command *string) error {
	switch key {
	case "compactionId":
		return setString(id, raw)
	case "sourceCommandId":
		return setString(command, raw)
	}
	return jsonx.UnknownKey(key)
}

func appendTurnOrNull(buf []byte, turn int64) []byte {
	if turn == 0 {
		return append(jsonx.AppendKey(buf, "turn"), "null"...)
	}
	return jsonx.AppendIntField(buf, "turn", turn)
}

func setTurnOrNull(dst *int64, raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	return setInt(dst, raw)
}
