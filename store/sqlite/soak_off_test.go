//go:build !soak

package sqlite_test

// soak: a sample of the long tests.
const soak = false
