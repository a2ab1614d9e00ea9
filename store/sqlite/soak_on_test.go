//go:build soak

package sqlite_test

// soak: the whole of the long tests.
const soak = true
