package tool_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/tool"
)

type approver func(ctx context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error)

func (f approver) Approve(ctx context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
	return f(ctx, req)
}

type approvalLog struct {
	lines  []string
	failAt string
}

func (l *approvalLog) add(line string) error {
	l.lines = append(l.lines, line)
	if l.failAt != "" && strings.HasPrefix(line, l.failAt) {
		return errors.New("disk full")
	}
	return nil
}

func (l *approvalLog) Asked(call *tool.Call, req *tool.ApprovalRequest) error {
	return l.add("asked " + call.ID + " " + req.Reason)
}

func (l *approvalLog) Decided(_ *tool.Call, _ *tool.ApprovalRequest, o tool.ApprovalOutcome) error {
	return l.add("decided " + string(o))
}

func answer(o tool.ApprovalOutcome, err error) tool.Approver {
	return approver(func(context.Context, *tool.ApprovalRequest) (tool.ApprovalOutcome, error) { return o, err })
}

func TestApprovalOutcomesT13(t *testing.T) {
	me := &caller{"s1"}
	tests := []struct {
		name    string
		caller  tool.Caller
		opts    tool.ExecOptions
		failLog string
		code    string // "" is allowed
		text    string
		decided string
	}{
		{"allowed once", me, tool.ExecOptions{Approver: answer(tool.ApprovalAllowedOnce, nil)}, "", "", "", "allowed-once"},
		{"rejected", me, tool.ExecOptions{Approver: answer(tool.ApprovalRejected, nil)}, "", tool.CodeDenied, "rejected it", "rejected"},
		{"dismissed", me, tool.ExecOptions{Approver: answer(tool.ApprovalCancelled, nil)}, "", tool.CodeDenied, "dismissed", "cancelled"},
		{"unavailable", me, tool.ExecOptions{Approver: answer(tool.ApprovalUnavailable, nil)}, "", tool.CodeDenied, "nobody is there", "unavailable"},
		{"an outcome nobody knows", me, tool.ExecOptions{Approver: answer("always", nil)}, "", tool.CodeDenied, `"always"`, "always"},
		{"allowed with an error", me, tool.ExecOptions{Approver: answer(tool.ApprovalAllowedOnce, errors.New("wire"))}, "", tool.CodeDenied, "wire", "unavailable"},
		{"no approver", me, tool.ExecOptions{}, "", tool.CodeDenied, "nobody is there", "unavailable"},
		{"agentless", nil, tool.ExecOptions{Approver: answer(tool.ApprovalAllowedOnce, nil)}, "", tool.CodeDenied, "no agent", "unavailable"},
		{"pinned to never (COMP-24)", me, tool.ExecOptions{NeverAsk: true, Approver: answer(tool.ApprovalAllowedOnce, nil)}, "", tool.CodeDenied, "without asking", "rejected"},
		{"panic", me, tool.ExecOptions{Approver: approver(func(context.Context, *tool.ApprovalRequest) (tool.ApprovalOutcome, error) { panic("ui") })}, "", tool.CodeDenied, "ui", "unavailable"},
		{"question not recorded", me, tool.ExecOptions{Approver: answer(tool.ApprovalAllowedOnce, nil)}, "asked", tool.CodeInternal, "disk full", ""},
		{"decision not recorded", me, tool.ExecOptions{Approver: answer(tool.ApprovalAllowedOnce, nil)}, "decided", tool.CodeInternal, "disk full", "allowed-once"},
	}
	texts := map[string]string{}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ran := false
			s := one(t, body(func(context.Context, *tool.Call) (any, error) { ran = true; return "ok", nil }))
			s.AddPreExecute(func(context.Context, *tool.Call) tool.Decision { return tool.Ask("why") })
			log := &approvalLog{failAt: tt.failLog}
			tt.opts.Log = log
			r := s.Execute(t.Context(), tool.CallInput{ID: "c9", Name: "x", Caller: tt.caller}, tt.opts)
			if r.Code != tt.code || !strings.Contains(text(r), tt.text) || ran != (tt.code == "") {
				t.Errorf("ran %v, result %+v", ran, r)
			}
			want := []string{"asked c9 why"}
			if tt.decided != "" {
				want = append(want, "decided "+tt.decided)
			}
			if diff := cmp.Diff(want, log.lines); diff != "" {
				t.Error(diff)
			}
			texts[text(r)] = tt.name
		})
	}
	if len(texts) < 9 {
		t.Errorf("the texts are not distinguishable: %v", texts)
	}
}

