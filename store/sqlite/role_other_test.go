//go:build unix && !linux

package sqlite_test

// diskRole is what the other process does where its disk can be made to fail.
func diskRole(string) (code int, ok bool) { return 0, false }
