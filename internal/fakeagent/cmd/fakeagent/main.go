// Command fakeagent is an agent in another process that does what its prompt says, for
// tests and for trying a provider by hand: fakeagent PROTOCOL [ARGUMENT…]. Floor T.
package main

import (
	"os"

	"github.com/offshoot-dev/offshoot/internal/fakeagent"
)

func main() {
	os.Exit(fakeagent.Main(os.Args[1:], os.Getenv(fakeagent.Variable), os.Stdin, os.Stdout, os.Stderr))
}
