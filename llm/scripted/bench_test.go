package scripted_test

import (
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
)

func BenchmarkOneText(b *testing.B) {
	script := scripted.Script{{Repeat: true, Steps: []scripted.Step{{scripted.Say("The answer is 42.")}}}}
	req := request(user("u", "What is the answer?"))
	req.System = strings.Repeat("x", 1500)
	for name, record := range map[string]int{"recorded": 0, "unrecorded": -1} {
		b.Run(name, func(b *testing.B) {
			a := scripted.New(script, scripted.Options{Record: record})
			b.ReportAllocs()
			for b.Loop() {
				for c, err := range a.Stream(b.Context(), req) {
					if err != nil || (c.Kind == llm.ChunkFinish && c.Finish.Kind != llm.FinishStop) {
						b.Fatal(err, c.Finish)
					}
				}
			}
		})
	}
}
