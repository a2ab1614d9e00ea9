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

// of reads a record's checkpoint of a built-in unit without any log.
func of[T any](rec *session.Record, u Unit) (T, bool) {
	var zero T
	if rec.Err != nil {
		return zero, false
	}
	c, ok := rec.Cell(u.Key)
	if !ok || c.Version != u.Version || c.Seq < rec.Header.SeedLength || string(c.Value) == "null" {
		return zero, false
	}
	v, err := u.parse(&rec.Header, c.Value)
	if err != nil {
		return zero, false
	}
	p, ok := v.(*T)
	if !ok || p == nil {
		return zero, false
	}
	return *p, true
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
