package session

// Encoded returns the bytes that an append of the payload would store, or why it
// would be refused.
func Encoded(p Payload) ([]byte, error) {
	if c, ok := p.(checker); ok {
		if err := c.check(); err != nil {
			return nil, err
		}
	}
	return p.appendJSON(nil), nil
}

// Types lists the vocabulary.
func Types() []Type {
	var out []Type
	for _, info := range vocabulary() {
		out = append(out, info.typ)
	}
	return out
}
