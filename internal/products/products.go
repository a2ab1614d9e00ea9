// Package products finds the real products that tests drive, and drives them: it starts a product as a child process
// with an environment of its own, against a fake model on loopback, and hands out what it did.
//
// Products are installed in sets, one folder of tools/products each, by tools/products.sh into a cache outside of the
// repository; make test PRODUCTS=1 does that and says in OFFSHOOT_PRODUCTS where the sets are. Without it a test that
// needs a product skips and says how to run it; with it a missing product fails the test.
//
// The set agents holds the agents of other vendors ([FindAgents]). The harness set is the upstream runtime's SDK server with the package that writes its sessions
// as JSONL. [StartServer] runs it, and [Scenarios] make session logs with it. Floor T.
package products

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/internal/proc"
)

// Variable is the environment variable that names the installed sets: SET=DIR, joined by the system's list separator.
// SET alone says that this system cannot have the set.
const Variable = "OFFSHOOT_PRODUCTS"

// patience bounds everything that a product is waited for. It is far above what is ever needed, since two cores may
// run many tests.
const patience = 90 * time.Second

// find returns the folder of an installed set. It skips the test where no sets were asked for, or this one is not for
// this system, and fails it where it should be there and is not.
func find(t testing.TB, set string) string {
	t.Helper()
	dir, skip, err := lookUp(os.Getenv(Variable), set)
	switch {
	case err != nil:
		t.Fatal(err)
	case skip != "":
		t.Skip(skip)
	}
	return dir
}

// lookUp reads the list of installed sets. Exactly one of its results is not zero.
func lookUp(list, set string) (dir, skip string, err error) {
	if list == "" {
		return "", fmt.Sprintf("needs the product set %q: run make test PRODUCTS=1", set), nil
	}
	for _, entry := range filepath.SplitList(list) {
		name, dir, found := strings.Cut(entry, "=")
		switch {
		case name != set:
		case !found:
			return "", fmt.Sprintf("the product set %q cannot be had on this system; make test PRODUCTS=1 said why", set), nil
		case !filepath.IsAbs(dir):
			return "", "", fmt.Errorf("%s: the folder of the product set %q is not absolute: %q", Variable, set, dir)
		default:
			return dir, "", nil
		}
	}
	return "", "", fmt.Errorf("%s=%q has no product set %q: run make test PRODUCTS=1", Variable, list, set)
}

// file fails the test if a file of an installed set is not there.
func file(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s: a product is not whole; remove its set's folder and run make test PRODUCTS=1: %v", Variable, err)
	}
}

// launch starts a product's process with pipes for its input and output. Of this process's environment it inherits
// PATH alone; home is where it may keep what it likes, and env is added to that. The caller closes the process.
func launch(home, dir string, env map[string]string, stderr io.Writer, path string, args ...string) (*proc.Process, error) {
	merged := map[string]string{"HOME": home, "TMPDIR": home}
	for name, value := range env {
		merged[name] = value
	}
	return proc.Start(proc.Config{
		Path: path, Args: args, Dir: dir,
		Environ: []string{"PATH=" + os.Getenv("PATH")}, Env: merged,
		StdinPipe: true, StdoutPipe: true, Stderr: stderr,
		Grace: 10 * time.Second,
	})
}
