//go:build unix && !soak

package main

// restartRuns is how many times TestRestarts plays.
const restartRuns = 300
