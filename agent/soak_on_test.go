//go:build soak

package agent_test

// soak: the whole of the long tests.
const soak = true
