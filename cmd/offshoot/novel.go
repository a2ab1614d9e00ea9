package main

import "errors"

// novel returns what of an error has causes that told does not have: a store that
// fails does so again when the run is closed, and is worth one line.
func novel(err, told error) error {
	if list, ok := err.(interface{ Unwrap() []error }); ok && joined(err.Error(), list.Unwrap()) {
		var rest []error
		for _, part := range list.Unwrap() {
			if part = novel(part, errors.Join(told, errors.Join(rest...))); part != nil {
				rest = append(rest, part)
			}
		}
		return errors.Join(rest...)
	}
	known, causes := map[string]bool{}, map[string]bool{}
	innermost(told, known)
	innermost(err, causes)
	for cause := range causes {
		if !known[cause] {
			return err
		}
	}
	return nil
}

// innermost collects the texts of the causes that an error ends in.
func innermost(err error, texts map[string]bool) {
	switch e := err.(type) { //nolint:errorlint // each level is looked at
	case nil:
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			innermost(part, texts)
		}
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			innermost(inner, texts)
			return
		}
		texts[err.Error()] = true
	default:
		texts[err.Error()] = true
	}
}
