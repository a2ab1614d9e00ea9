package archtest_test

// house is the design as data. A package, a dependency, a goroutine or an exception that is not in these tables fails
// the test: add the row in the change that needs it, with the sentence that says why.
func house() policy {
	return policy{
		floors: []floor{
			{name: "0", packages: []string{"message", "internal/jsonx", "internal/rpcconn", "internal/proc"}},
			{name: "1", packages: []string{"session", "session/projection"}},
			{name: "2", packages: []string{"llm", "tool", "prompt"}},
			{name: "3", packages: []string{"agent"}},
			{name: "4", packages: []string{"job", "compact", "subagent/internal/owners", "subagent/internal/compose"}},
			{name: "5", packages: []string{"subagent"}},
			{name: "6", adapters: true, packages: []string{
				"subagent/internal/inproc", "subagent/internal/remote",
				"subagent/spawn", "subagent/fork",
				"subagent/acp", "subagent/codex", "subagent/claudecode", "subagent/dsh",
				"subagent/delegate",
				"store/memory", "store/sqlite", "store/postgres",
				"llm/internal/wire", "llm/scripted", "llm/openai", "llm/anthropic",
				"tool/shell", "tool/files", "tool/mcp",
			}},
			{name: "7", packages: []string{"harness", "harness/config"}},
			{name: "8", packages: []string{"serve/control", "serve/acp", "serve/sdk", "web"}},
			{name: "9", packages: []string{"cmd/offshoot"}},
			{name: floorT, packages: []string{
				"store/storetest", "llm/llmtest", "subagent/subagenttest",
				"internal/archtest", "internal/fakemodel", "internal/fakemodel/cmd/fakemodel", "internal/scenario",
			}},
		},
		sameFloor: []edge{
			{"session/projection", "session", "units are folded over the log's own events"},
			{"subagent/spawn", "subagent/internal/inproc", "the in-process providers share one driver"},
			{"subagent/fork", "subagent/internal/inproc", "the in-process providers share one driver"},
			{"subagent/acp", "subagent/internal/remote", "the out-of-process providers share one driver"},
			{"subagent/codex", "subagent/internal/remote", "the out-of-process providers share one driver"},
			{"subagent/claudecode", "subagent/internal/remote", "the out-of-process providers share one driver"},
			{"subagent/dsh", "subagent/internal/remote", "the out-of-process providers share one driver"},
			{"llm/openai", "llm/internal/wire", "the adapters of HTTP endpoints share what guards a stream"},
			{"llm/anthropic", "llm/internal/wire", "the adapters of HTTP endpoints share what guards a stream"},
			{"harness", "harness/config", "the composition root reads the configuration"},
			{"web", "serve/control", "the page and the control socket are served by one handler"},
		},
		dependencies: []dependency{
			{module: "github.com/openai/openai-go", only: []string{"llm/openai"}},
			{module: "github.com/anthropics/anthropic-sdk-go", only: []string{"llm/anthropic"}},
			{module: "modernc.org", only: []string{"store/sqlite"}},
			{module: "github.com/jackc/pgx", only: []string{"store/postgres"}},
			{module: "github.com/modelcontextprotocol/go-sdk", only: []string{"tool/mcp"}},
			{module: "github.com/spf13/cobra", only: []string{"cmd/offshoot"}},
			{module: "github.com/spf13/pflag", only: []string{"cmd/offshoot"}},
			{module: "golang.org/x/term", only: []string{"cmd/offshoot"}},
			{module: "charm.land", only: []string{"cmd/offshoot"}},
			{module: "go.opentelemetry.io/otel/sdk", only: []string{"cmd/offshoot"}},
			{module: "go.opentelemetry.io/otel/exporters", only: []string{"cmd/offshoot"}},
			{module: "github.com/santhosh-tekuri/jsonschema", only: []string{"tool"}},
			{module: "golang.org/x/text", only: []string{"tool"}}, // the validator words its faults through it
			{module: "go.yaml.in/yaml", only: []string{"harness/config"}},
			{module: "go.opentelemetry.io/otel"},
			{module: "github.com/google/uuid"},
			{module: "golang.org/x/sync"},
			{module: "golang.org/x/sys"},
			{module: "github.com/coder/acp-go-sdk", testOnly: true},
			{module: "github.com/google/go-cmp", testOnly: true},
			{module: "github.com/rogpeppe/go-internal", testOnly: true},
			{module: "go.uber.org/goleak", testOnly: true},
			{module: "pgregory.net/rapid", testOnly: true},
		},
		documented: []string{"session", "agent", "subagent", "llm", "tool", "prompt"},
		// Files that may begin a context of their own: file, reason.
		background: []row{},
		// Files that may panic, beside panic(http.ErrAbortHandler): file, reason.
		panics: []row{
			{"internal/fakemodel/stream.go", "a step that cannot be played; net/http logs it and cuts the connection, which is what a broken fake should look like"},
			{"store/storetest/faulty.go", "a store that is told to panic, to test that panics are contained"},
			{"llm/scripted/step.go", "the part Panic: a script's broken adapter, to test that panics are contained"},
			{"internal/fakemodel/json.go", "a value of a type that the fake never builds: a fault of the fake itself, seen in its own tests"},
		},
		// Files that may sleep on the real clock: file, reason.
		sleeps: []row{},
		// Package-level variables that hold state: package.name, reason.
		state: []row{},
		// The goroutine ledger: file that starts goroutines, who joins them.
		ledger: []row{
			{"agent/agent.go", "the driver: Dispose waits for its activity's done channel; the AfterFunc of maintenance is stopped when the job returns"},
			{"agent/dispose.go", "a disposal: every Dispose waits for gone"},
			{"agent/observe.go", "an observer: its stop function waits for done"},
			{"agent/tools.go", "tool bodies: the step waits for all of them"},
			{"cmd/offshoot/approve.go", "the AfterFunc that ends a read: stopped when the question is answered"},
			{"cmd/offshoot/output.go", "the writer of stdout: finish waits for it, or gives up a reader that takes nothing"},
			{"cmd/offshoot/stop.go", "the reader of signals and the time limit: stopper.end waits for it; the timer of an exit at once ends the process"},
			{"tool/files/dir.go", "the deadline of a read: stopped when the file is closed"},
			{"cmd/offshoot/progress.go", "the redraw: progress.stop waits for it"},
			{"cmd/offshoot/run.go", "the wait for the root: it ends with the root, which Harness.Close joins"},
			{"internal/fakemodel/fakemodel.go", "the accept loop: Server.Close waits for its served channel"},
			{"internal/proc/proc.go", "the supervisor of a process and its copies: Process.Close waits for done"},
			{"llm/internal/wire/exchange.go", "the idle timer of one exchange: stopped when its body is closed"},
			{"session/flush.go", "the write-behind window: a closed session's callback only takes the lock and leaves"},
			{"session/projection/read.go", "cold reads of one listing: ReadAll waits for them"},
			{"store/sqlite/sqlite.go", "group commit and heartbeat: Store.Close waits for it"},
			{"store/storetest/write.go", "concurrent writers: the test waits for them"},
			{"subagent/internal/inproc/run.go", "the release of a run: every Close waits for it; the AfterFunc on the caller's ctx is stopped at settlement"},
			{"subagent/start.go", "the watcher of a run: Service.Close waits for it"},
			{"subagent/subagenttest/scripted.go", "the fixture's runs: their Close waits for them"},
			{"subagent/subagenttest/suite_cases.go", "concurrent callers: the test waits for them"},
			{"tool/body.go", "the AfterFunc that fuses two contexts: stopped when the wrapped call returns"},
		},
	}
}
