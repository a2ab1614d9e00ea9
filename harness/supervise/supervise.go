// Package supervise lets a program end what it started even if it is killed itself.
//
// The processes that the harness runs, commands of the shell tool and agents that
// are products of their own, start processes in turn, some of which leave their
// parent, their session and their environment behind. On Linux a program that
// calls [Main] puts a supervisor over each of them: the program's own executable, run
// once more, which adopts whatever is orphaned below it and ends all of it when the
// process ends, when it is closed, and when the program dies, however it dies.
//
//	func main() {
//		supervise.Main()
//		// everything else
//	}
//
// A supervisor costs one more process for each, some megabytes and some
// milliseconds at its start. What it cannot end is work that was handed to a process
// outside, such as a service manager or a container engine, and a process that
// runs as another user.
//
// A program that does not call Main is never executed again. On Linux it still ends
// the processes that it can find: those of the group, the session and the descent,
// and those that carry a mark in their environment. If it is killed, only
// the first process of each tree dies with it. On other Unix systems, where Main
// does nothing, it ends the process group, and if it is killed everything goes on.
// Windows has no support for processes yet. Floor 7.
package supervise

import "github.com/offshoot-dev/offshoot/internal/proc"

// Main makes this program one that supervises. Call it first of all in main: it does
// not return in a process that was executed as a supervisor, which must do nothing
// of what the program does; in every other it returns at once. What the program does
// earlier, in the initialisation of its packages, happens in supervisors too.
func Main() { proc.Supervise() }

// Active reports whether processes are supervised: Main was called, and the system
// is one that has supervisors.
func Active() bool { return proc.Supervised() }
