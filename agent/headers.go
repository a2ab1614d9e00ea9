package agent

import (
	"fmt"
	"slices"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// headerEntry caches a request header, so that agents with the same model, tools
// and prompt share one encoding.
type headerEntry struct {
	set    *tool.Toolset
	system string
	hdr    *session.RequestHeader
}

type specEntry struct {
	set  *tool.Toolset
	llm  []llm.ToolSpec
	logd []session.ToolSpec
}

// cacheSize bounds both caches; more than that many different agents at once
// only encode more often.
const cacheSize = 32

func (r *Registry) spec(set *tool.Toolset) (*specEntry, error) {
	for _, e := range r.tools {
		if e.set == set {
			return e, nil
		}
	}
	specs := set.Specs()
	e := &specEntry{set: set}
	if len(specs) > 0 {
		e.llm = make([]llm.ToolSpec, len(specs))
		e.logd = make([]session.ToolSpec, len(specs))
	}
	for i, s := range specs {
		// The model gets the very bytes that the log holds.
		params, err := jsonx.Compact(s.Parameters)
		if err != nil {
			return nil, fmt.Errorf("parameters of tool %q: %w", s.Name, err)
		}
		e.llm[i] = llm.ToolSpec{Name: s.Name, Description: s.Description, Parameters: params}
		e.logd[i] = session.ToolSpec{Name: s.Name, Description: s.Description, Parameters: params}
	}
	r.tools = push(r.tools, e)
	return e, nil
}

func push[E any](list []*E, e *E) []*E {
	if len(list) >= cacheSize {
		list = slices.Delete(list, 0, cacheSize/2)
	}
	return append(list, e)
}

// header returns the request header for a prepared call and the tools as the
// model gets them.
func (r *Registry) header(p *llm.Prepared, set *tool.Toolset, system string, reason session.HeaderReason) (*session.RequestHeader, []llm.ToolSpec, error) {
	cfg := session.CallConfig{
		Provider: p.Config.Provider, Model: p.Config.Model, ReasoningEffort: p.Config.ReasoningEffort,
		Temperature: p.Config.Temperature, MaxTokens: p.Config.MaxTokens, Stop: p.Config.Stop,
	}
	r.cacheMu.Lock()
	defer r.cacheMu.Unlock()
	spec, err := r.spec(set)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range r.headers {
		h := e.hdr
		if e.set == set && h.Reason == reason && h.DefaultEffort == p.Defaults.ReasoningEffort && h.DefaultMaxTokens == p.Defaults.MaxTokens &&
			h.Config.Equal(&cfg) && e.system == system {
			return h, spec.llm, nil
		}
	}
	h := session.NewRequestHeader(session.RequestHeader{
		Config: cfg, DefaultEffort: p.Defaults.ReasoningEffort, DefaultMaxTokens: p.Defaults.MaxTokens,
		System: system, Tools: spec.logd, Reason: reason,
	})
	r.headers = push(r.headers, &headerEntry{set: set, system: system, hdr: h})
	return h, spec.llm, nil
}
