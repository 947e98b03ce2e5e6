package fence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/fence/keeper"
)

// Other nodes' word prolongs a hold that no coordinator renews. A node names the others
// that it asks, its voters, on its Lease, so that who fences it knows whom to ask, too. It
// goes on when, with itself, most say yes; it is fenced when so many have refused that it
// will not find as many. Both are counted by one Lease's list, so one voter at least that
// said yes to one says no to the other.
const (
	// MaxVoters is how many others a node asks: all of a small cluster, of a large one some
	// from everywhere.
	MaxVoters = 14
	// Refusal is how long a voter says no to a node after it refused it to a coordinator, and
	// to all after its own start, since it may have forgotten a refusal. It is longer than the
	// round in which refusals are collected and a hold that began before its end together.
	Refusal = 20 * time.Second
	// refusalRound is how long such a round may take.
	refusalRound = 3 * time.Second
	// voteTime is how long a voter may take to answer.
	voteTime = 2 * time.Second
	// maxRefused bounds what a voter keeps: coordinators refuse no more nodes at once.
	maxRefused = 10000
)

// vouches is how many of some voters' words a node needs to go on: with its own most.
func vouches(voters int) int { return (voters + 1) / 2 }

// refusals is how many of them leave too few.
func refusals(voters int) int { return voters - vouches(voters) + 1 }

// question is what a voter is asked, answer what it says.
type question struct {
	// Node asks that it may go on; for a coordinator: that it may not.
	Node   string `json:"node"`
	Refuse bool   `json:"refuse,omitempty"`
}

type answer struct {
	Yes bool `json:"yes"`
}

// maxVote bounds a question and an answer, in bytes.
const maxVote = 1024

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // of strings and booleans
	}
	return b
}

func decode(b []byte, into any) error {
	if len(b) > maxVote {
		return fmt.Errorf("%d bytes are no vote", len(b))
	}
	return json.Unmarshal(b, into)
}

// Voter says what its node says to the others.
type Voter struct {
	mu      sync.Mutex
	begun   time.Duration
	refused map[string]time.Duration // when each node was refused
}

// NewVoter begins to count the time in which this voter says yes to nobody.
func NewVoter() *Voter {
	return &Voter{begun: keeper.Clock(), refused: map[string]time.Duration{}}
}

// Answer answers a question of a member of the gossip; nil: it may not ask that.
func (v *Voter) Answer(from string, coordinator bool, asked []byte) []byte {
	var q question
	if decode(asked, &q) != nil || q.Node == "" {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	now := keeper.Clock()
	switch {
	case q.Refuse && coordinator:
		return encode(answer{v.refuse(q.Node, now)})
	case q.Refuse || from != q.Node:
		return nil
	}
	at, refused := v.refused[q.Node]
	return encode(answer{now-v.begun >= Refusal && !(refused && now-at < Refusal)})
}

func (v *Voter) refuse(node string, now time.Duration) bool {
	for n, at := range v.refused {
		if now-at >= Refusal {
			delete(v.refused, n)
		}
	}
	if _, ok := v.refused[node]; !ok && len(v.refused) >= maxRefused {
		return false
	}
	v.refused[node] = now
	return true
}

// Ask asks a member of the gossip (gossip.Group.Ask).
type Ask func(ctx context.Context, member string, question []byte) ([]byte, error)

// poll asks voters, and returns when enough said yes, or all have answered.
func poll(ctx context.Context, ask Ask, voters []string, q question, enough func(yes map[string]bool) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, voteTime)
	var running sync.WaitGroup
	defer running.Wait() // quick: what it waits for ends with ctx
	defer cancel()
	said := make(chan string, len(voters))
	for _, name := range voters {
		running.Go(func() {
			var a answer
			b, err := ask(ctx, name, encode(q))
			if err != nil || decode(b, &a) != nil || !a.Yes {
				name = ""
			}
			said <- name
		})
	}
	yes := map[string]bool{}
	for range voters {
		if name := <-said; name != "" {
			yes[name] = true
			if enough(yes) {
				return true
			}
		}
	}
	return false
}

// count is how many of a list's voters said yes.
func count(list []string, yes map[string]bool) (n int) {
	for _, name := range list {
		if yes[name] {
			n++
		}
	}
	return n
}

// ErrNotRefused: too few voters refuse a node that is to be fenced.
var ErrNotRefused = errors.New("too few other nodes are reached that could vouch for it")

// Refuse has so many voters of a fenced node refuse it that its hold is not prolonged any
// more: Wait after Refuse returned nil none of its pods run. length is that of the holds
// that the fence ends (LengthOf).
func Refuse(ctx context.Context, ask Ask, node string, voters []string, length time.Duration) error {
	if length > Length {
		return fmt.Errorf("node %s may hold its pods for %s, and others refuse it for less", node, length)
	}
	need := refusals(len(voters))
	began := time.Now()
	enough := poll(ctx, ask, voters, question{Node: node, Refuse: true}, func(yes map[string]bool) bool {
		return count(voters, yes) >= need
	})
	switch {
	case !enough:
		return fmt.Errorf("%w: %d of %d are needed", ErrNotRefused, need, len(voters))
	case time.Since(began) > refusalRound:
		return fmt.Errorf("%w: they took too long", ErrNotRefused)
	}
	return nil
}
