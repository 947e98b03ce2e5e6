package peer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// desk plays what nodes ask and tell, one word a line, and shows the answers.
type desk struct {
	*Book
	now  time.Time
	dead []string
}

func (d *desk) do(line string) string {
	words := strings.Fields(line)
	key := Key{}
	switch words[0] {
	case "find":
		w := Wish{Source: Source{Node: words[1], Port: 1}}
		for _, x := range words[2:] {
			name, is, _ := strings.Cut(x, "=")
			switch {
			case name == "lost":
				w.Lost = append(w.Lost, is)
			case name == "busy":
				w.Busy = append(w.Busy, is)
			case name == "stalled":
				w.Stalled = true
			case name == "slow":
				w.Slow = true
			}
		}
		var names []string
		for _, s := range d.Find(key, w, d.now, d.alive) {
			names = append(names, s.Node)
		}
		if len(names) == 0 {
			return "registry"
		}
		return strings.Join(names, " ")
	case "have":
		d.Have(Source{words[1], 1}, []Key{key}, d.now)
	case "gone":
		d.Gone(words[1], []Key{key})
	case "still":
		d.Still(words[1], []Key{key}, d.now)
	case "dies":
		d.dead = append(d.dead, words[1])
	case "after":
		pause, err := time.ParseDuration(words[1])
		if err != nil {
			return err.Error()
		}
		d.now = d.now.Add(pause)
	}
	return ""
}

func (d *desk) alive(node string) bool { return !slices.Contains(d.dead, node) }

func TestBook(t *testing.T) {
	for name, script := range map[string]string{
		"the first goes to the registry, the next get it from those before": `
			find a -> registry
			find b -> a
			find c -> b a
			find d -> c b a
			find e -> d c b`,
		"one that has all of it comes first": `
			find a -> registry
			find b -> a
			have a
			find c -> a b`,
		"who has all of it may get it again from others": `
			have a
			have b
			find a -> b`,
		"one at the front dies": `
			find a -> registry
			find b -> a
			find c -> b a
			dies a
			find b lost=a -> registry
			find c lost=a -> b`,
		"nobody gets from one that asked later": `
			find a -> registry
			find b -> a
			find c -> b a
			find b lost=a -> registry
			find a -> b`,
		"two say that it does not give": `
			have a
			find b lost=a -> registry
			find c lost=a -> b
			find d -> c b`,
		"one says so twice": `
			have a
			find b lost=a -> registry
			find b lost=a -> registry
			find c -> b a`,
		"a busy one is not doubted": `
			have a
			have b
			find c busy=a -> b
			find d busy=a -> b c
			find e -> a b d`,
		"nothing comes: one after the other goes to the registry": `
			find a -> registry
			find b -> a
			find c -> b a
			after 10s
			find b stalled -> a
			after 6s
			find b stalled -> registry
			find c stalled -> b a
			after 16s
			find c stalled -> registry`,
		"little comes: one more goes to the registry, and the others get it there": `
			find a -> registry
			find b -> a
			find c -> b a
			find d -> c b a
			after 10s
			find d slow -> c b a
			after 6s
			find d slow -> registry
			find c slow -> d b a
			after 16s
			find b slow -> d a
			have d
			find b slow -> registry`,
		"one that says nothing for long is gone": `
			find a -> registry
			after 50s
			still a
			after 50s
			find b -> a
			after 61s
			find c -> registry`,
		"one that gives up": `
			find a -> registry
			find b -> a
			gone a
			find b lost=a -> registry`,
	} {
		t.Run(name, func(t *testing.T) {
			d := &desk{Book: NewBook(), now: time.Unix(1e9, 0)}
			for line := range strings.Lines(strings.TrimSpace(script)) {
				line = strings.TrimSpace(line)
				do, want, _ := strings.Cut(line, " -> ")
				if got := d.do(do); got != want {
					t.Errorf("%s: got %q", line, got)
				}
			}
		})
	}
}

