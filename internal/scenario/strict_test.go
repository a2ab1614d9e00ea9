package scenario_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

const someHead = "# A title\n\nC001  a clause\n\n---\n"

// What a script may not say, and the line that the error names.
func TestStrict(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"no title", "C001  a clause\n---\nleft\n", "s.txt:1: the first line"},
		{"no clause", "# A title\n\nProse.\n---\nleft\n", "s.txt:4: the story names no clause"},
		{"a clause without words", "# A title\nC001\n---\nleft\n", "s.txt:2: a clause is"},
		{"clauses out of order", "# A title\nC002  two\nC001  one\n---\nleft\n", "s.txt:3: C001 does not come after C002"},
		{"no end of the head", "# A title\nC001  one\nleft\n", "s.txt:3: no line is"},
		{"an outcome in the head", "# A title\nC001  one\n| x\n---\nleft\n", "s.txt:3: an outcome"},
		{"no step", someHead, "s.txt:5: the story has no step"},
		{"an unknown directive", someHead + "leave\n", `s.txt:6: no directive is named "leave"`},
		{"an unknown option", someHead + "left\nagent root colour red\n", `s.txt:7: no option is named "colour"`},
		{"an option without its value", someHead + "agent root cwd\n", "s.txt:6: a path is missing"},
		{"too much", someHead + "left over\n", `s.txt:6: "over" is too much`},
		{"a text where a word should be", someHead + "agent \"root\"\n", `s.txt:6: "root" stands where a name should`},
		{"a text that is not closed", someHead + "identity \"You are\n", "s.txt:6: the text is not closed"},
		{"texts without a space", someHead + "identity \"a\"\"b\"\n", "s.txt:6: something follows"},
		{"malformed JSON", someHead + "when asked \"x\"\n    call read {]\n", "s.txt:7: the JSON is malformed"},
		{"an unknown capability", someHead + "provider far is remote able fly\n", `s.txt:6: no capability is named "fly"`},
		{"an option of another kind", someHead + "provider near is spawn able persona\n", "s.txt:6: able is for remote providers"},
		{"an unknown event type", someHead + "log root only turn/over\n", `s.txt:6: no event type is named "turn/over"`},
		{"an unknown part of an answer", someHead + "when asked \"x\"\n    say \"a\"\n    sing \"b\"\n", `s.txt:8: "sing" is no part of an answer`},
		{"no answer", someHead + "when asked \"x\"\nleft\n", "s.txt:6: the indented lines are missing"},
		{"two answers elsewhere", someHead + "when far is asked \"x\"\n    say \"a\"\n    say \"b\"\n", "s.txt:8: a remote child answers in one line"},
		{"nothing to begin with", someHead + "provider own is seeding\nleft\n", "s.txt:6: the indented lines are missing"},
		{"a preparation elsewhere", someHead + "provider far is remote preparing at desk\n", `s.txt:6: no option is named "preparing"`},
		{"nobody's turns", someHead + "hold turns at desk\n", `s.txt:6: "at" stands where of should`},
		{"a block where none belongs", someHead + "left\n    over\n", "s.txt:7: left takes no indented lines"},
		{"a block below nothing", someHead + "    over\n", "s.txt:6: the indented line stands below no directive"},
		{"a block behind an outcome", someHead + "left\n| x\n    over\n", "s.txt:8: the indented line stands below no directive"},
		{"half an indent", someHead + " left\n", "s.txt:6: a directive is not indented"},
		{"an outcome below nothing", someHead + "| x\n", "s.txt:6: the outcome stands below no step"},
		{"an outcome behind a gap", someHead + "left\n\n| x\n", "s.txt:8: the outcome stands below no step"},
		{"an outcome without its space", someHead + "left\n|x\n", "s.txt:7: a line of an outcome begins with"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := parse("s.txt", c.text); err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("parse = %v, want %s", err, c.want)
			}
		})
	}
}

// Rewriting changes the outcomes and nothing else.
func TestRewrite(t *testing.T) {
	const body = "# why\nagent root\n\nwhen asked \"x\"\n    say \"a\"\n\nprompt root \"x\"\n| wrong\n| and old\nleft\n# the end\n"
	s, err := parse("s.txt", someHead+body)
	if err != nil {
		t.Fatal(err)
	}
	var got [][]string
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, st := range s.steps {
			got = append(got, w.play("s.txt", st))
		}
	})
	want := someHead + strings.NewReplacer("| wrong\n| and old\n", "| root ends turn 1: completed, saying \"a\"\n",
		"left\n", "left\n| agents root; sessions root; open runs none\n").Replace(body)
	if diff := cmp.Diff(want, s.rewrite(got)); diff != "" {
		t.Errorf("rewritten (- want, + got):\n%s", diff)
	}
}
