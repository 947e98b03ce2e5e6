package framework

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
)

func TestStatus(t *testing.T) {
	var none *Status
	for name, c := range map[string]struct {
		s            *Status
		ok, rejected bool
		code         Code
		message      string
	}{
		"nil":      {none, true, false, Success, ""},
		"success":  {NewStatus(Success), true, false, Success, ""},
		"no room":  {NewStatus(Unschedulable, "no CPU", "no memory"), false, true, Unschedulable, "no CPU, no memory"},
		"never":    {NewStatus(UnschedulableAndUnresolvable), false, true, UnschedulableAndUnresolvable, ""},
		"pending":  {NewStatus(Pending), false, true, Pending, ""},
		"skip":     {NewStatus(Skip), false, false, Skip, ""},
		"wait":     {NewStatus(Wait), false, false, Wait, ""},
		"error":    {AsStatus(errors.New("broken")), false, false, Error, "broken"},
		"no error": {AsStatus(nil), true, false, Success, ""},
	} {
		if c.s.OK() != c.ok || c.s.Rejected() != c.rejected || !c.s.Is(c.code) || c.s.Message() != c.message {
			t.Errorf("%s: ok %v, rejected %v, %q", name, c.s.OK(), c.s.Rejected(), c.s.Message())
		}
	}
}

// One verdict stands for thousands of nodes, and for several plugins: whose it is
// is told of a copy.
func TestByCopies(t *testing.T) {
	shared := NewStatus(Unschedulable, "no room")
	mine := shared.By("mine")
	if mine.Plugin != "mine" || shared.Plugin != "" || mine.Message() != "no room" || mine.By("mine") != mine {
		t.Errorf("%+v, %+v", mine, shared)
	}
	if none := (*Status)(nil).By("mine"); none != nil {
		t.Error("nobody refused, and somebody is to blame")
	}
}

func TestFitError(t *testing.T) {
	e := &FitError{
		NumAllNodes: 3,
		Reasons:     map[string]int{"too few pods": 1, "no CPU": 2},
		PostFilter:  "preemption: nobody gives way",
		RejectedBy:  sets.New[string](),
		PendingOn:   sets.New[string](),
	}
	want := "0/3 nodes are available: 1 too few pods, 2 no CPU. preemption: nobody gives way"
	if e.Error() != want {
		t.Errorf("%q", e)
	}
	e.PreFilter = "no such claim"
	if want := "0/3 nodes are available: no such claim. preemption: nobody gives way"; e.Error() != want {
		t.Errorf("%q", e)
	}
	if bare := (&FitError{NumAllNodes: 1}).Error(); bare != "0/1 nodes are available:" {
		t.Errorf("%q", bare)
	}
	e.Blame(NewStatus(Unschedulable).By("fit"))
	e.Blame(NewStatus(Pending).By("devices"))
	e.Blame(NewStatus(Unschedulable))
	if !e.RejectedBy.Equal(sets.New("fit")) || !e.PendingOn.Equal(sets.New("devices")) {
		t.Errorf("rejected by %v, pending on %v", e.RejectedBy, e.PendingOn)
	}
}

func TestEventMatches(t *testing.T) {
	h := EventHint{Resource: Node, Actions: Add | UpdateNodeTaint}
	for name, c := range map[string]struct {
		e    Event
		want bool
	}{
		"declared":         {Event{Resource: Node, Action: Add}, true},
		"one of several":   {Event{Resource: Node, Action: UpdateNodeLabel | UpdateNodeTaint}, true},
		"another change":   {Event{Resource: Node, Action: UpdateNodeLabel}, false},
		"another resource": {Event{Resource: Pod, Action: Add}, false},
		"a forced retry":   {Event{Resource: AnyResource}, true},
	} {
		if got := h.Matches(c.e); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
