// Command vuln checks modules for known vulnerabilities, offline: it fails on a vulnerable function of another module
// that is called, and tells of those of the Go release in use, which a newer Go mends.
//
// The database is the module golang.org/x/vulndb at the version of database.go, which the module proxy serves. A first
// scan looks only at what is imported and takes a second. Only if it finds something outside of the standard library
// does a second one follow, which looks at what is called and takes a minute.
//
// usage: vuln DIR...
//
// Each DIR is the root of a module; all its packages are checked, their tests are not. The command is run in this module.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var out strings.Builder
	err := run(ctx, &out, os.Args[1:])
	stop()
	fmt.Print(out.String())
	if err != nil {
		fmt.Fprintln(os.Stderr, "vuln:", err)
		os.Exit(1)
	}
}

// run checks the modules one after the other and writes what it found. Its error says that something is called that
// is vulnerable, or that it cannot be told.
func run(ctx context.Context, out *strings.Builder, dirs []string) error {
	if len(dirs) == 0 {
		return errors.New("usage: vuln DIR")
	}
	db, err := database(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "database %s@%s\n", databasePath, databaseVersion)
	failed, standard := 0, map[string]string{}
	for _, dir := range dirs {
		found, err := scan(ctx, db, dir, "package")
		if err == nil && found.others() > 0 {
			found, err = scan(ctx, db, dir, "symbol")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		fmt.Fprintf(out, "%s: %d modules\n", dir, found.modules)
		failed += found.report(out)
		maps.Copy(standard, found.standard())
	}
	if len(standard) > 0 {
		fmt.Fprintf(out, "in what is used of Go itself, for a newer release to mend:\n")
	}
	for _, id := range slices.Sorted(maps.Keys(standard)) {
		fmt.Fprintf(out, "  %s\n", standard[id])
	}
	if failed > 0 {
		return fmt.Errorf("vulnerabilities that are called: %d", failed)
	}
	return nil
}
