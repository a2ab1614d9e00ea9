// Package jsonx is the one place that says what lossless JSON is, on the way in
// and on the way out (core S3, G1, G3).
//
// In: exactly one value, valid UTF-8 without unpaired surrogates, no duplicate
// keys, no data behind the value, exact key case, a bounded depth, and numbers
// that survive every reader: finite, no negative zero, and integers within
// ±(2^53−1).
//
// Out: encoders append to a buffer, never escape <, > or &, and keep meaningful
// zeros. Floor 0.
package jsonx
