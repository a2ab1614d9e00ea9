// Package agent is the loop: an inbox, turns of steps, one model call a step, the
// tools it asks for, cancellation, and the transactions that create, resume and
// dispose an agent on its session.
//
// A Registry holds the live agents and what they share: sessions, models, tools,
// prompts. Create and Resume publish an agent and return a Handle; whoever holds
// the Handle disposes it. An agent and its session share one id.
//
// Concurrency: an Agent is safe for concurrent use. One goroutine at a time
// drives it, and only while there is something to do: an idle agent costs none.
// One mutex per agent guards its inbox decisions and its activity; the lock order
// is agent, then log. Hooks run without locks. Floor 3.
package agent
