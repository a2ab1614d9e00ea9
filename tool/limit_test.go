package tool_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/tool"
)

func TestClip(t *testing.T) {
	if got := tool.Clip("short", 64); got != "short" {
		t.Errorf("got %q", got)
	}
	if got := tool.Clip("any", 0); got != "any" {
		t.Errorf("got %q", got)
	}
	s := strings.Repeat("äöü€", 1000)
	for limit := 100; limit < 140; limit++ {
		got := tool.Clip(s, limit)
		if len(got) > limit || !utf8.ValidString(got) {
			t.Fatalf("limit %d: %d bytes, valid %v", limit, len(got), utf8.ValidString(got))
		}
		head, rest, _ := strings.Cut(got, "\n[... ")
		var n int
		if _, err := fmt.Sscanf(rest, "%d bytes", &n); err != nil {
			t.Fatalf("limit %d: %q: %v", limit, got, err)
		}
		_, tail, _ := strings.Cut(rest, "...]\n")
		if len(head)+n+len(tail) != len(s) || !strings.HasPrefix(s, head) || !strings.HasSuffix(s, tail) {
			t.Errorf("limit %d: %d+%d+%d bytes of %d", limit, len(head), n, len(tail), len(s))
		}
	}
}

func TestResultIsBounded(t *testing.T) {
	image := message.Block{Type: message.BlockImage, Raw: []byte(`{}`)}
	content := []message.Block{
		message.Text(strings.Repeat("a", 150)), image, message.Text(strings.Repeat("b", 500)),
		message.Text(strings.Repeat("c", 500)), message.Text(strings.Repeat("d", 20)),
	}
	s := one(t, body(func(context.Context, *tool.Call) (any, error) { return content, nil }))
	r := s.Execute(t.Context(), tool.CallInput{Name: "x"}, tool.ExecOptions{Limit: 396})
	want := []message.Block{
		message.Text(strings.Repeat("a", 150)), image,
		message.Text(strings.Repeat("b", 50) + tool.OmittedLine(870)),
		message.Text(strings.Repeat("c", 80)), message.Text(strings.Repeat("d", 20)),
	}
	if diff := cmp.Diff(want, r.Content); diff != "" {
		t.Error(diff)
	}
	for _, tt := range []struct{ limit, want int }{{0, tool.DefaultLimit}, {-1, 100_000}} {
		s := one(t, body(func(context.Context, *tool.Call) (any, error) { return strings.Repeat("x", 100_000), nil }))
		r := s.Execute(t.Context(), tool.CallInput{Name: "x"}, tool.ExecOptions{Limit: tt.limit})
		if n := len(text(r)); n > tt.want || n < tt.want-100 {
			t.Errorf("limit %d: %d bytes", tt.limit, n)
		}
	}
}

// core D45: a result that was cut still has every byte, in its blocks; the model's
// part stays within the bound whatever the path to the rest is, and what is kept has
// a bound of its own and says where it was hit.
func TestCut_D45(t *testing.T) {
	blocks := []string{strings.Repeat("ä", 400), strings.Repeat("€\uFFFD", 300), strings.Repeat("z", 1000)}
	image := message.Block{Type: message.BlockImage, Raw: []byte(`{}`)}
	content := []message.Block{
		message.Text(blocks[0]), image, message.Reasoning(strings.ReplaceAll(blocks[1], "\uFFFD", "\xff")), message.Text(blocks[2]),
	}
	for name, c := range map[string]struct {
		body func(context.Context, *tool.Call) (any, error)
		want []string
	}{
		"success": {func(context.Context, *tool.Call) (any, error) { return content, nil }, blocks},
		"failure": {func(context.Context, *tool.Call) (any, error) { return nil, errors.New(blocks[0] + blocks[2]) }, []string{"Error: " + blocks[0] + blocks[2]}},
	} {
		t.Run(name, func(t *testing.T) {
			const limit, path = 900, "spill:a-session-with-a-rather-long-name-0123456789-0123456789/12"
			r := one(t, body(c.body)).Execute(t.Context(), tool.CallInput{Name: "x"}, tool.ExecOptions{Limit: limit})
			whole := strings.Join(c.want, "")
			texts, lost := r.Cut.Texts(0)
			if diff := cmp.Diff(c.want, texts); diff != "" || lost != 0 || r.Cut.Size() != len(whole) {
				t.Errorf("%d bytes, %d lost, texts (-want +got):\n%s", r.Cut.Size(), lost, diff)
			}
			for line, got := range map[string]string{
				"": allText(r.Content),
				"; the tool read shows what was kept of it at the path " + path:    allText(r.Cut.Content(path, 0)),
				"; the tool read shows all but 70 bytes of it at the path " + path: allText(r.Cut.Content(path, 70)),
			} {
				line = " bytes left out here: the result was too long" + line + " ...]\n"
				if len(got) > limit || len(got) < limit-150 {
					t.Errorf("the model reads %d bytes", len(got))
				}
				checkCut(t, whole, got, line)
			}
			most := len(whole) - 500
			texts, lost = r.Cut.Texts(most)
			if kept := strings.Join(texts, ""); len(kept) > most {
				t.Errorf("%d bytes are kept", len(kept))
			} else if n := checkCut(t, whole, kept, fmt.Sprintf(" bytes left out here: no more than %d bytes are kept of one result ...]\n", most)); n != lost {
				t.Errorf("%d bytes are lost, and the line says %d", lost, n)
			}
		})
	}
	s := one(t, body(func(context.Context, *tool.Call) (any, error) { return strings.Repeat("x", 900), nil }))
	if r := s.Execute(t.Context(), tool.CallInput{Name: "x"}, tool.ExecOptions{Limit: 900}); r.Cut != nil {
		t.Error("a result that fits was cut")
	}
}

func allText(content []message.Block) string {
	var b strings.Builder
	for _, block := range content {
		b.WriteString(block.Text)
	}
	return b.String()
}

// checkCut checks that got is head and tail of whole around a line that counts what
// is missing and goes on as given, and returns that count.
func checkCut(t *testing.T, whole, got, line string) (n int) {
	t.Helper()
	head, rest, _ := strings.Cut(got, "\n[... ")
	number, tail, found := strings.Cut(rest, line)
	n, err := strconv.Atoi(number)
	if err != nil || !found || !utf8.ValidString(got) || head == "" || tail == "" ||
		len(head)+n+len(tail) != len(whole) || !strings.HasPrefix(whole, head) || !strings.HasSuffix(whole, tail) {
		t.Errorf("%d+%q+%d bytes of %d, %v: %q", len(head), number, len(tail), len(whole), err, rest)
	}
	return n
}

// A tool learns its bound, and observers see what was cut as it is.
func TestLimitReachesTheTool(t *testing.T) {
	for limit, want := range map[int]int{0: tool.DefaultLimit, 700: 700, -1: 0} {
		var told int
		s := one(t, body(func(_ context.Context, c *tool.Call) (any, error) {
			told = c.Limit
			return strings.Repeat("x", 1000), nil
		}))
		var seen tool.Result
		s.AddObserver(func(_ context.Context, _ *tool.Call, r tool.Result) { seen = r })
		r := s.Execute(t.Context(), tool.CallInput{Name: "x"}, tool.ExecOptions{Limit: limit})
		if told != want || text(seen) != text(r) || seen.Cut != r.Cut {
			t.Errorf("limit %d: the tool was told %d, observers saw %q", limit, told, text(seen))
		}
	}
}
