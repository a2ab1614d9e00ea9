package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

func newListCommand(a *app) *cobra.Command {
	var asJSON, all bool
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List sessions, newest first",
		Long: "Lists the sessions that people started, newest first; with --all those of delegated\n" +
			"agents too, which are marked with an arrow.\n\n" +
			"STATE is idle; running: a live process works on it; interrupted: its process ended in\n" +
			"the middle of a turn; queued: it has work that no turn has taken up; parked: such work came\n" +
			"in with an imported session and waits for your next prompt; or unreadable.\n" +
			"EVENTS of a fork are its own, and behind the plus those that it began with; its tokens\n" +
			"are its own alone.\n\n" +
			"--json writes one object a line: id, title, model (ROUTE:MODEL), events, tokens, state,\n" +
			"cwd, createdAt and updatedAt (ms since the epoch), live (a process holds it), requests,\n" +
			"usage, root; of delegated ones also parentSession, depth, mode, provider and label; of\n" +
			"forks seedLength, which events includes; and error where a session cannot be read.",
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usagef("flag --limit: %d is no number of sessions", limit)
			}
			return a.withShelf(cmd, func(ctx context.Context, s *shelf) error {
				if s.store == nil {
					return a.say(s.why)
				}
				out := newRows(a, asJSON)
				f := session.Filter{Top: !all}
				n := 0
				for rec, err := range s.records(ctx, f, session.Page{Newest: true, Limit: min(limit, listPage)}) {
					if err != nil {
						return err
					}
					if err := out.add(s.row(ctx, rec)); err != nil {
						return err
					}
					if n++; n == limit {
						break
					}
				}
				if n == 0 {
					return a.say("no sessions yet")
				}
				return out.flush()
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write one JSON object a line")
	cmd.Flags().BoolVar(&all, "all", false, "list the sessions of delegated agents too")
	cmd.Flags().IntVar(&limit, "limit", 0, "list at most `N` sessions; 0 is all")
	return cmd
}

// say writes a remark for people to stderr.
func (a *app) say(text string) error {
	_, err := fmt.Fprintln(a.stderr, "offshoot: "+text)
	return err
}

// row is one session of a listing, and its form in JSON.
type row struct {
	ID            session.ID `json:"id"`
	Title         string     `json:"title"`
	Model         string     `json:"model"`
	Events        int64      `json:"events"`
	SeedLength    int64      `json:"seedLength,omitempty"`
	Tokens        int64      `json:"tokens"`
	State         string     `json:"state"`
	Cwd           string     `json:"cwd"`
	CreatedAt     int64      `json:"createdAt"`
	UpdatedAt     int64      `json:"updatedAt"`
	Live          bool       `json:"live"`
	Requests      int64      `json:"requests"`
	Usage         *usageJSON `json:"usage,omitempty"`
	Root          session.ID `json:"root"`
	ParentSession session.ID `json:"parentSession,omitempty"`
	Depth         int64      `json:"depth,omitempty"`
	Mode          string     `json:"mode,omitempty"`
	Provider      string     `json:"provider,omitempty"`
	Label         string     `json:"label,omitempty"`
	Error         string     `json:"error,omitempty"`
}

type usageJSON struct {
	InputTokens      int64 `json:"inputTokens"`
	OutputTokens     int64 `json:"outputTokens"`
	CacheReadTokens  int64 `json:"cacheReadTokens"`
	CacheWriteTokens int64 `json:"cacheWriteTokens"`
	ReasoningTokens  int64 `json:"reasoningTokens"`
}

func newUsageJSON(u message.Usage) *usageJSON {
	return &usageJSON{u.InputTokens, u.OutputTokens, u.CacheReadTokens, u.CacheWriteTokens, u.ReasoningTokens}
}

// unreadable is the state of a session whose record or log makes no sense.
const unreadable = "unreadable"

func (s *shelf) row(ctx context.Context, rec session.Record) row {
	h := rec.Header
	r := row{
		ID: h.ID, Events: rec.Head, SeedLength: h.SeedLength, Cwd: h.Cwd, CreatedAt: h.CreatedAt, UpdatedAt: rec.UpdatedAt, Live: rec.Live,
		Root: rec.Meta.Root, ParentSession: h.ParentSession, Depth: h.DelegationDepth,
	}
	sum, err := s.summarize(ctx, rec)
	if err != nil {
		r.State, r.Error = unreadable, err.Error()
		return r
	}
	r.Title, r.Model, r.State = sum.title.Text, sum.model(), sum.state.Activity(rec.Live)
	r.Tokens, r.Requests, r.Usage = sum.usage.Tokens.Total(), sum.usage.Requests, newUsageJSON(sum.usage.Tokens)
	if sum.ident != nil {
		r.Mode, r.Provider = sum.ident.Mode, sum.ident.Provider
		if sum.ident.Label != nil {
			r.Label = *sum.ident.Label
		}
	}
	return r
}

// size is how many events the session has: its own, and what it inherited.
func (r *row) size() string {
	if r.SeedLength == 0 {
		return strconv.FormatInt(r.Events, 10)
	}
	return fmt.Sprintf("%d+%d", r.Events-r.SeedLength, r.SeedLength)
}

// sizeInWords is size as a text.
func (r *row) sizeInWords() string {
	if r.SeedLength == 0 {
		return plural(r.Events, "event")
	}
	return fmt.Sprintf("%s of its own", plural(r.Events-r.SeedLength, "event"))
}

// rows writes a listing: a table, or one object a line.
type rows struct {
	now   time.Time
	buf   *bufio.Writer
	json  *json.Encoder
	table *tabwriter.Writer
	n     int
}

// tableRows is how many rows are aligned with each other: a long list is shown
// before all of it was read.
const tableRows = 1000

// listPage is the most that a listing takes from the store at once.
const listPage = 1000

func newRows(a *app, asJSON bool) *rows {
	r := &rows{now: a.now(), buf: bufio.NewWriter(a.stdout)}
	if asJSON {
		r.json = json.NewEncoder(r.buf)
		r.json.SetEscapeHTML(false)
		return r
	}
	r.table = newTable(r.buf)
	return r
}

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

func (r *rows) add(s row) error {
	if r.json != nil {
		return r.json.Encode(s)
	}
	if r.n == 0 {
		if err := cells(r.table, "ID", "AGE", "STATE", "EVENTS", "TOKENS", "MODEL", "CWD", "TITLE"); err != nil {
			return err
		}
	}
	title := s.Title
	if s.Error != "" {
		title = s.Error
	}
	if s.ParentSession != "" {
		if s.Label != "" {
			title = s.Label
		}
		title = "↳ " + title
	}
	err := cells(r.table, string(s.ID), age(r.now, s.CreatedAt), s.State, s.size(), count(s.Tokens),
		s.Model, s.Cwd, clip(title, 60))
	if r.n++; err == nil && r.n%tableRows == 0 {
		err = r.table.Flush()
	}
	return err
}

func (r *rows) flush() error {
	if r.table != nil {
		if err := r.table.Flush(); err != nil {
			return err
		}
	}
	return r.buf.Flush()
}
