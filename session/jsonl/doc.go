// Package jsonl is the form in which logs travel: one JSON object a line, the
// header first, then the events, in the format that the upstream runtime writes and
// reads (core D13–D16). It is no live backend (design § 5.10).
//
// # A log
//
// The first line is the session's header with the member "type" set to "session";
// every further line is one event exactly as session.Event.AppendEnvelope writes it
// (core S1), in order, from seq 0 on. Events that the session inherited are among
// them. Every line ends in a line feed.
//
// In the place of at least three consecutive assistant/chunk events of one block a
// log may hold one packed row, whose type is "text-chunks", "reasoning-chunks" or
// "tool-call-chunks". Its members are exactly type, seq0, time0 and data; data has
// turn, step, index, dt and texts, or turn, step, index, dt, id, args and perhaps
// name. Chunk k has the seq seq0 + k, the time time0 + the first k of dt, and the
// k-th of the texts or args. A Reader expands rows; a Writer writes none, since
// this product stores no chunks (design § 4).
//
// A stream may hold several logs, one behind the other: each header begins one.
//
// # A folder
//
// A folder of logs holds each in <project>/<session>/session.jsonl, where the
// project is made of the session's cwd by Slug and the session of its id by
// EscapeID.
//
// # Reading
//
// A Reader keeps one line in memory, of at most MaxLine bytes. A last line that was
// cut is dropped and reported by Torn; anything else that cannot be read, that is
// out of sequence or that has a member which the format lacks is a
// *session.CorruptError, another format version an *session.UnsupportedError, both
// inside an *Error that names the file and the line. What an event's payload says
// is for session.Registry to judge. Floor 1.
package jsonl
