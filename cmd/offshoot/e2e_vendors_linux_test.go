package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/internal/products"
)

// insideEnv is set in a test that runs in a network namespace of its own.
const insideEnv = "E2E_INSIDE"

// One agent delegates to Codex, Claude Code, opencode, a DSH runtime and an agent of this
// program in one message, in a network namespace that has nothing but loopback: whatever
// any of them asks for elsewhere fails.
func TestVendors(t *testing.T) {
	agents, harness := products.FindAgents(t), products.FindHarness(t)
	if os.Getenv(insideEnv) == "" {
		alone(t, "TestVendors")
		return
	}
	loopbackUp(t)
	if _, err := net.DialTimeout("tcp", "192.0.2.1:80", time.Second); !errors.Is(err, syscall.ENETUNREACH) {
		t.Fatalf("the namespace reaches further than loopback: %v", err)
	}
	model, err := fakemodel.Open(fakemodel.Options{Lenient: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(model.Close)
	deepseek, err := fakemodel.Open(fakemodel.Options{Dialect: fakemodel.DeepSeek})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(deepseek.Close)

	w := newWorld(t)
	w.patience = 3 * time.Minute // some take many seconds to start beside other work
	w.use(model, "openai")
	folder := func(name string) string {
		dir := filepath.Join(w.home, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	sockets, _ := products.ClaudeSockets(t)
	codex, err := products.CodexEnv(folder("codex"), model)
	if err != nil {
		t.Fatal(err)
	}
	claude, err := products.ClaudeEnv(folder("claude"), sockets, model)
	if err != nil {
		t.Fatal(err)
	}
	opencode, err := agents.OpencodeACP(folder("opencode"), model)
	if err != nil {
		t.Fatal(err)
	}
	dsh, err := harness.Runtime(folder("dsh"), deepseek)
	if err != nil {
		t.Fatal(err)
	}
	var config strings.Builder
	config.WriteString("version: 1\nmodel: openai:fake-model\nproviders:\n")
	entry := func(name, kind, command string, args []string, env map[string]string, more string) {
		fmt.Fprintf(&config, "  %s:\n    provider: %s\n    command: %q\n%s", name, kind, command, more)
		if args != nil {
			quoted := make([]string, len(args))
			for i, arg := range args {
				quoted[i] = strconv.Quote(arg)
			}
			fmt.Fprintf(&config, "    args: [%s]\n", strings.Join(quoted, ", "))
		}
		config.WriteString("    env:\n")
		for key, value := range env {
			fmt.Fprintf(&config, "      %s: %q\n", key, value)
		}
	}
	entry("codex", "codex", agents.Need(t, agents.Codex, "Codex"), nil, codex, "")
	entry("claude", "claude-code", agents.Need(t, agents.Claude, "Claude Code"), nil, claude, "")
	entry("opencode", "acp", agents.Need(t, agents.Opencode, "opencode"), opencode.Args, opencode.Env, "")
	entry("dsh", "dsh", dsh.Command, dsh.Args, dsh.Env, "    permission: allow\n")
	w.write(filepath.Join(w.home, "config.yaml"), config.String())
	w.ok("trust")

	e := w.ok("doctor")
	for _, name := range []string{"codex", "claude", "opencode", "dsh"} {
		if !strings.Contains(e.stdout, "ok           product "+name) {
			t.Errorf("doctor finds fault with %s: %v", name, e)
		}
	}
	names := []string{"codex", "claude", "opencode", "dsh"}
	var prompt strings.Builder
	var want []string
	for _, name := range names {
		prompt.WriteString(remotely(name, "[[fake:reply this is "+name+"]]"))
		want = append(want, "this is "+name)
	}
	prompt.WriteString(delegation("here", "[[fake:reply this is spawn]]") + "[[fake:reply all have answered]]")
	e = w.ok("run", "--permission", "allow", prompt.String())
	if e.stdout != "all have answered\n" {
		t.Errorf("%v", e)
	}
	w.verify()
	root, children := w.tree()
	if diff := cmp.Diff(append(want, "this is spawn"), results(t, root)); diff != "" {
		t.Error(diff)
	}
	if len(children) != 1 {
		t.Errorf("%d children are stored, want the one of this program", len(children))
	}
}

// alone runs a test of this binary in network and user namespaces of its own.
func alone(t *testing.T, test string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, exe, "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// loopbackUp switches the one interface of a new namespace on.
func loopbackUp(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written to it
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		t.Fatalf("switch loopback on: %v", err)
	}
}
