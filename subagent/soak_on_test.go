//go:build soak

package subagent_test

// soak: the whole of the long tests.
const soak = true
