package tool_test

import (
	"context"
	"fmt"
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
