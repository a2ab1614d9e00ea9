package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestMain lets the test binary stand in for the command.
func TestMain(m *testing.M) {
	if os.Getenv("FAKEMODEL_TEST_MAIN") == "1" {
		main()
	}
	os.Exit(m.Run())
}

// TestProcess runs the command as a process: the URL is printed, a prompt with directives is obeyed, SIGINT and
// SIGTERM end it in good order.
func TestProcess(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-dialect", "deepseek", "-key", "k")
		cmd.Env = append(os.Environ(), "FAKEMODEL_TEST_MAIN=1")
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		url, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		payload := `{"model":"m","stream":true,"messages":[{"role":"user","content":"[[fake:think hm]][[fake:reply hi]]"}]}`
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, strings.TrimSpace(url)+"/chat/completions", strings.NewReader(payload))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer k")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close() // read to its end
		if !strings.Contains(string(got), `"reasoning_content":"h"`) || !strings.HasSuffix(string(got), "data: [DONE]\n\n") {
			t.Errorf("answer %q", got)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", sig, err)
		}
	}
}

// TestUsage: wrong flags are 2, an address that cannot be had is 1, with one line each.
func TestUsage(t *testing.T) {
	for args, want := range map[string]int{
		"-help":             0,
		"-dialect klingon":  2,
		"surplus":           2,
		"-nonsense":         2,
		"-addr 256.0.0.1:1": 1,
	} {
		var stdout, stderr bytes.Buffer
		if got := run(t.Context(), strings.Fields(args), &stdout, &stderr); got != want || stdout.Len() > 0 || stderr.Len() == 0 {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", args, got, &stdout, &stderr)
		}
	}
	if got := run(t.Context(), nil, brokenPipe{}, io.Discard); got != 1 {
		t.Errorf("broken standard output: exit %d", got)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }
