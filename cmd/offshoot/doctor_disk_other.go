//go:build !linux && !darwin && !freebsd && !windows

package main

// freeSpace returns how many bytes can still be written below a folder; known is
// false where the platform cannot tell.
func freeSpace(string) (free uint64, known bool, err error) { return 0, false, nil }
