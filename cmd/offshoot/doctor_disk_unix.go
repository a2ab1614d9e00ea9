//go:build linux || darwin || freebsd

package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// freeSpace returns how many bytes a person without privileges can still write
// below a folder; known is false where the platform cannot tell.
func freeSpace(dir string) (free uint64, known bool, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, false, fmt.Errorf("free space of %s: %w", dir, err)
	}
	// The fields differ in type between the platforms; a negative number of blocks
	// is how some tell of reserved ones.
	return uint64(max(0, int64(st.Bavail))) * uint64(st.Bsize), true, nil
}
