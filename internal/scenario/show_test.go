package scenario_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/subagent"
)

func parseLog(a *args) action {
	name := a.word("an agent")
	from := int64(0)
	var only []string
	a.options(func(word string) bool {
		switch word {
		case "from":
			from = a.number("a number")
		case "only":
			only = a.list("event types")
			for _, typ := range only {
				if a.err == nil && !isType(typ) {
					a.fail("no event type is named %q", typ)
				}
			}
		default:
			return false
		}
		return true
	})
	return func(w *world) {
		for e := range w.anyAgent(name).Session().Events(from) {
			if only == nil || slices.Contains(only, string(e.Type)) {
				w.say("%s", event(e, e.Payload()))
			}
		}
	}
}

// anyAgent returns an agent, be it of an ended process.
func (w *world) anyAgent(name string) *agent.Agent {
	w.t.Helper()
	if a := w.agents[name]; a == nil && w.gone[name] != nil {
		return w.gone[name]
	}
	return w.agent(name)
}

func parseHeader(a *args) action {
	name := a.word("an agent")
	return func(w *world) {
		h := w.anyAgent(name).Session().Header()
		w.say("%s", header(h))
		if owner := w.anyAgent(name).Owner(); owner != nil {
			w.say("owned by %s", owner.ID())
		}
	}
}

// header writes the fields that are there.
func header(h session.Header) string {
	parts := []string{string(h.ID)}
	add := func(key string, value any) {
		if !reflect.ValueOf(value).IsZero() {
			parts = append(parts, fmt.Sprintf("%s %v", key, value))
		}
	}
	add("cwd", h.Cwd)
	add("parentSession", h.ParentSession)
	add("origin", h.Origin)
	add("delegationDepth", h.DelegationDepth)
	add("seedLength", h.SeedLength)
	return strings.Join(parts, ", ")
}

func parseSent(a *args) action {
	name := a.word("an agent")
	n := int64(0)
	if a.peek("call") {
		n = a.number("a number")
	}
	return func(w *world) {
		var reqs []*llm.Request
		for _, c := range w.system().Adapter.Calls() {
			if c.Request.SessionID == w.anyAgent(name).SessionID() {
				reqs = append(reqs, c.Request)
			}
		}
		if len(reqs) == 0 || int(n) > len(reqs) {
			w.fatal("%s made %d model calls", name, len(reqs))
		}
		req := reqs[len(reqs)-1]
		if n > 0 {
			req = reqs[n-1]
		}
		w.say("to %s:%s%s", req.Provider, req.Model, config(req))
		w.say("system %q", req.System)
		tools := make([]string, len(req.Tools))
		for i := range req.Tools {
			tools[i] = req.Tools[i].Name
		}
		w.say("tools %s", list(tools))
		for i := range req.Messages {
			m := &req.Messages[i]
			w.say("%s: %s", m.Role, said(*m))
		}
	}
}

func config(req *llm.Request) string {
	s := ""
	if req.MaxTokens != 0 {
		s += fmt.Sprintf(", at most %d tokens", req.MaxTokens)
	}
	if req.ReasoningEffort != "" {
		s += ", effort " + req.ReasoningEffort
	}
	return s
}

func parseTools(a *args) action {
	name := ""
	if a.more() {
		name = a.word("an agent")
	}
	return func(w *world) {
		scope := w.system().Tools.Root()
		if name != "" {
			scope = w.agent(name).Tools()
		}
		var names []string
		for _, s := range scope.Specs() {
			names = append(names, s.Name)
		}
		w.say("%s", list(names))
	}
}

func parseDescribe(a *args) action {
	name, parameters := a.word("a tool"), a.peek("parameters")
	return func(w *world) {
		d := w.system().Tools.Root().Toolset().Lookup(name)
		if d == nil {
			w.fatal("no tool is named %q", name)
		}
		if parameters {
			w.say("%s", d.Parameters)
			return
		}
		for line := range strings.SplitSeq(d.Description, "\n") {
			w.say("%s", line)
		}
	}
}

