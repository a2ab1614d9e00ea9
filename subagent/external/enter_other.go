//go:build !unix

package external

import "os"

func mayEnter(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return d.Close()
}
