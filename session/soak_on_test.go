//go:build soak

package session_test

// soak: the whole of the long tests.
const soak = true
