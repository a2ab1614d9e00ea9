// Package session is the log and everything that follows from it.
//
// A Session is an immutable Header and an append-only list of Events whose seq
// is their index. Whatever reached or can reach a model, and whatever was
// accepted, is an event; history, inbox, request header and counts are folds of
// the log that move with every append and never re-read it (design § 4).
//
// Callers use Registry: it prepares sessions (fresh, seeded, or read back and
// repaired from a Store), makes them live, and flushes them. Implementers of a
// backend write a Store; package storetest is its conformance suite.
//
// Concurrency: a Session is safe for concurrent use. One mutex guards its log
// and folds; nothing is called under it but code of this package and the
// registered Validators, which must not call back. Observers run after the lock
// is released, one event at a time, in seq order (core G6). Floor 1.
package session
