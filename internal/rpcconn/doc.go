// Package rpcconn is one peer of a line-delimited JSON protocol over a byte stream,
// as the agents in other processes speak it.
//
// It has two layers. A [Stream] carries lines both ways: whole lines, bounded, in
// order, and with an end that releases whoever waits. A [Conn] speaks JSON-RPC on
// it, with or without the member jsonrpc: calls and their answers, notifications,
// and requests of the peer. A protocol with an envelope of its own takes the Stream
// and decodes for itself.
//
// Everything that the peer sends reaches the owner in the order of the wire, from
// one goroutine: a notification, a fault, and the arrival of a request. The only
// things that run beside that are the answers to requests and the return of Call,
// so nothing may be concluded from whether a call returns before or after a
// notification is handed over: [Conn.Send] tells when an answer comes, in that order.
//
// A connection ends once, with one cause: the peer's end, a line that is too long,
// a line that the owner does not forgive, a broken pipe, or the owner's own word.
// Every call that waits and every later one gets that same [*ClosedError]. Floor 0.
package rpcconn
