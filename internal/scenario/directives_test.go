package scenario_test

import (
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/subagent"
)

// A directive is one thing that a script can say. The package comment lists them all.
type directive struct {
	usage string
	parse func(a *args) action
}

// directives returns every directive by its first word.
func directives() map[string]directive {
	return map[string]directive{
		// What there is.
		"store":    {"store memory|sqlite", parseStore},
		"identity": {"identity TEXT", parseIdentity},
		"persona":  {"persona TEXT", parsePersona},
		"limit":    {"limit depth N", parseLimit},
		"approver": {"approver allows|rejects [at GATE]", parseApprover},
		"route":    {"route NAME", parseRoute},
		"agent":    {"agent NAME [cwd PATH] [route NAME] [model NAME] [max-tokens N] [effort NAME] [runtime-depth N] [from log|turns of AGENT]", parseAgent},
		"foreign":  {"foreign NAME below SESSION [ordinary] [checkpoint TEXT], and indented lines of EVENT-TYPE JSON", parseForeign},
		"tool":     {"tool NAME [of AGENT] [asking TEXT] [until GATE]", parseTool},
		"drop":     {"drop NAME", parseDrop},
		"provider": {"provider NAME|default is spawn|fork|remote|seeding [able LIST] [inheriting] [publishing at GATE] [failing TEXT] " +
			"[preparing at GATE] [deaf], and below one that is seeding indented lines of EVENT-TYPE JSON [at N]", parseProvider},
		"delegate": {"delegate TOOL to PROVIDER [about TEXT] [model NAME] [persona TEXT] [allow LIST] [deny LIST] [schema JSON] [cap N] [uncapped] " +
			"[continuable] [background]", parseDelegate},
		"when":    {"when asked TEXT|anything else | when told by a child | when PROVIDER is asked TEXT, and indented lines of what is answered", parseWhen},
		"refuse":  {"refuse EVENT-TYPE TEXT | refuse writes TEXT | refuse prompt TEXT | refuse reading SESSION TEXT", parseRefuse},
		"hook":    {"hook fails|edits|vetoes", parseHook},
		"mount":   {"mount shell TEXT", parseMountShell},
		"notices": {"notices off", parseNotices},
		"setup":   {"setup NAME [at GATE] [failing TEXT] [sticking TEXT]", parseSetup},
		"offer":   {"offer send_message|interrupt_agent|list_agents|report [DELIVERY]", parseOffer},
		"hear":    {"hear faults|inboxes", parseHear},
		"on":      {"on creation cancel RUN|CALL | on creation dispose AGENT | on creation drain below AGENT | on creation list children of SESSION", parseOn},

		// What happens.
		"start": {"start RUN on PROVIDER for AGENT|nobody TEXT [label TEXT] [cap N] [allow LIST] [deny LIST] [filter without lists] " +
			"[persona TEXT] [literal TEXT] [route NAME] [model NAME] [max-tokens N] [schema JSON|TEXT] [cancelled]", parseStart},
		"begin": {"begin CALL on PROVIDER for AGENT|nobody TEXT [label TEXT] [reserving ID] [cap N] [allow LIST] [deny LIST] " +
			"[persona TEXT] [literal TEXT] [route NAME] [model NAME] [max-tokens N] [cancelled]", parseBegin},
		"followup":   {"followup CALL for AGENT|nobody to CHILD TEXT [claiming AGENT|a-person] [cancelled]", parseFollowup},
		"report":     {"report CALL of AGENT TEXT DELIVERY|unsaid [cancelled]", parseReport},
		"drain":      {"drain below LIST | drain children LIST of AGENT | drain everything", parseDrain},
		"host":       {"host sends CALL to CHILD of SESSION TEXT [cancelled] | host interrupts|closes|waits for CHILD of SESSION | host recovers AGENT", parseHost},
		"withdraw":   {"withdraw NAME", parseWithdraw},
		"compact":    {"compact AGENT", parseCompact},
		"mend":       {"mend", parseMend},
		"change":     {"change request of RUN|CALL | change seed of PROVIDER", parseChange},
		"cancel":     {"cancel RUN|CALL", parseCancel},
		"wait":       {"wait RUN [times N] [briefly]", parseWait},
		"close":      {"close RUN [times N] [briefly]", parseClose},
		"prompt":     {"prompt AGENT TEXT", parsePrompt},
		"inject":     {"inject AGENT TEXT", parseInject},
		"interrupt":  {"interrupt AGENT [by AGENT]", parseInterrupt},
		"switch":     {"switch AGENT sandbox NAME", parseSwitch},
		"dispose":    {"dispose AGENT", parseDispose},
		"open":       {"open GATE", parseOpen},
		"hold":       {"hold writes|readers|turns of AGENT|subagents at GATE", parseHold},
		"pass":       {"pass DURATION", parsePass},
		"unregister": {"unregister PROVIDER", parseUnregister},
		"unmount":    {"unmount TOOL", parseUnmount},
		"end":        {"end the process", parseEnd},
		"crash":      {"crash", parseCrash},
		"resume":     {"resume AGENT [runtime-depth N]", parseResume},

		// What is shown.
		"log":        {"log AGENT [from N] [only LIST]", parseLog},
		"header":     {"header AGENT", parseHeader},
		"sent":       {"sent AGENT [call N]", parseSent},
		"tools":      {"tools [AGENT]", parseTools},
		"describe":   {"describe TOOL [parameters]", parseDescribe},
		"providers":  {"providers", parseProviders},
		"received":   {"received PROVIDER", parseReceived},
		"prepared":   {"prepared PROVIDER", parsePrepared},
		"operations": {"operations of RUN|service|host", parseOperations},
		"identify":   {"identify SESSION", parseIdentify},
		"overlap":    {"overlap", parseOverlap},
		"stored":     {"stored [AGENT]", parseStored},
		"list":       {"list children|descendants of SESSION [without projections] [without sessions]", parseList},
		"readers":    {"readers", parseReaders},
		"left":       {"left", parseLeft},
	}
}

// before makes an action of one that belongs in front of everything else.
func before(what string, fn action) action {
	return func(w *world) {
		if w.sys != nil {
			w.fatal("%s comes too late: the system is made", what)
		}
		fn(w)
	}
}

func parseStore(a *args) action {
	kind := a.literal("memory", "sqlite")
	return before("store", func(w *world) { w.storeKind = kind })
}

func parseIdentity(a *args) action {
	text := a.text("a text")
	return before("identity", func(w *world) { w.opts.Identity = text })
}

func parsePersona(a *args) action {
	text := a.text("a text")
	return before("persona", func(w *world) { w.opts.Persona = text })
}

func parseLimit(a *args) action {
	a.literal("depth")
	n := a.number("a number")
	return before("limit", func(w *world) { w.opts.MaxDepth = &n })
}

func parseNotices(a *args) action {
	a.literal("off")
	return before("notices", func(w *world) { w.opts.NoNotices = true })
}

// capabilities takes a list of the four by their names.
func capabilities(a *args) (c subagent.Capabilities) {
	for _, name := range a.list("capabilities") {
		switch name {
		case "outputSchema":
			c.OutputSchema = true
		case "depthLimit":
			c.DepthLimit = true
		case "toolFilter":
			c.ToolFilter = true
		case "persona":
			c.Persona = true
		case "everything":
			c = subagent.Capabilities{OutputSchema: true, DepthLimit: true, ToolFilter: true, Persona: true}
		default:
			if a.err == nil {
				a.fail("no capability is named %q", name)
			}
		}
	}
	return c
}

func text(s string) []message.Block { return []message.Block{message.Text(s)} }