func TestApprovalIsOneSnapshotT33(t *testing.T) {
	me := &caller{"child"}
	var got *tool.ApprovalRequest
	var ranWith string
	s := one(t, func(d *tool.Definition) {
		d.Describe = func(args []byte) string { return "touch " + string(args) }
		d.Execute = func(_ context.Context, c *tool.Call) (any, error) {
			ranWith = string(c.Args) + " " + c.Cwd
			return "ok", nil
		}
	})
	s.AddPreExecute(func(_ context.Context, c *tool.Call) tool.Decision {
		c.Args[2] = 'Z'
		c.Cwd = "/elsewhere"
		return tool.Ask("one")
	})
	s.AddPreExecute(func(context.Context, *tool.Call) tool.Decision { return tool.Ask("two") })
	path := []string{"root", "child"}
	r := s.Execute(t.Context(), tool.CallInput{ID: "c", Name: "x", Args: `{"a":1}`, Caller: me, Cwd: "/w"}, tool.ExecOptions{
		Path: path,
		Approver: approver(func(_ context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
			cp := *req
			cp.Args = slices.Clone(req.Args)
			got = &cp
			req.Args[2] = 'Q'
			return tool.ApprovalAllowedOnce, nil
		}),
	})
	if r.IsError || ranWith != `{"a":1} /w` {
		t.Errorf("ran with %s, result %+v", ranWith, r)
	}
	if got.ID == "" || len(got.Options) != 2 {
		t.Errorf("request %+v", got)
	}
	got.ID, got.Options = "", nil
	want := &tool.ApprovalRequest{Tool: "x", CallID: "c", Args: []byte(`{"a":1}`), Cwd: "/w", Summary: `touch {"a":1}`, Reason: "one; two", Path: path}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestApprovalEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := approver(func(ctx context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
			<-ctx.Done()
			return tool.ApprovalCancelled, ctx.Err()
		})
		s := one(t, body(nil2))
		s.AddPreExecute(func(context.Context, *tool.Call) tool.Decision { return tool.Ask("why") })
		in := tool.CallInput{Name: "x", Caller: &caller{"a"}}
		log := &approvalLog{}
		r := s.Execute(t.Context(), in, tool.ExecOptions{Approver: wait, ApprovalTimeout: time.Minute, Log: log})
		if r.Code != tool.CodeDenied || !strings.Contains(text(r), "in time") || log.lines[1] != "decided unavailable" {
			t.Errorf("deadline: %+v, %v", r, log.lines)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		log = &approvalLog{}
		r = s.Execute(ctx, in, tool.ExecOptions{Approver: wait, Log: log})
		if r.Code != tool.CodeAbortedBeforeDispatch || log.lines[1] != "decided cancelled" {
			t.Errorf("cancel: %+v, %v", r, log.lines)
		}
	})
}

