package anthropic

import (
	"fmt"
	"slices"
	"strings"

	sdk "github.com/anthropics/anthropic-sdk-go/v2"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/internal/wire"
)

// thinkingStyle says how a model is told how much to think.
type thinkingStyle int

const (
	// thinkingAdaptive: thinking.type adaptive, the depth as output_config.effort.
	thinkingAdaptive thinkingStyle = iota
	// thinkingBudget: thinking.type enabled with a number of tokens.
	thinkingBudget
)

// offStyle says how a model is told not to think.
type offStyle int

const (
	// offDisabled: thinking.type disabled.
	offDisabled offStyle = iota
	// offSilent: nothing is sent, which is off.
	offSilent
	// offBetweenTools: thinking.type between_tools, the least that the model takes.
	offBetweenTools
	// offNever: the model always thinks.
	offNever
)

// model is one row of the table: all that differs between the models.
type model struct {
	id        string
	window    int64
	maxTokens int64
	style     thinkingStyle
	off       offStyle
	efforts   []string
	// always marks models that think unless told otherwise.
	always bool
	// bound marks models that refuse the thinking of an earlier turn once anything
	// before it has changed.
	bound bool
}

// budget is how many tokens an effort is worth to models that count them.
func budget(effort string) int64 {
	switch effort {
	case "low":
		return 4_096
	case "medium":
		return 12_288
	default:
		return 24_576
	}
}

// minBudget is the least that the API takes.
const minBudget = 1_024

// models is the table. The default bound on the answer leaves room for thinking,
// which counts towards it, and is half of what the model can do at most.
func models() []model {
	most := []string{"low", "medium", "high", "xhigh", "max"}
	row := func(id string, off offStyle, bound bool) model {
		return model{id: id, window: 1_000_000, maxTokens: 64_000, off: off, efforts: most, always: true, bound: bound}
	}
	quiet := func(id string, efforts []string) model {
		return model{id: id, window: 1_000_000, maxTokens: 64_000, off: offSilent, efforts: efforts}
	}
	counted := func(id string) model {
		return model{id: id, window: 200_000, maxTokens: 32_000, style: thinkingBudget, off: offSilent, efforts: most[:3]}
	}
	return []model{
		row("claude-fable-5-2", offNever, true),
		row("claude-mythos-5-2", offNever, true),
		row("claude-opus-5-5", offNever, true),
		row("claude-sonnet-5-5", offBetweenTools, true),
		row("claude-haiku-5-5", offDisabled, true),
		row("claude-fable-5-1", offNever, true),
		row("claude-mythos-5-1", offNever, true),
		row("claude-fable-5", offNever, false),
		row("claude-mythos-5", offNever, false),
		row("claude-opus-5", offDisabled, false),
		row("claude-sonnet-5", offDisabled, false),
		quiet("claude-opus-4-8", most),
		quiet("claude-opus-4-7", most),
		quiet("claude-opus-4-6", []string{"low", "medium", "high", "max"}),
		quiet("claude-sonnet-4-6", []string{"low", "medium", "high", "max"}),
		counted("claude-opus-4-5"),
		counted("claude-sonnet-4-5"),
		counted("claude-haiku-4-5"),
	}
}

// modelNamed returns the row of a model, dated ids included. For one that is not
// in the table it returns what is safe: nothing is refused here, and thinking is
// not mentioned unless the request does. A model of the vendor's that is newer
// than the table is taken to guard its thinking as the newest do.
func modelNamed(id string) model {
	for _, m := range models() {
		if rest, ok := strings.CutPrefix(id, m.id); ok && (rest == "" || isDate(rest)) {
			return m
		}
	}
	return model{id: id, bound: strings.HasPrefix(id, "claude-")}
}

// isDate reports whether a suffix is "-20260131" or the like.
func isDate(suffix string) bool {
	return len(suffix) == 9 && suffix[0] == '-' && strings.Trim(suffix[1:], "0123456789") == ""
}

// maxTokensFor returns the bound on the answer, which the API requires.
func (m model) maxTokensFor(req *llm.Request) int64 {
	switch {
	case req.MaxTokens > 0:
		return req.MaxTokens
	case m.maxTokens > 0:
		return m.maxTokens
	default:
		return DefaultMaxTokens
	}
}

// setThinking writes the reasoning effort into the parameters, whose MaxTokens is
// set; "" is the model's own default. Where the model thinks, its thoughts are
// asked for in a readable form: left to itself the API sends only signatures, and
// with them hides what the model says between two tool calls.
func (m model) setThinking(effort string, p *sdk.MessageNewParams) error {
	switch {
	case effort == "off":
		return m.setOff(p)
	case effort == "" && !m.always:
		return nil
	case effort != "" && m.efforts != nil && !slices.Contains(m.efforts, effort):
		return wire.Fail(llm.CodeUnsupportedEffort, fmt.Sprintf("model %s does not take reasoning effort %q (it takes %q)", m.id, effort, m.efforts))
	}
	switch m.style {
	case thinkingBudget:
		// A bound that leaves no room for thinking wins over the wish to think.
		if tokens := min(budget(effort), p.MaxTokens/2); tokens >= minBudget {
			p.Thinking = sdk.ThinkingConfigParamOfEnabled(tokens)
		}
	case thinkingAdaptive:
		p.Thinking.OfAdaptive = &sdk.ThinkingConfigAdaptiveParam{Display: sdk.ThinkingConfigAdaptiveDisplaySummarized}
		p.OutputConfig.Effort = sdk.OutputConfigEffort(effort)
	}
	return nil
}

func (m model) setOff(p *sdk.MessageNewParams) error {
	switch m.off {
	case offNever:
		return wire.Fail(llm.CodeUnsupportedEffort, fmt.Sprintf("model %s always thinks: reasoning effort \"off\" is not possible (the least is \"low\")", m.id))
	case offBetweenTools:
		between := sdk.NewThinkingConfigBetweenToolsParam()
		p.Thinking.OfBetweenTools = &between
	case offDisabled:
		disabled := sdk.NewThinkingConfigDisabledParam()
		p.Thinking.OfDisabled = &disabled
	case offSilent:
	}
	return nil
}
