//go:build !soak

package subagent_test

// soak: a sample of the long tests.
const soak = false
