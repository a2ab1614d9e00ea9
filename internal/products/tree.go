package products

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Linger writes a shell script that leaves a process in its group, one in a session of its own and a double-forked orphan
// in another, says "lingering", and stays. alive lists which of them there are, the script's own last command included.
func Linger(t testing.TB) (script string, alive func() []string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("whole trees are ended on Linux only: there is no /proc elsewhere")
	}
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("setsid is not installed")
	}
	base := fmt.Sprint(100000 + rand.IntN(800000))
	script = filepath.Join(t.TempDir(), "linger.sh")
	text := strings.ReplaceAll("sleep B.1 &\nsetsid sleep B.2 &\nsetsid sh -c 'sleep B.3 & exit'\necho lingering\nsleep B.4\n", "B", base)
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return script, func() []string {
		return processes(t, func(argv []string) bool {
			return len(argv) > 1 && argv[0] == "sleep" && strings.HasPrefix(argv[1], base+".")
		})
	}
}

// Marked lists the processes, as their command lines, whose environment holds a value: a run is found by a variable that
// its product was given.
func Marked(t testing.TB, value string) []string {
	t.Helper()
	return list(t, "environ", func(fields []string) bool {
		return slices.ContainsFunc(fields, func(f string) bool { return strings.HasSuffix(f, "="+value) })
	})
}

func processes(t testing.TB, match func(argv []string) bool) []string {
	t.Helper()
	return list(t, "cmdline", match)
}

// list returns the command lines of the processes of which a file of /proc matches, field by field.
func list(t testing.TB, name string, match func(fields []string) bool) []string {
	t.Helper()
	var found []string
	each(t, name, func(pid int, fields []string) {
		if !match(fields) {
			return
		}
		if argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(argv) > 0 {
			found = append(found, strings.Join(split(argv), " "))
		}
	})
	slices.Sort(found)
	return found
}

// each calls fn for every process with the fields of a file of /proc. Those that end meanwhile, and those of others, are
// left out.
func each(t testing.TB, name string, fn func(pid int, fields []string)) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/" + name)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(f); err == nil {
			fn(pid, split(data))
		}
	}
}

func split(data []byte) []string {
	var fields []string
	for f := range bytes.SplitSeq(bytes.TrimRight(data, "\x00"), []byte{0}) {
		fields = append(fields, string(f))
	}
	return fields
}

// Until waits until a condition holds, and fails the test if it does not within the time that every product is given.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, patience)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// Empty fails the test with what a list still holds after a moment: killed processes take one to leave /proc.
func Empty(t testing.TB, what string, left func() []string) {
	t.Helper()
	for range 100 {
		if len(left()) == 0 {
			return
		}
		<-time.After(20 * time.Millisecond)
	}
	t.Errorf("%s: %q", what, left())
}

// HostVariable is set in the environment of a test that plays a program which will be killed; see KillHost. Its value is
// what KillHost was given.
const HostVariable = "FAKEHOST"

// KillHost runs a test of the same test binary as a process of its own, waits until alive lists something, kills that
// process with SIGKILL, and waits until alive lists nothing. The test starts what is to be found and then waits for its
// end; without HostVariable it skips.
func KillHost(t *testing.T, test, value string, alive func() []string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	host := exec.Command(exe, "-test.run=^"+test+"$", "-test.v")
	host.Env = append(os.Environ(), HostVariable+"="+value)
	host.Stdout, host.Stderr = &out, &out
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- host.Wait() }()
	t.Cleanup(func() { _ = host.Process.Kill() }) // it is gone already unless the test failed
	Until(t, "the host's product is at work", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the host has ended: %v\n%s", err, out.String())
		default:
		}
		return len(alive()) > 0
	})
	if err := host.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the host ended by itself, and was to be killed")
	}
	Empty(t, "left behind a program that was killed", alive)
}

// Kill sends SIGKILL to the processes of a run, as Marked finds them, that run a program.
func Kill(t testing.TB, value, program string) {
	t.Helper()
	n := 0
	each(t, "environ", func(pid int, fields []string) {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil || !slices.ContainsFunc(fields, func(f string) bool { return strings.HasSuffix(f, "="+value) }) {
			return
		}
		real, err := filepath.EvalSymlinks(program)
		if err != nil {
			t.Fatal(err)
		}
		if exe != real {
			return
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		n++
	})
	if n == 0 {
		t.Fatalf("no process of the run runs %s", program)
	}
}