func parseProviders(*args) action {
	return func(w *world) {
		names := w.system().Service.Providers()
		for _, name := range names {
			p, ok := w.sys.Service.Provider(name)
			if !ok {
				w.fatal("provider %s is listed and not there", name)
			}
			begins := "anew"
			if p.InheritsParentContext() {
				begins = "with the conversation"
			}
			w.say("%s: can %s; a child begins %s", name, list(abilities(p.Capabilities())), begins)
		}
		if len(names) == 0 {
			w.say("none")
		}
	}
}

func abilities(c subagent.Capabilities) (names []string) {
	for _, flag := range []struct {
		name string
		has  bool
	}{{"outputSchema", c.OutputSchema}, {"depthLimit", c.DepthLimit}, {"toolFilter", c.ToolFilter}, {"persona", c.Persona}} {
		if flag.has {
			names = append(names, flag.name)
		}
	}
	return names
}

func parseReceived(a *args) action {
	name := a.word("a provider")
	return func(w *world) {
		p := w.providers[name]
		if p == nil || p.remote == nil {
			w.fatal("no remote provider is named %q", name)
		}
		var lines []string
		for _, req := range p.remote.Starts() {
			lines = append(lines, received(req))
		}
		slices.Sort(lines) // those of one step come in any order
		for _, line := range lines {
			w.say("%s", line)
		}
		if lines == nil {
			w.say("nothing")
		}
	}
}

// received writes the request that reached a provider.
func received(req *subagent.ResolvedRequest) string {
	parts := []string{fmt.Sprintf("prompt %s for %s", blocks(req.Prompt), req.Parent.ID())}
	if req.Label != nil {
		parts = append(parts, fmt.Sprintf("label %q", *req.Label))
	}
	if req.Model != (subagent.Model{}) {
		parts = append(parts, fmt.Sprintf("model %s:%s, at most %d tokens", req.Model.Provider, req.Model.Model, req.Model.MaxTokens))
	}
	if req.MaxDepth != nil {
		parts = append(parts, fmt.Sprintf("cap %d", *req.MaxDepth))
	}
	if f := req.ToolFilter; f != nil {
		parts = append(parts, fmt.Sprintf("allow %v, deny %v", f.Allow, f.Deny))
	}
	if req.Persona != nil {
		parts = append(parts, fmt.Sprintf("persona %q", req.Persona.Text))
	}
	if req.OutputSchema != nil {
		parts = append(parts, "schema "+string(req.OutputSchema))
	}
	return strings.Join(append(parts, "descriptor "+descriptor(req.Descriptor)), ", ")
}

// parsePrepared shows all that a provider was given to prepare children with.
func parsePrepared(a *args) action {
	name := a.word("a provider")
	return func(w *world) {
		p := w.providers[name]
		if p == nil {
			w.fatal("no provider is named %q", name)
		}
		w.mu.Lock()
		list := p.prepared
		w.mu.Unlock()
		for _, got := range list {
			var parts []string
			v := reflect.ValueOf(got.prep)
			for i := range v.NumField() {
				field := v.Field(i).Interface()
				if a, ok := field.(*agent.Agent); ok {
					field = a.ID()
				}
				parts = append(parts, fmt.Sprintf("%s %v", v.Type().Field(i).Name, field))
			}
			ended := "its context is over"
			if got.ctx.Err() == nil {
				ended = "its context is open"
			}
			w.say("asked for %s; %s", strings.Join(parts, ", "), ended)
		}
		if list == nil {
			w.say("never asked")
		}
	}
}

// parseOperations lists what the holder of a run can do with it, what the service
// offers, or what a host can do.
func parseOperations(a *args) action {
	a.literal("of")
	name := a.word("a run, service or host")
	return func(w *world) {
		t := reflect.TypeFor[subagent.Run]()
		switch name {
		case "service":
			t = reflect.TypeFor[*subagent.Service]()
		case "host":
			t = reflect.TypeFor[*subagent.Host]()
		default:
			w.startedRun(name)
		}
		var names []string
		for m := range t.Methods() {
			names = append(names, m.Name)
		}
		w.say("%s", list(names))
	}
}

