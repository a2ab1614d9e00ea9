package products

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	fake "github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// Scenarios returns all scenarios. They may run in parallel; each takes about half a second.
func Scenarios() []Scenario {
	return slices.Concat(answers(), tools(), failures(), ends(), forms(), children())
}

// says is an answer in a few deltas, so that they are packed.
func says(text string) fake.Reply { return fake.Reply{fake.Split(5, fake.Text(text))} }

// call is a tool call whose arguments come in a few deltas.
func call(tool, arguments string) fake.ToolCall {
	return fake.ToolCall{Name: tool, Arguments: arguments, Deltas: 4}
}

func bash(command string) fake.ToolCall {
	return call("bash", fmt.Sprintf(`{"command":%q,"description":"run it"}`, command))
}

func delegate(tool, prompt string) fake.ToolCall {
	return call(tool, fmt.Sprintf(`{"description":"a part of it","prompt":%q}`, prompt))
}

func status(code int) fake.Reply { return fake.Reply{fake.Status{Code: code}} }

// asking is what most scenarios do: prompts to one session, one turn after the other, and an orderly end.
func asking(session string, prompts ...string) func(*stage) {
	return func(s *stage) {
		s.ask(session, prompts...)
		s.shutdown()
	}
}

func answers() []Scenario {
	return []Scenario{
		{
			Name: "reply", What: "one prompt and its answer",
			script: fake.Always(says("Good morning.")...),
			play:   asking("reply", "Greet me."),
		},
		{
			Name: "turns", What: "three turns of a session, and another session beside it",
			script: fake.Echo,
			play: func(s *stage) {
				s.ask("turns", "One.", "Two.", "Three.")
				s.ask("other", "Elsewhere.")
				s.shutdown()
			},
		},
		{
			Name: "reasoning", What: "reasoning before the answer, and tokens from the cache",
			script: fake.Always(
				fake.Split(6, fake.Reasoning("It is early, so I say good morning.")), fake.Split(5, fake.Text("Good morning.")),
				fake.Usage{Prompt: 900, Cached: 512, Completion: 31, Reasoning: 12}),
			play: asking("reasoning", "Greet me."),
		},
		{
			Name: "queued", What: "a prompt sent while a turn runs waits in the inbox and becomes the next turn",
			script: fake.Sequence(
				fake.Reply{fake.Split(5, fake.Text("First part")), fake.Gate("go"), fake.Text(" and second.")}, says("Next.")),
			play: func(s *stage) {
				s.send("queued", "Begin.")
				s.await("queued", "assistant/chunk", "text-delta")
				later := s.send("queued", "And then this.")
				s.model.Release("go")
				s.must(s.server.WaitAnswered(s.ctx, "queued", later))
				s.shutdown()
			},
		},
	}
}

func tools() []Scenario {
	return []Scenario{
		{
			Name: "tool", What: "reasoning and a tool call, its result, the answer",
			script: fake.ByPosition(
				fake.Reply{fake.Split(4, fake.Reasoning("I look first.")), bash("echo found; echo noise >&2")},
				says("It is there.")),
			play: asking("tool", "Look."),
		},
		{
			Name: "parallel-tools", What: "two calls in one answer, their arguments interleaved",
			script: fake.ByPosition(fake.Reply{fake.Parallel(bash("echo one"), bash("echo two"))}, says("Both.")),
			play:   asking("parallel-tools", "Look twice."),
		},
		{
			Name: "tool-errors", What: "a command that fails, a tool that does not exist, arguments cut short, arguments that do not fit",
			script: fake.ByPosition(
				fake.Reply{bash("echo broken; exit 3")}, fake.Reply{call("nothing", `{"a":1}`)},
				fake.Reply{call("bash", `{"command": "ls`)}, fake.Reply{call("bash", `{"wrong":true}`)}, says("Four times.")),
			play: asking("tool-errors", "Fail."),
		},
		{
			Name: "tool-output", What: "more output than the tool returns",
			script: fake.ByPosition(fake.Reply{bash("seq 1 60000")}, says("Long.")),
			play:   asking("tool-output", "Count."),
		},
	}
}

func failures() []Scenario {
	return []Scenario{
		{
			Name: "max-tokens", What: "an answer cut by the output limit",
			script: fake.Always(fake.Split(5, fake.Text("It was a dark and")), fake.Length),
			play:   asking("max-tokens", "Tell me a story."),
		},
		{
			Name: "refused", What: "a turn that the endpoint refuses, and one after it",
			script: fake.Sequence(status(http.StatusBadRequest), says("Now it works.")),
			play:   asking("refused", "Try.", "Again."),
		},
		{
			Name: "filtered", What: "an answer that the endpoint filters",
			script: fake.Always(fake.ContentFilter),
			play:   asking("filtered", "Try."),
		},
		{
			Name: "retried", What: "an attempt that fails at once, one that fails within its stream, one that succeeds",
			script: fake.Sequence(
				status(http.StatusInternalServerError), fake.Reply{fake.Split(5, fake.Text("half an ans")), fake.Cut{}},
				says("A whole answer.")),
			play: asking("retried", "Try."),
		},
		{
			Name: "exhausted", What: "attempts that are all empty",
			script: fake.Always(fake.Stop),
			play:   asking("exhausted", "Try."),
		},
	}
}

