package wire_test

import (
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/llm/internal/wire"
)

// What a vendor would refuse is spelled so that it takes it; what is fit stays.
func TestNamesAndIDs(t *testing.T) {
	for in, want := range map[string]string{
		"read": "read", "functions.read": "functions_read", "a b\nc": "a_b_c", "naïve": "na_ve", "": "_",
		strings.Repeat("x", 80): strings.Repeat("x", 64),
	} {
		if got := wire.Name(in); got != want {
			t.Errorf("Name(%q) = %q, want %q", in, got, want)
		}
	}
	ids := []string{"call_1", "functions.bash:0", "functions.bash:1", "a b", "a\tb", "", strings.Repeat("i", 70), strings.Repeat("i", 71)}
	for _, spell := range []func(string) string{wire.StrictID, wire.PrintableID} {
		seen := map[string]string{}
		for _, id := range ids {
			got := spell(id)
			if got == "" || len(got) > 64 || strings.ContainsAny(got, " \t") || got != spell(id) {
				t.Errorf("%q became %q", id, got)
			}
			if other, dup := seen[got]; dup {
				t.Errorf("%q and %q both became %q", id, other, got)
			}
			seen[got] = id
		}
		if got := spell("call_1"); got != "call_1" {
			t.Errorf("a fit id became %q", got)
		}
	}
	if got := wire.PrintableID("functions.bash:0"); got != "functions.bash:0" {
		t.Errorf("a vendor's own id became %q", got)
	}
}
