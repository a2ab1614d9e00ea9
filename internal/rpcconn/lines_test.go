package rpcconn_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/rpcconn"
)

// readLines returns all lines of r and the error that ends them.
func readLines(r io.Reader, max int) ([]string, error) {
	lines := rpcconn.NewReader(r, max)
	var out []string
	for {
		line, err := lines.Next()
		if err != nil {
			return out, err
		}
		out = append(out, string(line))
	}
}

// W1, W6, W7.
func TestLines(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	for _, tt := range []struct {
		name, in string
		max      int
		want     []string
		err      error
	}{
		{name: "empty", err: io.EOF},
		{name: "lines", in: "a\nb\n", want: []string{"a", "b"}, err: io.EOF},
		{name: "blank and white space", in: "\n \r\n\t a b \r\n\n", want: []string{"a b"}, err: io.EOF},
		{name: "no terminator", in: "a\nb", want: []string{"a"}, err: io.ErrUnexpectedEOF},
		{name: "white space without terminator", in: "a\n  ", want: []string{"a"}, err: io.EOF},
		{name: "longer than any buffer", in: long + "\nb\n" + long + "\n", want: []string{long, "b", long}, err: io.EOF},
		{name: "long without terminator", in: long, err: io.ErrUnexpectedEOF},
		{name: "runes across reads", in: "äöü€😀\n", want: []string{"äöü€😀"}, err: io.EOF},
		{name: "as long as it may be", in: "12345\n12345\n", max: 5, want: []string{"12345", "12345"}, err: io.EOF},
		{name: "white space counts", in: "a\n12345 \n", max: 5, want: []string{"a"}, err: &rpcconn.LineTooLongError{Max: 5}},
		{name: "too long without terminator", in: "123456", max: 5, err: &rpcconn.LineTooLongError{Max: 5}},
		{name: "too long beyond the buffer", in: long + "\n", max: len(long) - 1, err: &rpcconn.LineTooLongError{Max: len(long) - 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for how, r := range map[string]io.Reader{
				"whole": strings.NewReader(tt.in), "halves": iotest.HalfReader(strings.NewReader(tt.in)),
				"bytes": iotest.OneByteReader(strings.NewReader(tt.in)), "with the error": iotest.DataErrReader(strings.NewReader(tt.in)),
			} {
				got, err := readLines(r, tt.max)
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("%s: %s", how, diff)
				}
				if err.Error() != tt.err.Error() {
					t.Errorf("%s: error %v, want %v", how, err, tt.err)
				}
			}
		})
	}
	broken := errors.New("broken")
	got, err := readLines(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("a\n"))), 0)
	if len(got) != 0 || !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := readLines(io.MultiReader(strings.NewReader("a"), iotest.ErrReader(broken)), 0); !errors.Is(err, broken) {
		t.Errorf("a reader's own error: %v", err)
	}
}

// A line over the default bound is given up at the bound: what follows is not read.
func TestDefaultBound(t *testing.T) {
	endless := &counter{}
	_, err := readLines(endless, 0)
	if tooLong := new(rpcconn.LineTooLongError); !errors.As(err, &tooLong) || tooLong.Max != 64<<20 {
		t.Errorf("error %v", err)
	}
	if endless.n > 64<<20+1<<20 {
		t.Errorf("%d bytes were read", endless.n)
	}
}

// counter is a line of zeros without end.
type counter struct{ n int }

func (c *counter) Read(b []byte) (int, error) {
	c.n += len(b)
	clear(b)
	return len(b), nil
}

// FuzzReader compares with the simplest thing that could split lines, however the
// bytes arrive.
func FuzzReader(f *testing.F) {
	f.Add([]byte("a\n b \r\n\n{}\nrest"), 3, 8)
	f.Add([]byte("123456789\n"), 1, 9)
	f.Fuzz(func(t *testing.T, data []byte, chunk, max int) {
		if chunk < 1 || chunk > 1<<20 || max < 1 || max > 1<<20 {
			t.Skip("out of range")
		}
		var want []string
		wantErr := io.EOF
		rest := data
		for {
			line, after, ended := bytes.Cut(rest, []byte("\n"))
			if len(line) > max {
				wantErr = &rpcconn.LineTooLongError{Max: max}
				break
			}
			line = bytes.Trim(line, " \t\r\n")
			if !ended {
				if len(line) > 0 {
					wantErr = io.ErrUnexpectedEOF
				}
				break
			}
			if len(line) > 0 {
				want = append(want, string(line))
			}
			rest = after
		}
		var parts []io.Reader
		for part := range slices.Chunk(data, chunk) {
			parts = append(parts, bytes.NewReader(part))
		}
		got, err := readLines(io.MultiReader(parts...), max)
		if !slices.Equal(got, want) || err.Error() != wantErr.Error() {
			t.Errorf("got %q, %v\nwant %q, %v", got, err, want, wantErr)
		}
	})
}
