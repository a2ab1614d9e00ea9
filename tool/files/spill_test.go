//go:build unix

package files_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
	"github.com/offshoot-dev/offshoot/tool/files"
)

// spillDesk is a desk whose read knows the spills of session s by their seqs.
func spillDesk(t *testing.T, opts files.Options, texts ...string) *desk {
	opts.Spill = func(_ context.Context, call *tool.Call, ref session.SpillRef) (string, error) {
		if call.Name != "read" || ref.Session != "s" || ref.Seq >= int64(len(texts)) {
			return "", fmt.Errorf("there is no %s for %s", ref, call.Name)
		}
		return texts[ref.Seq], nil
	}
	return newDesk(t, opts)
}

// core D45: a spill is read like a file, in windows by lines; long lines count as
// several; what is no text is read as well.
func TestReadSpill_D45(t *testing.T) {
	d := spillDesk(t, files.Options{ReadLines: 4, ReadBytes: 60, LineBytes: 20},
		"1\n2\n3\n4\n5\n6\n",
		"short\n"+strings.Repeat("ä€", 10)+"\nend",
		"bin\x00\x01\n",
		strings.Repeat("x", 20)+"\n"+strings.Repeat("y", 21)+"\n",
	)
	for _, tt := range []struct{ args, want string }{
		{`{"path":"spill:s/0"}`, "[lines 1 to 4 of 6; go on with offset 5]\n1\n2\n3\n4\n"},
		{`{"path":"spill:s/0","offset":5}`, "[lines 5 to 6 of 6]\n5\n6\n"},
		{`{"path":"spill:s/0","offset":2,"limit":2}`, "[lines 2 to 3 of 6; go on with offset 4]\n2\n3\n"},
		{`{"path":"spill:s/1"}`, "[lines 1 to 4 of 5; go on with offset 5]\nshort\n" + strings.Repeat("ä€", 10) + "\n"},
		{`{"path":"spill:s/1","offset":3}`, "[lines 3 to 5 of 5]\n" + strings.Repeat("ä€", 6) + "\nend"},
		{`{"path":"spill:s/2"}`, "bin\x00\x01\n"},
		{`{"path":"spill:s/3"}`, strings.Repeat("x", 20) + "\n" + strings.Repeat("y", 20) + "y\n"},
	} {
		if got := d.ok("read", "%s", []byte(tt.args)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.args, got, tt.want)
		}
	}
	if r := d.result("read", `{"path":"spill:s/0","offset":5}`); string(r.Meta) != `{"path":"spill:s/0","bytes":12,"from":5,"lines":2}` {
		t.Errorf("meta %s", r.Meta)
	}
	d.fails("spill:s/0 has only 6 lines, none from 7 on", "read", `{"path":"spill:s/0","offset":7}`)
	d.fails("there is no spill:s/9 for read", "read", `{"path":"spill:s/9"}`)
	d.fails(`"spill:nonsense" does not name a spill`, "read", `{"path":"spill:nonsense"}`)
	// A file may still have such a name, and no other tool takes one.
	d.put("spill:s/0", "a file\n")
	if got := d.ok("read", `{"path":"./spill:s/0"}`); got != "a file\n" {
		t.Errorf("the file reads %q", got)
	}
	if got := d.ok("search", `{"pattern":"file","path":"spill:s/0"}`); !strings.Contains(got, "a file") {
		t.Errorf("search: %q", got)
	}
	// No working directory is needed, and no log is none.
	r := d.scope.Execute(t.Context(), tool.CallInput{Name: "read", Args: `{"path":"spill:s/2"}`}, tool.ExecOptions{})
	if text(r) != "bin\x00\x01\n" {
		t.Errorf("without a working directory: %q", text(r))
	}
	newDesk(t, files.Options{}).fails("spill:s/0: no results are kept here", "read", `{"path":"spill:s/0"}`)
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := newDesk(t, files.Options{Spill: func(context.Context, *tool.Call, session.SpillRef) (string, error) {
		cancel()
		return "1\n2\n", nil
	}})
	r = cancelled.scope.Execute(ctx, tool.CallInput{Name: "read", Args: `{"path":"spill:s/0"}`}, tool.ExecOptions{})
	if !errors.Is(ctx.Err(), context.Canceled) || r.Code != tool.CodeAborted {
		t.Errorf("cancelled: %q, %q", r.Code, text(r))
	}
}

// core D45: whatever a spill holds and however small the bound is, windows one after
// the other give every byte of it in order, and none of them is cut again.
func TestReadSpillIsNeverCut(t *testing.T) {
	texts := []string{
		strings.Repeat("a line as long as lines are\n", 4000),
		strings.Repeat("ä", 60_000),
		strings.Repeat("\n", 5000),
		strings.Repeat("x", 4096) + "\n" + strings.Repeat("€\x00", 9000) + "\n\n" + strings.Repeat("y", 4095) + "\n",
	}
	d := spillDesk(t, files.Options{}, texts...)
	for _, limit := range []int{1 << 10, 2000, 4096, 5000, 48 << 10, 0, -1} {
		for i, whole := range texts {
			var got strings.Builder
			windows := 0
			for from := 1; ; windows++ {
				args := fmt.Sprintf(`{"path":"spill:s/%d","offset":%d}`, i, from)
				r := d.scope.Execute(t.Context(), tool.CallInput{Name: "read", Args: args}, tool.ExecOptions{Limit: limit})
				if r.IsError || r.Cut != nil || !utf8.ValidString(text(r)) {
					t.Fatalf("limit %d: %s: error %v, cut %v: %.100q", limit, args, r.IsError, r.Cut != nil, text(r))
				}
				if from == 1 && text(r) == whole {
					got.WriteString(whole)
					break
				}
				var first, last int
				note, body, _ := strings.Cut(text(r), "\n")
				_, rest, more := strings.Cut(note, "; go on with offset ")
				if _, err := fmt.Sscanf(note, "[lines %d to %d", &first, &last); err != nil || first != from {
					t.Fatalf("limit %d: %s: note %q, %v", limit, args, note, err)
				}
				got.WriteString(body)
				if !more {
					break
				}
				if _, err := fmt.Sscanf(rest, "%d]", &from); err != nil || from != last+1 {
					t.Fatalf("limit %d: %s: note %q, %v", limit, args, note, err)
				}
			}
			if got.String() != whole {
				t.Errorf("limit %d, text %d: %d of %d bytes in %d windows", limit, i, got.Len(), len(whole), windows)
			}
		}
	}
}

// A file's window fits into the bound as well, whatever is configured.
func TestReadFitsTheBound(t *testing.T) {
	d := newDesk(t, files.Options{})
	d.put("wide", strings.Repeat(strings.Repeat("z", 9000)+"\n", 30))
	d.put("plain", strings.Repeat("line\n", 3000))
	for _, limit := range []int{1 << 10, 4096, 0} {
		for _, path := range []string{"wide", "plain"} {
			r := d.scope.Execute(t.Context(), tool.CallInput{Name: "read", Args: `{"path":"` + path + `"}`, Cwd: d.cwd}, tool.ExecOptions{Limit: limit})
			if r.IsError || r.Cut != nil || !strings.HasPrefix(text(r), "[lines 1 to ") {
				t.Errorf("limit %d: %s: error %v, cut %v: %.100q", limit, path, r.IsError, r.Cut != nil, text(r))
			}
		}
	}
}
