// Package compact keeps the conversations of agents within the windows of their
// models. When a step is due and what the next request would hold comes near the
// window, it first shortens long results of tools that the model has read already, and
// then, if that is not enough, has the model write a summary that takes the place of
// everything but the newest part of the conversation (core D38, D39). A call that fails
// because it is too long is made possible once in the same way (D40).
//
// Only the surface of the log changes: what was said stays in it, as do descriptors,
// lineage and whatever else is no message (D42), and a log that shares a prefix with
// others replaces in its own part, so the others keep theirs. Whoever reads the log sees
// in it that, when and with what request a summary was made.
//
// Some things outlive any number of compactions word by word: the task that an agent
// was created with, the messages of the turn that is under way, and what others have
// registered to be said again (Compactor.Register). Of what is too long for the window to be
// said again and again the head and the tail stay.
//
// A Compactor belongs to a composition and works on the goroutines of the agents'
// turns; it starts none of its own. Floor 4.
package compact