func ends() []Scenario {
	// The last delta comes alone, so that it is found in an event, or at the end of a row.
	endless := []fake.Step{fake.Split(5, fake.Text("It begins")), fake.Text(" (here)"), fake.Gate("never")}
	return []Scenario{
		{
			Name: "killed-stream", What: "killed in the second turn, while its answer streams", Open: true,
			script: fake.Sequence(says("Fine."), endless),
			play: func(s *stage) {
				s.ask("killed-stream", "Warm up.")
				s.send("killed-stream", "Go on.")
				s.written("killed-stream", "(here)")
				s.kill()
			},
		},
		{
			Name: "killed-call", What: "killed while the arguments of a call stream", Open: true,
			script: fake.Always(bash("echo never run"), fake.Gate("never")),
			play: func(s *stage) {
				s.send("killed-call", "Work.")
				s.written("killed-call", "tool-call-")
				s.kill()
			},
		},
		{
			Name: "killed-tool", What: "killed while the second of two tools runs", Open: true,
			play: func(s *stage) {
				command, runs := s.latch()
				s.model.SetScript(fake.Always(bash("echo done"), bash(command+"; exec sleep 600")))
				s.send("killed-tool", "Work.")
				runs()
				s.written("killed-tool", s.await("killed-tool", "tool/call", "sleep 600"))
				s.kill()
			},
		},
		{
			Name: "killed-queued", What: "killed with two prompts in the inbox", Open: true,
			script: fake.Always(endless...),
			play: func(s *stage) {
				s.send("killed-queued", "Begin.")
				s.await("killed-queued", "assistant/chunk", "(here)")
				s.send("killed-queued", "Later, this.")
				s.send("killed-queued", "And this.")
				s.written("killed-queued", "And this.")
				s.kill()
			},
		},
		{
			Name: "killed-child", What: "killed while a child's answer streams", Open: true,
			script: cast(
				part{"Delegate this.", fake.Always(delegate("subagent", "Count to three."))},
				part{"Count to three.", fake.Always(endless...)}),
			play: func(s *stage) {
				s.send("killed-child", "Delegate this.")
				s.written("*", "(here)") // the child's
				s.written("killed-child", "tool/call")
				s.kill()
			},
		},
		{
			Name: "terminated", What: "ended by SIGTERM while an answer streams", Open: true,
			script: fake.Always(endless...),
			play: func(s *stage) {
				s.send("terminated", "Begin.")
				s.await("terminated", "assistant/chunk", "(here)")
				s.must(s.server.Terminate(s.ctx))
			},
		},
	}
}

func forms() []Scenario {
	var text strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&text, "%d – \"ä\"\\ 😀\n", i)
	}
	long := fake.Always(
		fake.Split(50, fake.Reasoning(strings.Repeat("Much to say. ", 40))), fake.Split(2500, fake.Text(text.String())))
	return []Scenario{
		{
			Name: "long", What: "an answer in 2,500 deltas, in packed rows",
			script: long, play: asking("long", "Talk."),
		},
		{
			Name: "unpacked", What: "the same with every delta on a line", Persistence: Persistence{Unpacked: true},
			script: long, play: asking("unpacked", "Talk."),
		},
		{
			Name: "compressed", What: "the same compressed", Persistence: Persistence{Compressed: true},
			script: long, play: asking("compressed", "Talk."),
		},
		{
			Name: "names", What: "ids that are no file names; every attempt for the last fails, since no HTTP header can carry it",
			script: fake.Echo,
			play: func(s *stage) {
				for _, id := range []string{"a/b c~d:é", "..", "UPPER_lower-1.2", "😀"} {
					s.ask(id, "Answer.")
				}
				s.shutdown()
			},
		},
	}
}

func children() []Scenario {
	const deep, left, right = "Deep down.", "The left side.", "The right side."
	count := part{"Count to three.", fake.Always(says("One, two, three.")...)}
	return []Scenario{
		{
			Name: "child", What: "a fresh child and its answer",
			script: cast(part{"Delegate this.", fake.ByPosition(fake.Reply{delegate("subagent", count.prompt)}, says("Three."))}, count),
			play:   asking("child", "Delegate this."),
		},
		{
			Name: "tree", What: "two children at once, one of which has a child of its own",
			script: cast(
				part{"Delegate this.", fake.ByPosition(
					fake.Reply{delegate("subagent", left), delegate("subagent", right)}, says("Both sides are done."))},
				part{left, fake.Always(says("Left is done.")...)},
				part{right, fake.ByPosition(fake.Reply{bash("echo right"), delegate("subagent", deep)}, says("Right is done."))},
				part{deep, fake.Always(says("Deep is done.")...)}),
			play: asking("tree", "Delegate this."),
		},
		{
			Name: "fork", What: "a child that begins with its parent's history",
			script: cast(
				part{"Remember blue.", fake.Always(says("I remember.")...)},
				part{"Fork now.", fake.ByPosition(nil, fake.Reply{delegate("fork", "What was it?")}, says("Blue, it says."))},
				part{"What was it?", fake.Always(says("It was blue.")...)}),
			play: asking("fork", "Remember blue.", "Fork now."),
		},
		{
			Name: "background", What: "a child that runs on by itself, and the notice of its end as a turn of its parent",
			script: cast(
				part{"Delegate this.", fake.ByPosition(
					fake.Reply{delegate("background", count.prompt)}, says("It is started."), says("It is done."))},
				part{count.prompt, fake.Always(append(fake.Reply{fake.Gate("started")}, says("One, two, three.")...)...)}),
			play: func(s *stage) {
				s.ask("background", "Delegate this.")
				s.model.Release("started")
				s.await("background", "turn/end", `"turn":2`)
				s.shutdown()
			},
		},
		{
			Name: "child-fails", What: "a child whose turn fails",
			script: cast(
				part{"Delegate this.", fake.ByPosition(fake.Reply{delegate("subagent", count.prompt)}, says("It failed."))},
				part{count.prompt, fake.Always(status(http.StatusBadRequest)...)}),
			play: asking("child-fails", "Delegate this."),
		},
	}
}
