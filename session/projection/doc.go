// Package projection folds logs into small values: who a session is, what it
// spent, what it is called, what it is doing (core D24–D32).
//
// A Unit describes one such value. A Registry holds the units of a program. It
// makes the cells that a live session moves with every append and that travel as
// checkpoints in the batches it stores (Registry.NewCells goes into
// session.Config), and it reads values back: from a stored checkpoint where one
// can be trusted, from the log otherwise (Registry.Read, Registry.ReadAll). What
// the built-in units tell of one session together is a Summary: of a live one
// (Registry.Live), of a record (SummaryOf), or of a log that is read for it
// (Registry.Inspect).
//
// Units see a session's own events only, never those it inherited: an ancestor's
// identity, title or cost is not the child's (amendment P22).
//
// A listing needs no log at all: every batch carries the cells that its events
// changed, so what a record holds is exact as of its head, and IdentityOf,
// UsageOf, TitleOf and StateOf read it from there. Floor 1.
package projection
