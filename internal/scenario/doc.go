// Package scenario holds the stories of the whole system: what the seeds promise, as
// scripts that a stranger can read, each with the outcome that must come of it. The
// scripts are the files testdata/*.txt; this package has no code beside its tests.
//
// # A script
//
// A script begins with its title, behind "# ", and what it is about. A line such as
//
//	C045  ended before publication, the start fails and nothing is left
//
// names a clause that it tells, as docs/seam.md counts them, in ascending order, with what
// the clause says. Behind the line "---" stand the steps. A step is one directive in a
// line; some take indented lines below it. Lines that begin with "| " are the outcome of
// the step above them: all that happened until nothing went on by itself any more. Lines
// that begin with "#" explain. Whatever is not known is an error with file and line.
//
// A step's outcome holds, in this order: news of providers and questions to people; child
// by child its creation, the edges of its run and its disposal, and of a continuable child
// its turns between them; the turns of other agents;
// the calls that returned, among them some that an earlier step began. Children are named
// as they come, child-1 or, elsewhere, after their provider, far-1; of those that began at
// the same time the one whose call stands first in the parent's log is the first. Runs are
// run-1 and so on, messages that continuable children accepted message-1. There are no times: a story runs in a bubble of testing/synctest, on a
// clock of its own.
//
//	go test ./internal/scenario            plays all stories
//	go test ./internal/scenario -update    writes what happened into the scripts
//
// testdata/clauses lists which clauses a story must tell, and which ones wait for what.
//
// # Words
//
// TEXT is quoted as in Go, JSON an object, LIST names with commas between them, or
// "nothing". A GATE is a name at which something waits until "open GATE". An AGENT is one
// that the story made, or a child. A RUN is a name that "start" gives, a
// CALL one that an operation on a continuable child gets, so that its caller can be cancelled.
//
// # What there is
//
//	store memory|sqlite
//	identity TEXT
//	persona TEXT
//	limit depth N
//	approver allows|rejects [at GATE]
//	route NAME
//	agent NAME [cwd PATH] [route NAME] [model NAME] [max-tokens N] [effort NAME] [runtime-depth N] [from log|turns of AGENT]
//	foreign NAME below SESSION [ordinary] [checkpoint TEXT], and indented lines of EVENT-TYPE JSON
//	tool NAME [of AGENT] [asking TEXT] [until GATE]
//	drop NAME
//	provider NAME|default is spawn|fork|remote|seeding [able LIST] [inheriting] [publishing at GATE] [failing TEXT]
//	      [preparing at GATE] [deaf], and below one that is seeding indented lines of EVENT-TYPE JSON [at N]
//	delegate TOOL to PROVIDER [about TEXT] [model NAME] [persona TEXT] [allow LIST] [deny LIST] [schema JSON] [cap N] [uncapped]
//	      [continuable] [background]
//	when asked TEXT|anything else | when told by a child | when PROVIDER is asked TEXT, and indented lines of what is answered
//	refuse EVENT-TYPE TEXT | refuse writes TEXT | refuse prompt TEXT | refuse reading SESSION TEXT
//	hook fails|edits|vetoes
//	mount shell TEXT
//	notices off
//	setup NAME [at GATE] [failing TEXT] [sticking TEXT]
//	offer send_message|interrupt_agent|list_agents|report [DELIVERY]
//	hear faults|inboxes
//	on creation cancel RUN|CALL | on creation dispose AGENT | on creation drain below AGENT | on creation list children of SESSION
//
// Without a store the logs are in memory alone. "able" lists outputSchema, depthLimit,
// toolFilter, persona or everything. A SESSION is an agent or the name of a foreign log:
// one that was stored as it is, by another build or damaged, with a checkpoint of its
// identity where that is given; ordinary, it is no subagent. A tool that asks needs an approval; one with a gate
// does not hear of a cancel. "refuse" makes subagents' logs refuse events of a type, the
// store refuse what is written of subagents or, once, to read a log, or a hook reject a
// prompt before its step.
// "on creation" does something once, when the next child is announced.
//
// A provider whose preparation of continuable children waits at a gate hears of a cancel
// there, unless it is deaf; one that is failing fails to prepare; one that is seeding
// begins each child with the events below it. "setup" contributes a tool of its name to
// every continuable child; one that is sticking cannot be taken back. "offer" registers
// a tool through which models deal with continuable children; what stands in its arguments
// as the name of an agent reaches it as the agent's id. "hear" has the story tell what is
// logged because nobody else can be told, or the three changes of every inbox.
//
// What children tell, in reports and in settlement notices, is answered with "Noted." unless
// the story says otherwise. What is answered to a prompt is one line for each call of a model, made of
//
//	say TEXT  think TEXT  call TOOL JSON|TEXT  hold at GATE  hang  fail CODE TEXT
//	refuse TEXT  panic TEXT  cut  break  stop
//
// where hang waits until it is cancelled, cut ends at the token limit, break breaks the
// stream off, and stop says no more. A remote child answers with one line of
//
//	say TEXT  end REASON  diagnose TEXT  capture JSON  hold at GATE  lose CODE TEXT  stick TEXT
//
// where lose is a result that cannot be had and stick a child that is not released.
//
// # What happens
//
//	start RUN on PROVIDER for AGENT|nobody TEXT [label TEXT] [cap N] [allow LIST] [deny LIST] [filter without lists]
//	      [persona TEXT] [literal TEXT] [route NAME] [model NAME] [max-tokens N] [schema JSON|TEXT] [cancelled]
//	change request of RUN|CALL | change seed of PROVIDER
//	cancel RUN|CALL
//	wait RUN [times N] [briefly]
//	close RUN [times N] [briefly]
//	begin CALL on PROVIDER for AGENT|nobody TEXT [label TEXT] [reserving ID] [cap N] [allow LIST] [deny LIST]
//	      [persona TEXT] [literal TEXT] [route NAME] [model NAME] [max-tokens N] [cancelled]
//	followup CALL for AGENT|nobody to CHILD TEXT [claiming AGENT|a-person] [cancelled]
//	report CALL of AGENT TEXT DELIVERY|unsaid [cancelled]
//	drain below LIST | drain children LIST of AGENT | drain everything
//	host sends CALL to CHILD of SESSION TEXT [cancelled] | host interrupts|closes|waits for CHILD of SESSION | host recovers AGENT
//	withdraw NAME
//	compact AGENT
//	mend
//	prompt AGENT TEXT
//	inject AGENT TEXT
//	interrupt AGENT [by AGENT]
//	switch AGENT sandbox NAME
//	dispose AGENT
//	open GATE
//	hold writes|readers|turns of AGENT|subagents at GATE
//	pass DURATION
//	unregister PROVIDER
//	unmount TOOL
//	end the process
//	crash
//	resume AGENT [runtime-depth N]
//
// "cancel" ends the context that was given to Start or to a call; "briefly" waits with a context
// that has ended already; "change" scribbles over everything that Start was given, or over the
// slice of events that a provider has handed over. "begin" starts a continuable child, whose
// label is "work" if nothing else is said. An AGENT that acts may be "former AGENT", the object
// of that name before it was resumed. "interrupt" alone is a person's, who drops what
// waits; by an agent it stops the turn of a child below that one. "mend" takes back what was
// refused. Behind
// "end the process" and "crash" the next step begins another process over the same store.
//
// # What is shown
//
//	log AGENT [from N] [only LIST]
//	header AGENT
//	sent AGENT [call N]
//	tools [AGENT]
//	describe TOOL [parameters]
//	providers
//	received PROVIDER
//	prepared PROVIDER
//	operations of RUN|service|host
//	identify SESSION
//	overlap
//	stored [AGENT]
//	list children|descendants of SESSION [without projections] [without sessions]
//	readers
//	left
//
// "sent" is what the model was sent, last or in the call of that number; "received" what
// reached a provider, "prepared" all that it was given to prepare continuable children with; "identify" what a stored log says that its session is; "stored" what
// the store holds; "list" which subagents a session has, and how many logs were read for
// it; "readers" how many are being read; "left" what is live, and which runs are not closed.
//
// Floor T.
package scenario
