package main

import (
	"fmt"

	"golang.org/x/sys/windows"
)

// freeSpace returns how many bytes this person can still write below a folder;
// known is false where the platform cannot tell.
func freeSpace(dir string) (free uint64, known bool, err error) {
	name, err := windows.UTF16PtrFromString(dir)
	if err == nil {
		err = windows.GetDiskFreeSpaceEx(name, &free, nil, nil)
	}
	if err != nil {
		return 0, false, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return free, true, nil
}
