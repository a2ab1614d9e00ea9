package jsonl

import "io"

// Limit gives a Reader another longest line, so that a test needs not be so long.
func Limit(r *Reader, most int) { r.most = most }

// Fill is how an export fills its file.
func Fill(f interface {
	io.WriteCloser
	Sync() error
}, write func(*Writer) error) error {
	return fill(f, write)
}
