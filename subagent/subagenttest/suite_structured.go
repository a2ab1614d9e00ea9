package subagenttest

import (
	"errors"

	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent"
)

const suiteSchema = `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`

// outputSchema: an answer in the form of the schema is the result's value, a child
// that gives none has not completed, and a schema that cannot be enforced, or that the
// provider does not take, starts nothing.
func outputSchema(r *rig) {
	start := func(schema string, c Child) (subagent.Run, error) {
		r.Helper()
		r.Script("count", c)
		req := Request(r.parent, "count")
		req.OutputSchema = []byte(schema)
		return r.Service.Start(r.Context(), r.name, req)
	}
	refused := func(schema string, want error) {
		r.Helper()
		if _, err := start(schema, Child{Text: "hi"}); !errors.Is(err, want) {
			r.Errorf("Start = %v, want %v", err, want)
		}
		r.idle()
	}
	if !r.Provider.Capabilities().OutputSchema {
		refused(suiteSchema, subagent.ErrUnsupportedCapability)
		return
	}
	var faults *structured.SchemaError
	_, err := start(`{"type":"object","properties":{"a":{"pattern":"x"}},"not":{}}`, Child{Text: "hi"})
	if !errors.Is(err, subagent.ErrUnsupportedSchema) || !errors.As(err, &faults) || len(faults.Faults) != 2 {
		r.Errorf("Start with an unsupported schema = %v, want UNSUPPORTED_SCHEMA with both faults (REQ-03)", err)
	}
	r.idle()
	for _, c := range []struct {
		name  string
		child Child
		want  subagent.StopReason
		value string
	}{
		{"an answer", Child{Text: "here", Structured: `{"n":1}`}, subagent.StopCompleted, `{"n":1}`},
		{"an answer without a word", Child{Structured: `{"n":9007199254740991}`}, subagent.StopCompleted, `{"n":9007199254740991}`},
		{"an answer that does not fit", Child{Text: "here", Structured: `{"n":"1"}`}, subagent.StopError, ""},
		{"no answer", Child{Text: "there is 1"}, subagent.StopError, ""},
	} {
		run, err := start(suiteSchema, c.child)
		if err != nil {
			r.Fatal(err)
		}
		res := r.result(run)
		r.close(run)
		if res.StopReason != c.want || string(res.Structured) != c.value {
			r.Errorf("%s: %+v, want %s with the value %q (SO-18, RUN-12)", c.name, res, c.want, c.value)
		}
	}
}
