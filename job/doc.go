// Package job runs background work for agents: work that goes on when the tool call
// which began it has returned.
//
// A job has one owner, the exact live agent that began it, and nobody else can read
// or kill it. Work and results are bounded, a job is over only when what it held is
// released, and its owner is told once, by a notice. Jobs do not outlive their owner
// or the process: they are no events of the log, but the tool result that named one
// and the notice that told of its end are, and Recover derives from those what a
// resumed owner has to be told.
//
// The package knows nothing of what a job does; whoever starts one passes a body.
// It keeps one goroutine per job, joined by the owner's disposal. Floor 4.
package job
