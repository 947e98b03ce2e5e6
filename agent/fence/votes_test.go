package fence

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/fence/keeper"
)

// Whatever the number of voters: those that let a node go on and those that keep it from
// it are more than all, and with itself most let it go on.
func TestMajorities(t *testing.T) {
	for n := 1; n <= MaxVoters; n++ {
		if vouches(n)+refusals(n) != n+1 || 2*(vouches(n)+1) <= n+1 || 2*vouches(n) > n+1 {
			t.Errorf("of %d: %d vouch, %d refuse", n, vouches(n), refusals(n))
		}
	}
}

// A refusal outlasts every hold that others prolonged before a coordinator counted it,
// by clocks that differ.
func TestTiming(t *testing.T) {
	if Refusal-Refusal/drift <= refusalRound+Length+Length/drift || voteTime > refusalRound || askBefore >= Length ||
		Length-askBefore <= Length/4 {
		t.Error("times do not fit")
	}
}

func old(v *Voter) *Voter {
	v.begun -= Refusal
	return v
}

func TestVoter(t *testing.T) {
	vouch, refuse := question{Node: "n"}, question{Node: "n", Refuse: true}
	other := question{Node: "o"}
	later := func(v *Voter) {
		for n := range v.refused {
			v.refused[n] -= Refusal
		}
	}
	ask := func(v *Voter, from string, coordinator bool, q question) []byte {
		return v.Answer(from, coordinator, encode(q))
	}
	for name, c := range map[string]struct {
		voter *Voter
		do    func(v *Voter) []byte
		want  string // "": no answer
	}{
		"for itself":             {old(NewVoter()), func(v *Voter) []byte { return ask(v, "n", false, vouch) }, "yes"},
		"of one that just began": {NewVoter(), func(v *Voter) []byte { return ask(v, "n", false, vouch) }, "no"},
		"for another":            {old(NewVoter()), func(v *Voter) []byte { return ask(v, "o", false, vouch) }, ""},
		"refused by a node":      {old(NewVoter()), func(v *Voter) []byte { return ask(v, "o", false, refuse) }, ""},
		"refused by itself":      {old(NewVoter()), func(v *Voter) []byte { return ask(v, "n", false, refuse) }, ""},
		"nonsense":               {old(NewVoter()), func(v *Voter) []byte { return v.Answer("n", true, []byte("{")) }, ""},
		"of nobody":              {old(NewVoter()), func(v *Voter) []byte { return ask(v, "n", true, question{}) }, ""},
		"too long": {old(NewVoter()), func(v *Voter) []byte {
			return ask(v, "n", false, question{Node: strings.Repeat("n", maxVote)})
		}, ""},
		"refused": {old(NewVoter()), func(v *Voter) []byte {
			ask(v, "coordinator:c", true, refuse)
			return ask(v, "n", false, vouch)
		}, "no"},
		"another was refused": {old(NewVoter()), func(v *Voter) []byte {
			ask(v, "coordinator:c", true, refuse)
			return ask(v, "o", false, other)
		}, "yes"},
		"long ago": {old(NewVoter()), func(v *Voter) []byte {
			ask(v, "coordinator:c", true, refuse)
			later(v)
			return ask(v, "n", false, vouch)
		}, "yes"},
		"a coordinator is told": {NewVoter(), func(v *Voter) []byte {
			return ask(v, "coordinator:c", true, refuse)
		}, "yes"},
	} {
		got := ""
		if b := c.do(c.voter); b != nil {
			var a answer
			if err := decode(b, &a); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			got = map[bool]string{true: "yes", false: "no"}[a.Yes]
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A voter keeps no more than it has to.
func TestVoterForgets(t *testing.T) {
	v := NewVoter()
	for i := range maxRefused {
		v.refused[fmt.Sprint(i)] = keeper.Clock()
	}
	refuse := encode(question{Node: "n", Refuse: true})
	if got := string(v.Answer("c", true, refuse)); got != string(encode(answer{false})) {
		t.Errorf("%s: it says that it refuses what it cannot keep", got)
	}
	for n := range v.refused {
		v.refused[n] -= Refusal
	}
	if got := string(v.Answer("c", true, refuse)); got != string(encode(answer{true})) || len(v.refused) != 1 {
		t.Errorf("%s, %d are kept", got, len(v.refused))
	}
}

func FuzzVote(f *testing.F) {
	f.Add([]byte(`{"node":"n","refuse":true}`), true)
	f.Add([]byte(`{"node":"n"}`), false)
	f.Fuzz(func(t *testing.T, b []byte, coordinator bool) {
		v := NewVoter()
		v.Answer("n", coordinator, b)
		if len(v.refused) > 0 && !coordinator {
			t.Error("refused by a node")
		}
	})
}

// others are voters that answer by name; who is not there is not reached.
type others struct {
	mu    sync.Mutex
	say   map[string]bool
	asked []string
}

func (o *others) ask(ctx context.Context, name string, q []byte) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, name+" "+string(q))
	yes, ok := o.say[name]
	if !ok {
		return nil, errors.New("not reached")
	}
	return encode(answer{yes}), nil
}

func TestRefuse(t *testing.T) {
	for name, c := range map[string]struct {
		say    map[string]bool
		voters string
		length time.Duration
		ok     bool
	}{
		"all":                             {map[string]bool{"a": true, "b": true}, "a b", Length, true},
		"both of two needed":              {map[string]bool{"a": true}, "a b", Length, false},
		"two of three":                    {map[string]bool{"a": true, "c": true}, "a b c", Length, true},
		"one says no":                     {map[string]bool{"a": true, "b": false}, "a b", Length, false},
		"of a node that holds for longer": {map[string]bool{"a": true}, "a", Length + 1, false},
	} {
		o := &others{say: c.say}
		err := Refuse(t.Context(), o.ask, "n", strings.Fields(c.voters), c.length)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// voted is a node whose other nodes are a and b, with a hold of which so much is left.
func voted(t *testing.T, dir string, o *others, left time.Duration) *node {
	t.Helper()
	n := newNode(t, dir)
	n.Node, n.Ask = "n", o.ask
	n.Voters = func() ([]string, bool) { return []string{"a", "b"}, true }
	if err := n.Adopt(stopPod("p")); err != nil {
		t.Fatal(err)
	}
	n.renewed(Length - left)
	return n
}

// renewed is a renewal that was answered, and began some time ago.
func (n *node) renewed(ago time.Duration) *coordinationv1.Lease {
	now := metav1.NowMicro()
	l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
	n.Mark(l, false)
	n.Answered(n.t.Context(), n.Now()-ago, l)
	return l
}

func (n *node) run() (end func()) {
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	}
}

func (n *node) left() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.deadline - n.Now()
}

func TestOthersProlongAHold(t *testing.T) {
	o := &others{say: map[string]bool{"b": true}} // of three machines one is gone
	n := voted(t, filepath.Join(t.TempDir(), "boot"), o, 2*time.Second)
	running := n.runs(stopPod("p"))
	defer n.run()()
	time.Sleep(2500 * time.Millisecond)
	if over(running) || !n.Held() || n.left() < Length/2 {
		t.Errorf("not prolonged: held %v, %s left", n.Held(), n.left())
	}
	if kept, err := n.Directory.Deadline(); err != nil || kept-n.Now() < Length/2 {
		t.Errorf("the keeper does not know: %s, %v", kept-n.Now(), err)
	}
	o.mu.Lock()
	if q := string(encode(question{Node: "n"})); !slices.Contains(o.asked, "a "+q) || len(o.asked) > 4 {
		t.Errorf("asked %q", o.asked)
	}
	o.mu.Unlock()
}

func TestWithoutMostOthersTheHoldEnds(t *testing.T) {
	for name, say := range map[string]map[string]bool{
		"refused":     {"a": false, "b": false},
		"not reached": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := voted(t, filepath.Join(t.TempDir(), "boot"), &others{say: say}, time.Second)
			running := n.runs(stopPod("p"))
			defer n.run()()
			select {
			case <-running:
			case <-time.After(10 * time.Second):
				t.Error("the pod runs on")
			}
			if n.Held() {
				t.Error("held")
			}
		})
	}
}

