package fakeagent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// As is the environment variable that makes a test binary an agent: the name of a protocol.
// See Become.
const As = "FAKEAGENT_AS"

// Become does not return in a process whose environment names a protocol in As: it is an
// agent then. A test binary calls it first in TestMain, behind proc.Supervise, and is its
// own peer.
func Become() {
	if name := os.Getenv(As); name != "" {
		os.Exit(Main(append([]string{name}, os.Args[1:]...), os.Getenv(Variable), os.Stdin, os.Stdout, os.Stderr))
	}
}

// Main runs the program and returns its exit status, 2 for wrong usage: its first argument
// names the protocol, the others are those of the product that it stands for. faults is the
// value of Variable.
func Main(args []string, faults string, in io.Reader, out, errs io.Writer) int {
	fail := func(err error) int {
		_, _ = fmt.Fprintln(errs, "fakeagent:", err) // nowhere else to tell it
		return 2
	}
	wrong, err := ParseFaults(faults)
	if err != nil {
		return fail(err)
	}
	if len(args) == 0 {
		return fail(errors.New("the first argument names a protocol"))
	}
	p := Named(args[0])
	if p == nil {
		return fail(fmt.Errorf("protocol %q is unknown", args[0]))
	}
	a := New(Parse, wrong, args[1:], in, out)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	go func() { // ends with the process
		for range signals {
			if !wrong.IgnoreTerm {
				a.Quit(128 + int(syscall.SIGTERM))
			}
		}
	}()
	return a.Serve(p)
}