func TestPermissionGate(t *testing.T) {
	for _, tt := range []struct {
		policy       tool.Policy
		write, read  bool
		text         string
		approverSeen bool
	}{
		{tool.PolicyAllow, true, true, "", false},
		{tool.PolicyAsk, true, true, "", true},
		{tool.PolicyDeny, false, true, "policy denies", false},
		{tool.PolicyReadOnly, false, true, "read-only", false},
		{tool.PolicyNever, false, true, "without asking", false},
		{"sometimes", false, false, "not known", false},
	} {
		t.Run(string(tt.policy), func(t *testing.T) {
			s := tool.New().Root()
			ro := def("reads")
			ro.ReadOnly = true
			if _, err := s.Register(ro); err != nil {
				t.Fatal(err)
			}
			register(t, s, "writes")
			s.AddPreExecute(tool.PermissionGate(func(*tool.Call) tool.Policy { return tt.policy }))
			asked := false
			opts := tool.ExecOptions{Approver: approver(func(context.Context, *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
				asked = true
				return tool.ApprovalAllowedOnce, nil
			})}
			me := &caller{"a"}
			r := s.Execute(t.Context(), tool.CallInput{Name: "reads", Caller: me}, opts)
			if r.IsError == tt.read || asked {
				t.Errorf("reading: asked %v, %+v", asked, r)
			}
			r = s.Execute(t.Context(), tool.CallInput{Name: "writes", Caller: me}, opts)
			if r.IsError == tt.write || asked != tt.approverSeen || !strings.Contains(text(r), tt.text) {
				t.Errorf("writing: asked %v, %+v", asked, r)
			}
		})
	}
}

// The narrower of the run's policy and of what a log says holds: no word of a log, known
// or not, allows more than the run does (seam COMP-23, COMP-24; design § 4, Trust).
func TestNarrow(t *testing.T) {
	for _, tt := range []struct {
		run               tool.Policy
		approval, sandbox string
		want              tool.Policy
	}{
		{tool.PolicyAllow, "", "", tool.PolicyAllow},
		{tool.PolicyAllow, "ask", "danger-full-access", tool.PolicyAllow},
		{tool.PolicyAllow, "never", "", tool.PolicyAllow}, // nothing is asked
		{tool.PolicyAllow, "", "workspace-write", tool.PolicyAsk},
		{tool.PolicyAllow, "never", "workspace-write", tool.PolicyNever},
		{tool.PolicyAllow, "ask", "read-only", tool.PolicyReadOnly},
		{tool.PolicyAllow, "", "whatever", tool.PolicyReadOnly},
		{tool.PolicyAsk, "", "danger-full-access", tool.PolicyAsk},
		{tool.PolicyAsk, "", "workspace-write", tool.PolicyAsk},
		{tool.PolicyAsk, "never", "danger-full-access", tool.PolicyNever},
		{tool.PolicyAsk, "whatever", "", tool.PolicyNever},
		{tool.PolicyAsk, "", "read-only", tool.PolicyReadOnly},
		{tool.PolicyDeny, "ask", "danger-full-access", tool.PolicyDeny},
		{tool.PolicyReadOnly, "ask", "danger-full-access", tool.PolicyReadOnly},
		{tool.PolicyNever, "ask", "danger-full-access", tool.PolicyNever},
		{"sometimes", "ask", "danger-full-access", "sometimes"}, // which refuses
	} {
		if got := tool.Narrow(tt.run, tt.approval, tt.sandbox); got != tt.want {
			t.Errorf("%s under approval %q and sandbox %q is %s, want %s", tt.run, tt.approval, tt.sandbox, got, tt.want)
		}
	}
	width := map[tool.Policy]int{tool.PolicyAllow: 2, tool.PolicyAsk: 1}
	for _, run := range []tool.Policy{tool.PolicyAllow, tool.PolicyAsk, tool.PolicyDeny, tool.PolicyReadOnly, tool.PolicyNever, ""} {
		for _, approval := range []string{"", "ask", "never", "allow", "x"} {
			for _, sandbox := range []string{"", "read-only", "workspace-write", "danger-full-access", "allow", "x"} {
				if got := tool.Narrow(run, approval, sandbox); width[got] > width[run] {
					t.Errorf("%q under %q and %q became %q", run, approval, sandbox, got)
				}
			}
		}
	}
}
