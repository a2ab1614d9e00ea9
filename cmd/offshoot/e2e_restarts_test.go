//go:build unix

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// plainDir is where it lies, for TestMain to remove.
var plainDir string

// plainBinary is the command without the race detector, which would make some thousand
// processes take ten times as long.
var plainBinary = sync.OnceValues(func() (exe string, err error) {
	if plainDir, err = os.MkdirTemp("", "offshoot-restarts-"); err != nil {
		return "", err
	}
	exe = filepath.Join(plainDir, "offshoot.test")
	out, err := exec.Command("go", "test", "-c", "-o", exe, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the command: %w\n%s", err, out)
	}
	return exe, nil
})

// restarts are the prompts of a tree of depth 3: a root, two children, two below each of
// them, all of them continuable and in the background, some of which report. fake directives
// nest, so that one prompt scripts the whole tree.
func restarts() string {
	quote := func(s string) string { return strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) }
	call := func(label, prompt string) string {
		return fmt.Sprintf(`[[fake:tool subagent {"description":"%s","prompt":"%s"}]]`, label, quote(prompt))
	}
	leaf := func(name string) string {
		return call(name, name+` [[fake:tool report {"output":"`+name+` reports"}]] [[fake:reply `+name+` is done]]`)
	}
	child := func(name string) string {
		return call(name, name+" "+leaf(name+"1")+leaf(name+"2")+" [[fake:reply "+name+" has begun]]")
	}
	return "grow " + child("a") + child("b") + " [[fake:reply both have begun]]"
}

// TestRestarts ends processes with SIGKILL at random writes, before and after they are
// stored, and starts the next one on what is left, until the tree has nothing to do any
// more. Whatever was accepted, by whomever, was taken exactly once by then, and the end of
// every epoch was told to the parent exactly once (design § 4, § 8).
func TestRestarts(t *testing.T) {
	t.Parallel()
	exe, err := plainBinary()
	if err != nil {
		t.Fatal(err)
	}
	// A test holds what its parallel parts held until it is over itself, so the long form is
	// played in parts.
	const part = 300
	for first := 0; first < restartRuns; first += part {
		t.Run(fmt.Sprint("from ", first), func(t *testing.T) {
			for seed := first; seed < min(first+part, restartRuns); seed++ {
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					t.Parallel()
					w, _ := newModelWorld(t, fakemodel.OpenAI)
					w.exe = exe
					w.write(filepath.Join(w.home, "config.yaml"), "version: 1\nmodel: openai:fake-model\nroutes:\n  openai:\n    model: fake-model\n    maxRetries: 0\n"+
						"providers:\n  spawn: {provider: spawn, backgroundMode: continuable}\n")
					r := &restart{world: w, rng: rand.New(rand.NewPCG(uint64(seed), 1))}
					r.play()
				})
			}
		})
	}
}

// restart is one run of processes over one store.
type restart struct {
	*world
	rng *rand.Rand
}

func (r *restart) play() {
	t := r.t
	t.Helper()
	r.random("run", restarts())
	before := r.logs()
	for range r.rng.IntN(4) {
		if len(before) == 0 {
			r.random("run", restarts())
		} else if root, children := r.tree(); len(children) > 0 && r.rng.IntN(3) == 0 {
			c := children[r.rng.IntN(len(children))]
			r.random("agents", "send", string(c.Header.ID), fmt.Sprintf("more %d [[fake:reply more is done]]", r.rng.Int()))
		} else if r.rng.IntN(3) == 0 {
			r.random("resume", string(root.Header.ID), fmt.Sprintf("go on %d [[fake:reply on it]]", r.rng.Int()))
		} else {
			r.random("resume", string(root.Header.ID))
		}
		before = r.grew(before)
	}
	if len(before) == 0 {
		return // not even the root was accepted
	}
	root, _ := r.tree()
	id := string(root.Header.ID)
	for n := 0; ; n++ {
		e := r.run("resume", id)
		if e.code != 0 {
			t.Fatalf("%v", e)
		}
		if strings.Contains(e.stderr, "owes nothing") {
			break
		}
		if n == 2 {
			t.Fatalf("a third resume still finds something to do: %v", e)
		}
	}
	r.grew(before)
	r.verify()
	r.checkTree()
	if t.Failed() {
		for _, l := range r.logs() {
			t.Logf("%s below %s:\n%s", l.Header.ID, l.Header.ParentSession, strings.Join(l.lines, "\n"))
		}
	}
}

// random runs a command that is killed at a random write, if it gets there.
func (r *restart) random(args ...string) {
	r.t.Helper()
	kill := fmt.Sprintf("%s:%d", []string{killWrite, killWritten}[r.rng.IntN(2)], 1+r.rng.IntN(70))
	if e := r.with(killEnv, kill).run(args...); e.code != 0 && e.code != killed {
		r.t.Fatalf("%s: %v", kill, e)
	}
}

// checkTree holds all logs against what was accepted.
func (r *restart) checkTree() {
	t := r.t
	t.Helper()
	logs := map[session.ID]*storedLog{}
	for _, l := range r.logs() {
		logs[l.Header.ID] = l
	}
	for _, l := range logs {
		entered, claimed, canceled := map[message.ID]int{}, map[message.ID]int{}, map[message.ID]int{}
		lists := map[session.Target][]message.ID{}
		history := map[message.ID]int{}
		epochs := int64(0)
		for _, p := range payloads[session.Payload](t, l) {
			switch p := p.(type) {
			case *session.InboxSpliced:
				list := lists[p.Target]
				for _, id := range list[p.Start : p.Start+p.Removed] {
					if p.Canceled {
						canceled[id]++
					} else {
						claimed[id]++
					}
				}
				rest := append([]message.ID{}, list[p.Start+p.Removed:]...)
				list = list[:p.Start]
				for i := range p.Inserted {
					entered[p.Inserted[i].ID]++
					list = append(list, p.Inserted[i].ID)
				}
				lists[p.Target] = append(list, rest...)
			case *session.UserMessage:
				history[p.Message.ID]++
			case *session.Settled:
				if epochs++; p.Epoch != epochs {
					t.Errorf("%s: epoch %d is settled as number %d", l.Header.ID, p.Epoch, epochs)
				}
			}
		}
		for id := range entered {
			if claimed[id]+canceled[id] != 1 || claimed[id] != history[id] {
				t.Errorf("%s: message %s: entered %d times, claimed %d, discarded %d, in the history %d", l.Header.ID, id, entered[id], claimed[id], canceled[id], history[id])
			}
		}
		for target, list := range lists {
			if len(list) > 0 {
				t.Errorf("%s: in %s wait %v", l.Header.ID, target, list)
			}
		}
		if !l.child() {
			continue
		}
		if epochs == 0 {
			t.Errorf("child %s has never settled", l.Header.ID)
		}
		parent := logs[l.Header.ParentSession]
		if parent == nil {
			t.Errorf("the parent of %s is not stored", l.Header.ID)
			continue
		}
		told := map[message.ID]int{}
		for _, m := range payloads[*session.UserMessage](t, parent) {
			if m.Message.Source.Details().SenderSessionID == string(l.Header.ID) && m.Message.Source.Kind == message.SourceSubagentSettled {
				told[m.Message.ID]++
			}
		}
		for n := int64(1); n <= epochs; n++ {
			if id := session.SettlementID(l.Header.ID, n); told[id] != 1 {
				t.Errorf("the end of %s was told %d times: %v", id, told[id], told)
			}
		}
	}
}