// parseIdentify shows what a stored log says that its session is, and what each
// descriptor in it is worth.
func parseIdentify(a *args) action {
	name := a.word("a session")
	return func(w *world) {
		ctx, id := w.t.Context(), session.ID(name)
		if w.agents[name] != nil {
			id = w.agents[name].ID()
			w.check(w.agents[name].Session().Flush(ctx))
		}
		r, err := projection.NewRegistry(projection.IdentityUnit())
		w.check(err)
		rec, events, err := w.inner.Inspect(ctx, id)
		w.check(err)
		for e, err := range events {
			w.check(err)
			if e.Type != session.TypeDescriptor {
				continue
			}
			_, err := session.ParseDescriptor(e.Data())
			switch {
			case errors.Is(err, session.ErrDescriptorVersion):
				w.say("%d cannot be classified: %v", e.Seq, err)
			case err != nil:
				w.say("%d is corrupt: %v", e.Seq, err)
			case e.Seq < rec.Header.SeedLength:
				w.say("%d is an ancestor's", e.Seq)
			default:
				w.say("%d is its own", e.Seq)
			}
		}
		identity, err := r.Read(ctx, w.inner, rec, session.CellIdentity)
		w.check(err)
		w.say("identity %s", identity.AppendJSON(nil))
	}
}

// parseOverlap tells how many model calls were under way at the same time.
func parseOverlap(*args) action {
	return func(w *world) {
		w.say("%d model calls are under way, %d at the most", w.system().Adapter.InFlight(), w.sys.Adapter.MaxInFlight())
	}
}

func parseStored(a *args) action {
	name := ""
	if a.more() {
		name = a.word("an agent")
	}
	return func(w *world) {
		if w.inner == nil {
			w.fatal("the story has no store")
		}
		ctx := w.t.Context()
		if name != "" {
			_, events, err := w.inner.Inspect(ctx, w.anyAgent(name).ID())
			w.check(err)
			for e, err := range events {
				w.check(err)
				p, err := w.system().Sessions.PayloadOf(e)
				w.check(err)
				w.say("%s", event(e, p))
			}
			return
		}
		l, err := w.inner.List(ctx, session.Filter{}, session.Page{})
		w.check(err)
		var lines []string
		for _, r := range l.Records {
			lines = append(lines, fmt.Sprintf("%s, %d events", w.names.normal(header(r.Header)), r.Head))
		}
		slices.SortFunc(lines, func(a, b string) int { return compareNames(head(a), head(b)) })
		for _, line := range lines {
			w.say("%s", line)
		}
		if lines == nil {
			w.say("nothing")
		}
	}
}

func head(line string) string {
	name, _, _ := strings.Cut(line, ",")
	return name
}

// parseLeft tells what is live, and which runs are not closed.
func parseLeft(*args) action {
	return func(w *world) {
		s := w.system()
		var agents, sessions, open []string
		for _, a := range s.Agents.List() {
			agents = append(agents, w.names.name(a.ID()))
		}
		for _, l := range s.Sessions.List() {
			sessions = append(sessions, w.names.name(l.ID()))
		}
		for _, name := range sorted(w.runs) {
			if r := w.runs[name]; r.run != nil && !r.closed {
				open = append(open, name)
			}
		}
		for _, name := range sorted(w.providers) {
			if p := w.providers[name]; p.remote != nil && p.remote.Active() > 0 {
				open = append(open, fmt.Sprintf("%d at %s", p.remote.Active(), name))
			}
		}
		slices.SortFunc(agents, compareNames)
		slices.SortFunc(sessions, compareNames)
		w.say("agents %s; sessions %s; open runs %s", list(agents), list(sessions), list(open))
	}
}
