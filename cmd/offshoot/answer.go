package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/structured"
)

const schemaHelp = "With --output-schema the answer is JSON that satisfies the JSON Schema in FILE, on one line, and stdout gets nothing\n" +
	"else. The schema is of an object; a keyword that cannot be enforced is refused, each with its place, before anything\n" +
	"runs; so is the demo model, which answers in text alone. A model that ends without such an answer is told so once; if\n" +
	"none comes, what it said goes to stderr."

// maxSchemaBytes bounds the file of a schema.
const maxSchemaBytes = 1 << 20

// readSchema reads the file of --output-schema; nil is none. Every fault of the
// schema is an error of its own.
func readSchema(cmd *cobra.Command, path string) (*structured.Schema, error) {
	if !cmd.Flags().Changed("output-schema") {
		return nil, nil
	}
	raw, err := readBounded(path)
	if err != nil {
		return nil, usagef("flag --output-schema: %w", err)
	}
	s, err := structured.Parse(raw)
	var refused *structured.SchemaError
	if !errors.As(err, &refused) {
		return s, err
	}
	var errs []error
	for _, f := range refused.Faults {
		errs = append(errs, usagef("flag --output-schema: %s: %v", path, f))
	}
	return nil, errors.Join(errs...)
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxSchemaBytes+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(raw) > maxSchemaBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxSchemaBytes)
	}
	return raw, nil
}

// answer is the root's answer in the form of a schema; nil is one in text. Its fields
// are those of the runner.
type answer struct {
	schema *structured.Schema
	output *structured.Output // from the root's setup on
	value  []byte             // once the root is idle; nil is none
}

// newAnswer returns nil where no schema is given.
func newAnswer(s *structured.Schema, choice config.Choice) (*answer, error) {
	if s == nil {
		return nil, nil
	}
	if choice.Ref.Route == config.DemoRoute {
		return nil, usagef("flag --output-schema: the embedded demo model answers in text alone; choose another model, see offshoot config")
	}
	return &answer{schema: s}, nil
}

// setup attaches the schema to the root.
func (a *answer) setup() []harness.Setup {
	if a == nil {
		return nil
	}
	return []harness.Setup{func(_ context.Context, root *agent.Agent) (err error) {
		a.output, err = structured.Attach(root, a.schema)
		return err
	}}
}

// settle takes the value of the root, which is idle, and says why there is none.
func (a *answer) settle() (missing, err error) {
	if a == nil {
		return nil, nil
	}
	a.value = a.output.Value()
	return a.output.Missing(), a.output.Settle()
}

// said is what the agent said, whose last text is last; instead says that the answer
// is the only thing that lacks.
func (a *answer) said(last string, instead bool) string {
	if instead {
		last = message.JoinText(a.output.Instead([]message.Block{message.Text(last)}))
	}
	return legible(strings.TrimRight(last, "\n")) + "\n"
}

// structured is the captured value for the result line, or nil.
func (a *answer) structured() []byte {
	if a == nil {
		return nil
	}
	return a.value
}

// errNoAnswer words that a resumed session owed nothing, for a caller that waits for
// an answer.
func errNoAnswer(text string) error { return errors.New("there is no answer: " + text) }

// cutShort says what a crash left of a session's last turn, "" if it was not cut.
func cutShort(s *session.Session) string {
	switch {
	case !interrupted(s):
		return ""
	case structured.Recorded(s) != nil:
		return "; its last turn was interrupted after it had handed in its answer, which stands in its log"
	}
	return "; its last turn was interrupted"
}