// Their word begins nothing: what ended is for the API to begin.
func TestOthersBeginNoHold(t *testing.T) {
	n := voted(t, filepath.Join(t.TempDir(), "boot"), &others{}, Length)
	n.mu.Lock()
	n.deadline = n.Now() - 1
	n.mu.Unlock()
	n.heard(true, n.Now()+Length)
	if n.Held() {
		t.Error("a hold that had ended goes on")
	}
	n.renewed(0)
	n.answer(n.Now(), map[string]string{Raised: "10s-x"})
	n.heard(true, n.Now()+Length)
	if n.Held() {
		t.Error("a fenced node holds on")
	}
}

// An answer that was slow takes nothing from what others said later.
func TestASlowAnswerShortensNothing(t *testing.T) {
	n := voted(t, filepath.Join(t.TempDir(), "boot"), &others{}, Length)
	n.heard(true, n.Now()+Length)
	n.renewed(5 * time.Second)
	if n.left() < Length-time.Second {
		t.Errorf("%s left", n.left())
	}
}

// Whoever may stand on the Lease has to vouch: a list that was sent, and one before it
// until the answer comes, in a start of the agent too.
func TestEachListCounts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "boot")
	o := &others{say: map[string]bool{}}
	n := newNode(t, dir)
	n.Node, n.Ask = "n", o.ask
	names, known := []string{"a", "b"}, true
	n.Voters = func() ([]string, bool) { return names, known }
	mark := func() *coordinationv1.Lease {
		now := metav1.NowMicro()
		l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
		n.Mark(l, false)
		return l
	}
	expect := func(when, want string) {
		t.Helper()
		if got := fmt.Sprint(n.lists); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	may := func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.mayAsk()
	}
	if l := mark(); len(VotersOf(l)) != 0 || CoveredFor(l) != 0 {
		t.Error("no pod is to be stopped, and the Lease names voters")
	}
	if err := n.Adopt(stopPod("p")); err != nil {
		t.Fatal(err)
	}
	l := mark()
	expect("sent", "[[] [a b]]")
	n.Answered(t.Context(), n.Now(), l)
	expect("answered", "[[a b]]")
	if !may() {
		t.Error("nobody is asked")
	}
	names = []string{"b", "c"}
	l = mark()
	if got := VotersOf(l); !slices.Equal(got, names) {
		t.Errorf("the Lease names %v", got)
	}
	names = []string{"d"}
	if got := VotersOf(mark()); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("a third list, %v, before the second was answered", got)
	}
	expect("another is sent", "[[a b] [b c]]")
	for _, c := range []struct {
		say  string
		want bool
	}{{"a", false}, {"c", false}, {"b", true}, {"a c", true}} {
		o.mu.Lock()
		o.say = map[string]bool{}
		for _, name := range strings.Fields(c.say) {
			o.say[name] = true
		}
		o.mu.Unlock()
		n.mu.Lock()
		n.deadline, n.asked = n.Now()+time.Second, 0
		n.mu.Unlock()
		var asking sync.WaitGroup
		n.askOthers(t.Context(), &asking)
		asking.Wait()
		if got := n.left() > time.Second; got != c.want {
			t.Errorf("%s vouch: goes on: %v", c.say, got)
		}
	}
	n = newNode(t, dir)
	expect("a new agent", "[[a b] [b c]]")
	n.Voters = func() ([]string, bool) { return names, known }
	n.Answered(t.Context(), n.Now(), l)
	expect("and the answer", "[[b c]]")
	names = nil
	l = mark()
	expect("one coordinator does not know of it", "[[b c] []]")
	if may() || len(VotersOf(l)) != 0 || CoveredFor(l) == 0 {
		t.Error("somebody is asked who is not on the Lease")
	}
	n.Answered(t.Context(), n.Now(), l)
	expect("and none is named", "[]")
	names, known = []string{"a"}, false
	mark()
	expect("nobody can tell", "[]")
}
