// Command fakemodel serves a fake model on loopback until it is told to stop, for trying a client by hand: it obeys
// the directives in the prompt and echoes the rest. It prints the base URL, and nothing else, on standard output.
// Floor T.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run serves until ctx ends and returns the exit code: 0 after a proper end, 1 when it cannot serve, 2 for wrong
// usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("fakemodel", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "127.0.0.1:0", "`address` to listen on")
	dialect := flags.String("dialect", string(fakemodel.OpenAI), "whose wire: "+dialects())
	key := flags.String("key", "", "bearer key to require")
	models := flags.String("models", "", "comma-separated models; others are then refused")
	lenient := flags.Bool("lenient", false, "accept histories that real endpoints refuse")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if flags.NArg() > 0 {
		_, _ = fmt.Fprintf(stderr, "fakemodel: unexpected argument %q\n", flags.Arg(0)) // nowhere else to tell it
		return 2
	}
	known, err := fakemodel.ParseDialect(*dialect)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, err) // nowhere else to tell it
		return 2
	}
	if err := serve(ctx, stdout, fakemodel.Options{
		Addr:    *addr,
		Dialect: known,
		Key:     *key,
		Models:  strings.FieldsFunc(*models, func(r rune) bool { return r == ',' }),
		Lenient: *lenient,
		Discard: true,
	}); err != nil {
		_, _ = fmt.Fprintln(stderr, err) // nowhere else to tell it
		return 1
	}
	return 0
}

func serve(ctx context.Context, stdout io.Writer, opts fakemodel.Options) error {
	server, err := fakemodel.Open(opts)
	if err != nil {
		return err
	}
	defer server.Close()
	if _, err := fmt.Fprintln(stdout, server.URL()); err != nil {
		return fmt.Errorf("fakemodel: print the URL: %w", err)
	}
	return server.Wait(ctx)
}

func dialects() string {
	var names []string
	for _, d := range fakemodel.Dialects() {
		names = append(names, string(d))
	}
	return strings.Join(names, ", ")
}
