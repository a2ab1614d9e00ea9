package projection

import (
	"errors"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/session"
)

// BuiltIn returns the units whose checkpoints a store keeps in its session rows.
func BuiltIn() []Unit {
	return []Unit{IdentityUnit(), UsageUnit(), TitleUnit(), StateUnit()}
}

// cellVersion is the version of the checkpoints of every built-in unit.
const cellVersion = 1

// of reads a record's checkpoint of a built-in unit without any log, or returns nil.
func of[T any](rec *session.Record, key string, parse func(*session.Header, []byte) (*T, error)) *T {
	if rec.Err != nil {
		return nil
	}
	c, ok := rec.Cell(key)
	if !ok || c.Version != cellVersion || c.Seq < rec.Header.SeedLength || string(c.Value) == "null" {
		return nil
	}
	v, err := parse(&rec.Header, c.Value)
	if err != nil {
		return nil
	}
	return v
}

// value returns what a pointer stands for, and whether it is one.
func value[T any](p *T) (v T, ok bool) {
	if p != nil {
		v = *p
	}
	return v, p != nil
}

// parser makes a Unit's Parse.
func parser[T any](parse func(*session.Header, []byte) (*T, error)) func(*session.Header, []byte) (Value, error) {
	return func(h *session.Header, data []byte) (Value, error) { return parse(h, data) }
}

var errIncomplete = errors.New("checkpoint lacks a field")

func setInt(dst *int64, raw []byte) (err error) {
	*dst, err = jsonx.Natural(raw)
	return err
}

func setString[S ~string](dst *S, raw []byte) error {
	s, err := jsonx.String(raw)
	*dst = S(s)
	return err
}
