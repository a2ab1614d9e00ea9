package session

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
)

// ToolSpill is the whole text of a tool result that was cut for the model (core
// D45; design § 4, Bounded). It is log-only: it never stands on the surface and so
// reaches no request. It stands in the open step of its call, behind the tool/call
// and before the tool/result, once at most; who writes one appends it directly
// before that result and in the same hold, so that no log has one without the
// other. The result's text names it by its SpillRef.
//
// Its text stays encoded: a log holds it once, as the event's bytes, and nobody
// who only replays a log pays for reading it. Build one with NewToolSpill.
type ToolSpill struct {
	// Session is the session in whose log the event was written: what SpillRef needs
	// where the event was inherited.
	Session    ID
	Turn, Step int64
	CallID     string
	// Bytes is how long the text was when the tool gave it.
	Bytes int64
	// Omitted is how many of them are not here, because even this was bounded; a
	// line in the text says where. 0 for none.
	Omitted int64

	encoded []byte // the whole payload
	texts   []byte // of it, the array of strings: one for each text block of the result
	invalid error  // what is wrong with the payload
}

// NewToolSpill returns a spill with its text: texts holds that of each text block of
// the result, in order. It is encoded here, outside of the log's lock; one that is
// not valid is refused by the log that it is appended to.
func NewToolSpill(p ToolSpill, texts []string) *ToolSpill {
	n, held := 160+jsonx.StringSize(string(p.Session))+jsonx.StringSize(p.CallID), 0
	valid := jsonx.ValidString(p.CallID)
	for _, s := range texts {
		n += jsonx.StringSize(s) + 1
		held += len(s)
		valid = valid && jsonx.ValidString(s)
	}
	if p.invalid = p.checkHead(len(texts), int64(held)); p.invalid == nil && !valid {
		p.invalid = errors.New("text is not valid UTF-8")
	}
	buf := jsonx.AppendKey(p.appendHead(make([]byte, 0, n)), "texts")
	start := len(buf)
	buf = appendStrings(buf, texts)
	p.texts = buf[start:len(buf):len(buf)]
	p.encoded = append(buf, '}')
	return &p
}

// Text returns the whole text, the blocks joined without a separator (as by
// message.JoinText).
func (p *ToolSpill) Text() (string, error) {
	var list []string
	if err := setStrings(&list, p.texts); err != nil {
		return "", fmt.Errorf("texts: %w", err)
	}
	return strings.Join(list, ""), nil
}

// Encoded returns how many bytes a spill of NewToolSpill takes in a log: what it adds
// to Session.Spilled. It is 0 for a spill that was read.
func (p *ToolSpill) Encoded() int64 { return int64(len(p.encoded)) }

// EventType implements Payload.
func (p *ToolSpill) EventType() Type { return TypeToolSpill }
func (p *ToolSpill) appendJSON(buf []byte) []byte {
	return append(jsonx.AppendRawField(p.appendHead(buf), "texts", p.texts), '}')
}

func (p *ToolSpill) appendHead(buf []byte) []byte {
	buf = jsonx.AppendStringField(appendStep(buf, p.Turn, p.Step), "callId", p.CallID)
	buf = jsonx.AppendStringField(buf, "sessionId", string(p.Session))
	buf = jsonx.AppendIntField(buf, "bytes", p.Bytes)
	if p.Omitted != 0 {
		buf = jsonx.AppendIntField(buf, "omitted", p.Omitted)
	}
	return buf
}

func (p *ToolSpill) check() error {
	if p.encoded != nil {
		return p.invalid
	}
	held, blocks := 0, 0
	err := jsonx.WalkArray(p.texts, func(raw []byte) error {
		n, err := jsonx.StringLen(raw)
		held += n
		blocks++
		return err
	})
	if err != nil {
		return fmt.Errorf("texts: %w", err)
	}
	return p.checkHead(blocks, int64(held))
}

// checkHead checks the members, also against what the texts are: how many, and how
// many bytes they hold, the line for an omission counted.
func (p *ToolSpill) checkHead(blocks int, held int64) error {
	err := errors.Join(checkStep(p.Turn, p.Step), checkNatural("byte count", p.Bytes), checkNatural("omitted count", p.Omitted))
	switch {
	case err != nil:
		return err
	case p.Session == "" || !jsonx.ValidString(string(p.Session)):
		return fmt.Errorf("session id %q is not valid", p.Session)
	case blocks == 0:
		return errors.New("a spill holds no text")
	case p.Omitted == 0 && held != p.Bytes:
		return fmt.Errorf("a spill of %d bytes holds %d", p.Bytes, held)
	case p.Omitted > p.Bytes || held < p.Bytes-p.Omitted:
		return fmt.Errorf("a spill of %d bytes that lacks %d of them holds %d", p.Bytes, p.Omitted, held)
	}
	return nil
}

func decodeToolSpill(data []byte) (*ToolSpill, error) {
	p := &ToolSpill{}
	err := fields(data, []string{"turn", "step", "callId", "sessionId", "bytes", "texts"}, func(key string, raw []byte) error {
		switch key {
		case "callId":
			return setString(&p.CallID, raw)
		case "sessionId":
			return setString(&p.Session, raw)
		case "bytes":
			return setInt(&p.Bytes, raw)
		case "omitted":
			return setInt(&p.Omitted, raw)
		case "texts":
			return setRaw(&p.texts, raw)
		}
		return stepKey(key, raw, &p.Turn, &p.Step)
	})
	if err != nil {
		return nil, err
	}
	return p, p.check()
}

// SpillScheme begins the text of every SpillRef, and of nothing else that a tool
// takes as a path.
const SpillScheme = "spill:"

// SpillRef names one ToolSpill. Its text is
//
//	spill:<session id>/<seq>
//
// with the id of the session in whose log the event was written, also where another
// inherited it, escaped as a segment of a URL path (the ids that this product makes
// stand as they are), and the event's seq in decimal. It is what the cut result tells the model, and what
// the tool read takes as path. A name grants nothing: whoever resolves one decides
// who may read it.
type SpillRef struct {
	Session ID
	Seq     int64
}

// String returns the text of r.
func (r SpillRef) String() string {
	return SpillScheme + url.PathEscape(string(r.Session)) + "/" + strconv.FormatInt(r.Seq, 10)
}

// ParseSpillRef reads what String wrote.
func ParseSpillRef(s string) (SpillRef, error) {
	rest, ok := strings.CutPrefix(s, SpillScheme)
	id, num, slash := strings.Cut(rest, "/")
	if ok && slash && id != "" {
		name, err := url.PathUnescape(id)
		seq, numErr := strconv.ParseInt(num, 10, 64)
		if r := (SpillRef{Session: ID(name), Seq: seq}); err == nil && numErr == nil && seq >= 0 && r.String() == s {
			return r, nil
		}
	}
	return SpillRef{}, fmt.Errorf("%q does not name a spill: that is %s<session id>/<seq>", s, SpillScheme)
}
