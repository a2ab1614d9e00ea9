package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
)

// childrenFlags are the flags of offshoot agents children.
type childrenFlags struct {
	descendants, json bool
	limit             int
	after             string
	paged             bool // limit or after was given
}

func newAgentsChildrenCommand(a *app) *cobra.Command {
	var f childrenFlags
	cmd := &cobra.Command{
		Use:   "children ID",
		Short: "List the agents that an agent delegated to",
		Long: "Lists the direct children of an agent in the order in which they were created, or with\n" +
			"--descendants the whole tree below it. Sessions that were not delegated have no line.\n\n" +
			"ACTIVITY is running while a live process holds the child's log, and inactive otherwise: it\n" +
			"tells neither how the work went nor whether the child can be continued. STOP is how its\n" +
			"last turn ended, WORKED the time that it spent in turns, up to now while it is in one,\n" +
			"CHILDREN whether it delegated in turn. A child whose log does not say who it is, or cannot\n" +
			"be read, is told as what it is; one that is being created is left out.\n\n" +
			"--limit lists a page; what it leaves out follows with --after and the position that is told\n" +
			"then. Pages neither repeat nor skip a child, whatever is created meanwhile.\n\n" +
			"--json writes one object a line. kind child: id, mode (one-shot or continuable), label,\n" +
			"activity, hasChildren, createdAt (ms since the epoch), and as far as they are known title,\n" +
			"provider, model (ROUTE:MODEL), stopReason, tokens, requests, workedMs. kind diagnostic: id,\n" +
			"reason (corrupt or unavailable), createdAt. Both with --descendants: parent and depth. kind\n" +
			"more, last on a page that is not the last: after.",
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.paged = cmd.Flags().Changed("limit") || cmd.Flags().Changed("after")
			return a.withShelf(cmd, func(ctx context.Context, s *shelf) error {
				return a.listChildren(ctx, s, args[0], f)
			})
		},
	}
	cmd.Flags().BoolVar(&f.descendants, "descendants", false, "list the whole tree below the agent")
	cmd.Flags().BoolVar(&f.json, "json", false, "write one JSON object a line")
	cmd.Flags().IntVar(&f.limit, "limit", 0, fmt.Sprintf("list a page of at most `N` lines, %d at most", subagent.MaxPageLimit))
	cmd.Flags().StringVar(&f.after, "after", "", "list the page behind this `POSITION`")
	return cmd
}

func (a *app) listChildren(ctx context.Context, s *shelf, name string, f childrenFlags) error {
	rec, missing := s.resolve(ctx, name)
	id := rec.Header.ID
	switch {
	case missing == nil:
	case errors.Is(missing, session.ErrNotFound) && s.store != nil:
		// An agent that was removed may have left children.
		id = session.ID(name)
	default:
		return missing
	}
	page, err := s.subagents(ctx, id, f)
	switch {
	case errors.Is(err, subagent.ErrInvalidRequest):
		return usagef("%w", err)
	case err != nil:
		return err
	case len(page.Rows) == 0 && missing != nil:
		return missing
	case len(page.Rows) == 0 && page.Next == "":
		return a.say("no agents below " + printable(string(id)))
	}
	return a.writeChildren(page, f)
}

// subagents lists from the store alone: nothing is live in this process.
func (s *shelf) subagents(ctx context.Context, id session.ID, f childrenFlags) (page subagent.RowPage, err error) {
	stored, err := session.NewRegistry(ctx, session.Config{Store: s.store})
	if err != nil {
		return page, err
	}
	l := subagent.Lister{Sessions: stored, Projections: s.units}
	p := subagent.ListPage{Limit: f.limit, After: f.after}
	switch {
	case f.paged && f.descendants:
		return l.PageDescendants(ctx, id, p)
	case f.paged:
		return l.PageChildren(ctx, id, p)
	case f.descendants:
		page.Rows, err = l.ListDescendants(ctx, id)
	default:
		page.Rows, err = l.ListChildren(ctx, id)
	}
	return page, err
}

