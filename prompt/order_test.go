package prompt_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/prompt"
)

func TestP8OrderTools(t *testing.T) {
	known := []string{"write", "bash", "read", "List", "a_b", "ab"}
	for _, tc := range []struct {
		name    string
		names   []string
		order   []string
		want    []string
		wantErr string
	}{
		{"default", known, nil, []string{"List", "a_b", "ab", "bash", "read", "write"}, ""},
		{"around the placeholder", known, []string{"write", "<unlisted-tools>", "bash"}, []string{"write", "List", "a_b", "ab", "read", "bash"}, ""},
		{"all listed", []string{"a", "b"}, []string{"b", "<unlisted-tools>", "a"}, []string{"b", "a"}, ""},
		{"no tools", nil, []string{"<unlisted-tools>"}, nil, ""},
		{"surrogates before the private area", []string{"\uff5e", "\U0001f600", "\ud7fb"}, nil, []string{"\ud7fb", "\U0001f600", "\uff5e"}, ""},
		{"no placeholder", known, []string{"bash"}, nil, `"<unlisted-tools>" is missing`},
		{"two placeholders", known, []string{"<unlisted-tools>", "<unlisted-tools>"}, nil, "listed twice"},
		{"unknown", known, []string{"bush", "<unlisted-tools>"}, nil, `unknown tool "bush"`},
		{"listed twice", known, []string{"bash", "<unlisted-tools>", "bash"}, nil, `"bash" is listed twice`},
		{"known twice", []string{"a", "a"}, nil, nil, `tool "a" is there twice`},
		{"a tool named like the placeholder", []string{"<unlisted-tools>"}, nil, nil, "cannot be the name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			names, order := slices.Clone(tc.names), slices.Clone(tc.order)
			got, err := prompt.OrderTools(names, order)
			if (err != nil) != (tc.wantErr != "") || (err != nil && !strings.Contains(err.Error(), tc.wantErr)) {
				t.Fatalf("got error %v, want %q", err, tc.wantErr)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if diff := cmp.Diff(tc.names, names) + cmp.Diff(tc.order, order); diff != "" {
				t.Errorf("arguments were modified:\n%s", diff)
			}
		})
	}
}
