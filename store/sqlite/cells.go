package sqlite

import (
	"bytes"
	"errors"
	"strconv"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/session"
)

// rowKeys are the checkpoints that stand in columns of the session's row, in the
// order of the columns.
var rowKeys = [...]string{session.CellIdentity, session.CellUsage, session.CellTitle, session.CellState}

// rowCells are the columns' new contents; nil leaves one as it is.
type rowCells struct {
	cols  [len(rowKeys)]any
	state any // string: the state column's new content
	any   bool
	other []session.Checkpoint
}

// splitCells sorts checkpoints into columns and others. One that is not below
// head, which is what the write leaves, is left out: it tells of events that are
// not stored.
func splitCells(cells []session.Checkpoint, head int64) rowCells {
	var r rowCells
cells:
	for _, c := range cells {
		if c.Seq >= head {
			continue
		}
		for i, key := range rowKeys {
			if c.Key == key {
				r.cols[i] = appendCell(nil, c)
				r.any = true
				if key == session.CellState {
					r.state = stateOf(c.Value)
				}
				continue cells
			}
		}
		r.other = append(r.other, c)
	}
	return r
}

// The parts of a checkpoint as a column holds it: {"version":1,"seq":2,"value":…}.
const (
	cellVersion = `{"version":`
	cellSeq     = `,"seq":`
	cellValue   = `,"value":`
)

// appendCell appends a checkpoint as a column holds it.
func appendCell(buf []byte, c session.Checkpoint) []byte {
	buf = append(buf, cellVersion...)
	buf = strconv.AppendInt(buf, int64(c.Version), 10)
	buf = append(buf, cellSeq...)
	buf = strconv.AppendInt(buf, c.Seq, 10)
	buf = append(buf, cellValue...)
	buf = append(buf, c.Value...)
	return append(buf, '}')
}

// parseCell reads what appendCell wrote; the value aliases data. Listings read tens
// of thousands, so it takes nothing but that very form. A checkpoint is a cache:
// one that cannot be read is as good as none (core D30), and its value is for
// its reader to judge.
func parseCell(key string, data []byte) (session.Checkpoint, bool) {
	c := session.Checkpoint{Key: key}
	version, rest, ok := number(data, cellVersion)
	if !ok {
		return c, false
	}
	c.Version = int(version)
	if c.Seq, rest, ok = number(rest, cellSeq); !ok {
		return c, false
	}
	rest, ok = bytes.CutPrefix(rest, []byte(cellValue))
	if !ok || len(rest) < 2 || rest[len(rest)-1] != '}' {
		return c, false
	}
	n := len(rest) - 1
	c.Value = rest[:n:n]
	return c, true
}

// number reads a prefix and the number behind it, up to a comma.
func number(data []byte, prefix string) (n int64, rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(data, []byte(prefix))
	i := bytes.IndexByte(rest, ',')
	if !ok || i < 0 {
		return 0, nil, false
	}
	n, err := integer(rest[:i])
	return n, rest[i:], err == nil
}

// integer is strconv.ParseInt, but fast where there are few digits and no sign: a
// listing reads a dozen of them for each row.
func integer(text []byte) (n int64, err error) {
	for i, c := range text {
		if c < '0' || c > '9' || i == 18 {
			return strconv.ParseInt(string(text), 10, 64)
		}
		n = n*10 + int64(c-'0')
	}
	if len(text) == 0 {
		return 0, strconv.ErrSyntax
	}
	return n, nil
}

// stateOf returns the string member "state" of a CellState checkpoint, or "".
func stateOf(value []byte) string {
	state, found := "", errors.New("found")
	// Whatever else the object holds is not the store's business.
	_ = jsonx.ReadObject(value, func(key string, raw []byte) (err error) {
		if key == "state" {
			if state, err = jsonx.String(raw); err == nil {
				err = found
			}
		}
		return err
	})
	return state
}
