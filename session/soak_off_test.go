//go:build !soak

package session_test

// soak: a sample of the long tests.
const soak = false