// childJSON is one line of --json.
type childJSON struct {
	Kind        subagent.RowKind  `json:"kind"`
	ID          session.ID        `json:"id"`
	Reason      subagent.Reason   `json:"reason,omitempty"`
	Mode        string            `json:"mode,omitempty"`
	Label       *string           `json:"label,omitempty"`
	Activity    subagent.Activity `json:"activity,omitempty"`
	HasChildren *bool             `json:"hasChildren,omitempty"`
	Parent      session.ID        `json:"parent,omitempty"`
	Depth       int               `json:"depth,omitempty"`
	CreatedAt   int64             `json:"createdAt"`
	Title       string            `json:"title,omitempty"`
	Provider    string            `json:"provider,omitempty"`
	Model       string            `json:"model,omitempty"`
	StopReason  session.EndKind   `json:"stopReason,omitempty"`
	Tokens      *int64            `json:"tokens,omitempty"`
	Requests    *int64            `json:"requests,omitempty"`
	WorkedMS    int64             `json:"workedMs,omitempty"`
}

// moreJSON is the last line of a page that is not the last.
type moreJSON struct {
	Kind  string `json:"kind"`
	After string `json:"after"`
}

func newChildJSON(r *subagent.Row, now time.Time) childJSON {
	c := childJSON{Kind: r.Kind, ID: r.ID, Reason: r.Reason, Mode: r.Mode, Label: r.Label, Activity: r.Activity, Parent: r.Parent, Depth: r.Depth, CreatedAt: r.CreatedAt}
	if r.Kind != subagent.RowChild {
		return c
	}
	c.HasChildren = &r.HasChildren
	sum := r.Summary()
	if sum.Title != nil {
		c.Title = sum.Title.Text
	}
	if sum.Identity != nil {
		c.Provider = sum.Identity.Provider
	}
	if u := sum.Usage; u != nil {
		tokens := u.Tokens.Total()
		c.Tokens, c.Requests = &tokens, &u.Requests
		c.Model = (&summary{usage: *u}).model()
	}
	if sum.State != nil {
		t := sum.Timing()
		if t.Since > 0 && r.Activity == subagent.ActivityRunning {
			t.Through = max(t.Since, now.UnixMilli()) // its turn goes on
		}
		c.StopReason, c.WorkedMS = sum.State.Reason, t.Total()
	}
	return c
}

func (a *app) writeChildren(page subagent.RowPage, f childrenFlags) error {
	w := bufio.NewWriter(a.stdout)
	if f.json {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		for i := range page.Rows {
			if err := enc.Encode(newChildJSON(&page.Rows[i], a.now())); err != nil {
				return err
			}
		}
		if page.Next != "" {
			if err := enc.Encode(moreJSON{"more", page.Next}); err != nil {
				return err
			}
		}
		return w.Flush()
	}
	table := newTable(w)
	if err := cells(table, "CHILD", "MODE", "ACTIVITY", "STOP", "TOKENS", "WORKED", "CHILDREN", "ID"); err != nil {
		return err
	}
	levels := make([]int, len(page.Rows))
	for i := range page.Rows {
		levels[i] = max(0, page.Rows[i].Depth-1) // the agent itself has no line
	}
	lines := branches(levels)
	told := map[session.ID]bool{}
	for i := range page.Rows {
		c := newChildJSON(&page.Rows[i], a.now())
		name, below, tokens := c.name(), "", ""
		if told[c.ID] = true; c.Depth > 1 && !told[c.Parent] {
			name += " (of " + string(c.Parent) + ")" // which has no line, or not on this page
		}
		if c.HasChildren != nil && *c.HasChildren {
			below = "yes"
		}
		if c.Tokens != nil {
			tokens = count(*c.Tokens)
		}
		if err := cells(table, lines[i]+name, c.Mode, string(c.Activity), string(c.StopReason), tokens, lasted(c.WorkedMS), below, string(c.ID)); err != nil {
			return err
		}
	}
	if err := errors.Join(table.Flush(), w.Flush()); err != nil || page.Next == "" {
		return err
	}
	return a.say("more follow: --after " + printable(page.Next))
}

// name is what the child is called in the table.
func (c *childJSON) name() string {
	switch {
	case c.Reason == subagent.ReasonCorrupt:
		return "corrupt: its log does not say who it is"
	case c.Reason == subagent.ReasonUnavailable:
		return "unavailable: its log cannot be read"
	case c.Reason != "":
		return string(c.Reason)
	case c.Label != nil && *c.Label != "":
		return clip(oneLine(*c.Label), 60)
	case c.Title != "":
		return clip(oneLine(c.Title), 60)
	}
	return "untitled"
}