// TestNoCircles: however nodes come, fail and ask again, none waits for itself, and a
// source that has no other is never left without an answer.
func TestNoCircles(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		b, now := NewBook(), time.Unix(1e9, 0)
		alive := func(string) bool { return true }
		from := map[string][]string{} // what each was given last
		for range 300 {
			node := fmt.Sprint("n", r.IntN(12))
			now = now.Add(time.Duration(r.IntN(8)) * time.Second)
			switch r.IntN(6) {
			case 0:
				b.Have(Source{node, 1}, []Key{{}}, now)
				delete(from, node)
			case 1:
				b.Gone(node, []Key{{}})
				delete(from, node)
			default:
				w := Wish{Source: Source{node, 1}, Stalled: r.IntN(4) == 0}
				if old := from[node]; len(old) > 0 && r.IntN(2) == 0 {
					w.Lost = old[:1]
				}
				from[node] = nil
				for _, s := range b.Find(Key{}, w, now, alive) {
					if s.Node == node || slices.Contains(w.Lost, s.Node) {
						t.Fatalf("seed %d: %s is sent to %s", seed, node, s.Node)
					}
					from[node] = append(from[node], s.Node)
				}
			}
			for n := range from {
				if circle(from, n, n, len(from)) {
					t.Fatalf("seed %d: %s waits for itself: %v", seed, n, from)
				}
			}
		}
		b.Sweep(now.Add(time.Hour), func(string) bool { return false })
		if len(b.layers) != 0 || len(b.ofNode) != 0 {
			t.Fatalf("seed %d: %v %v are left of dead nodes", seed, b.layers, b.ofNode)
		}
	}
}

// circle tells whether all ways from a node lead back to one: it gets nothing then.
func circle(from map[string][]string, at, to string, depth int) bool {
	if depth == 0 || len(from[at]) == 0 {
		return false
	}
	for _, s := range from[at] {
		if s != to && !circle(from, s, to, depth-1) {
			return false
		}
	}
	return true
}

// TestBookIsBounded: no member has another keep more than its share.
// TestBookForgets: who is still getting a layer and falls silent is forgotten soon, and who has
// it after a day in which it did not say so again, also where nobody asks for it any more.
func TestBookForgets(t *testing.T) {
	b, now := NewBook(), time.Unix(1e9, 0)
	alive := func(string) bool { return true }
	for i := range 10 {
		who := Source{fmt.Sprint("n", i), 1}
		b.Have(who, []Key{{1, byte(i)}, {2}}, now)
		b.Find(Key{3, byte(i)}, Wish{Source: who}, now, alive)
	}
	b.Sweep(now.Add(silence), alive)
	if len(b.layers) != 21 {
		t.Errorf("%d layers are known at first", len(b.layers))
	}
	b.Sweep(now.Add(silence+1), alive)
	if len(b.layers) != 11 || b.ofNode["n1"] != 2 {
		t.Errorf("%d layers are known after a silence, and of one node %d", len(b.layers), b.ofNode["n1"])
	}
	b.Have(Source{"n1", 1}, []Key{{2}}, now.Add(believed/2))
	b.Sweep(now.Add(believed), alive)
	if len(b.layers) != 11 {
		t.Errorf("%d layers are known after a day", len(b.layers))
	}
	b.Sweep(now.Add(believed+1), alive)
	if len(b.layers) != 1 || len(b.ofNode) != 1 || b.ofNode["n1"] != 1 {
		t.Errorf("%d layers of %v are known after more than a day", len(b.layers), b.ofNode)
	}
}

func TestBookIsBounded(t *testing.T) {
	b, now := NewBook(), time.Unix(1e9, 0)
	for i := range 4 * maxOfNode {
		var k Key
		k[0], k[1], k[2] = byte(i), byte(i>>8), byte(i>>16)
		b.Have(Source{"greedy", 1}, []Key{k}, now)
		b.Find(k, Wish{Source: Source{"curious", 1}}, now, func(string) bool { return true })
	}
	for node, n := range b.ofNode {
		if n > maxOfNode {
			t.Errorf("%s has %d entries", node, n)
		}
	}
	if n := len(b.layers); n > 2*maxOfNode {
		t.Errorf("there are %d layers, of nodes that have all they may", n)
	}
	for i := range 2 * maxSources {
		b.Have(Source{fmt.Sprint("n", i), 1}, []Key{{1}}, now)
		b.Find(Key{2}, Wish{Source: Source{fmt.Sprint("n", i), 1}}, now, func(string) bool { return true })
	}
	if n, m := len(b.layers[Key{1}].sources), len(b.layers[Key{2}].sources); n > maxWhole+2 || m > maxSources {
		t.Errorf("layers have %d and %d sources", n, m)
	}
}
