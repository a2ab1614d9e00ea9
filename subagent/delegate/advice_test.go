package delegate_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// ERR-02, MSG-06: whatever failure of the seam a model meets, it reads what is wrong, and
// what it can do about it; the code goes with the result.
func TestNextSteps_ERR02(t *testing.T) {
	codes := declaredCodes(t)
	if len(codes) < 20 {
		t.Fatalf("only the codes %q were found", codes)
	}
	inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
		p := &failing{Provider: spawn.New("failing")}
		n.Register(t, p)
		mount(t, n.System, delegate.Config{Provider: "failing", ToolName: "fails", Continuable: true, Background: true})
		for _, code := range codes {
			if code == subagent.CodeDuplicateProvider {
				continue // of whoever composes the program
			}
			p.err = &subagent.Error{Code: code, Msg: "it is so"}
			r := execute(t.Context(), n.System, n.parent, "fails", task)
			what, next, _ := strings.Cut(resultText(r), "\n")
			if r.Code != string(code) || what != "Error: the subagent was not started: it is so" || !strings.HasSuffix(next, ".") {
				t.Errorf("%s: %s %q", code, r.Code, resultText(r))
			}
		}
		p.err = fmt.Errorf("accept: %w", agent.ErrUncertain)
		r := execute(t.Context(), n.System, n.parent, "fails", task)
		if r.Code != tool.CodeOutcomeUnknown || strings.Contains(resultText(r), "was not started") || !strings.Contains(resultText(r), "not certain") {
			t.Errorf("uncertain: %s %q", r.Code, resultText(r))
		}
	})
}

// failing is a provider whose preparations fail.
type failing struct {
	*spawn.Provider
	err error
}

func (p *failing) PrepareContinuable(context.Context, subagent.Preparation) (*session.Seed, error) {
	return nil, p.err
}

// declaredCodes returns the codes that package subagent declares.
func declaredCodes(t *testing.T) (codes []subagent.Code) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../errors.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if typ, ok := v.Type.(*ast.Ident); !ok || typ.Name != "Code" {
				continue
			}
			code, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			codes = append(codes, subagent.Code(code))
		}
	}
	return codes
}
