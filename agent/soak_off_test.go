//go:build !soak

package agent_test

// soak: a sample of the long tests.
const soak = false
