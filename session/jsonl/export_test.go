package jsonl

// Limit gives a Reader another longest line, so that a test needs not be so long.
func Limit(r *Reader, most int) { r.most = most }
