package nft

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Table is a table by its name.
type Table struct {
	Family Family
	Name   string
}

func (t Table) String() string { return t.Family.String() + " " + t.Name }

// Objects are what a table holds, or a part of it, as values.
type Objects struct {
	Table    Table
	Sets     map[string]*Set
	Chains   map[string]Chain
	Elements map[*Set]map[string]string // data by key, both as Data; of sets in this part or another
}

// Set is a set or, with data, a map. What it is like never changes: another
// timeout or type takes another name.
type Set struct {
	Name string
	Key  Type
	Data Type // of a map; Verdict: it leads to chains
	// Timeout is how long an element lives that a rule wrote; 0 = rules write none.
	Timeout time.Duration
	Size    uint32 // limits what rules may write: goes with Timeout
	// Keep says that not all elements are this process's: a reset leaves them. Maps
	// that lead to chains cannot.
	Keep bool
	// Intervals says that each element is an Interval. They must not touch.
	Intervals bool
}

func (s *Set) isMap() bool { return s.Data.Name != "" }

// Chain is a chain with its rules; one without a hook is for other chains to go
// to. A chain's hook never changes either.
type Chain struct {
	Hook  Hook
	Rules []Rule
}

func (c Chain) equal(d Chain) bool {
	same := func(a, b Rule) bool { return a.String() == b.String() }
	return c.Hook == d.Hook && slices.EqualFunc(c.Rules, d.Rules, same)
}

// Hook is where a chain meets packets.
type Hook struct {
	Kind     string // Filter, NAT; empty: nowhere
	At       Point
	Priority int // chains of one point run by it, the lowest first
}

// Kinds of chains with a hook.
const (
	Filter = "filter"
	NAT    = "nat"
)

// Point is a packet's way station.
type Point uint32

// Points.
const (
	Prerouting  Point = unix.NF_INET_PRE_ROUTING
	Input       Point = unix.NF_INET_LOCAL_IN
	Forward     Point = unix.NF_INET_FORWARD
	Output      Point = unix.NF_INET_LOCAL_OUT
	Postrouting Point = unix.NF_INET_POST_ROUTING
)

func (p Point) String() string {
	return []string{"prerouting", "input", "forward", "output", "postrouting"}[p]
}

// Priorities that chains usually have (nft(8)); those of bridges are others.
const (
	PriorityRaw     = -300
	PriorityDstNAT  = -100
	PriorityFilter  = 0
	PrioritySrcNAT  = 100
	PriorityBridged = -300 // before br_netfilter (NF_BR_PRI_NAT_DST_BRIDGED)
)

// NewObjects holds nothing yet.
func NewObjects(t Table) Objects {
	return Objects{
		Table:    t,
		Sets:     map[string]*Set{},
		Chains:   map[string]Chain{},
		Elements: map[*Set]map[string]string{},
	}
}

// AddSets adds sets.
func (o Objects) AddSets(sets ...*Set) {
	for _, s := range sets {
		o.Sets[s.Name] = s
	}
}

// AddChain adds a chain that meets packets at a hook.
func (o Objects) AddChain(name string, h Hook) { o.Chains[name] = Chain{Hook: h} }

// AddRule adds a rule to a chain, after those that it has. A chain without a
// hook is made by its first rule.
func (o Objects) AddRule(chain string, r ...Statement) {
	c := o.Chains[chain]
	c.Rules = append(c.Rules, r)
	o.Chains[chain] = c
}

// Add adds an element to a set, or with a value to a map.
func (o Objects) Add(s *Set, key, value Data) {
	elems := o.Elements[s]
	if elems == nil {
		elems = map[string]string{}
		o.Elements[s] = elems
	}
	elems[string(key)] = string(value)
}

// Merge adds what others hold; they are not used any more.
func (o Objects) Merge(others Objects) {
	maps.Copy(o.Sets, others.Sets)
	maps.Copy(o.Chains, others.Chains)
	for s, elems := range others.Elements {
		if o.Elements[s] == nil {
			o.Elements[s] = elems
		} else {
			maps.Copy(o.Elements[s], elems)
		}
	}
}

// String is all that the objects are, sorted, as nft lists it.
func (o Objects) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s\n", o.Table)
	for _, name := range slices.Sorted(maps.Keys(o.Chains)) {
		o.Chains[name].print(&b, name)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Sets)) {
		fmt.Fprintf(&b, "%s\n", o.Sets[name])
	}
	byName := func(a, b *Set) int { return cmp.Compare(a.Name, b.Name) }
	for _, s := range slices.SortedFunc(maps.Keys(o.Elements), byName) {
		s.printElements(&b, o.Elements[s])
	}
	return b.String()
}

func (c Chain) print(b *strings.Builder, name string) {
	fmt.Fprintf(b, "chain %s\n", name)
	if c.Hook.Kind != "" {
		fmt.Fprintf(b, "  type %s hook %s priority %d\n", c.Hook.Kind, c.Hook.At, c.Hook.Priority)
	}
	for _, r := range c.Rules {
		fmt.Fprintf(b, "  %s\n", r)
	}
}

// String is what the set is like.
func (s *Set) String() string {
	kind, data := "set", ""
	if s.isMap() {
		kind, data = "map", " : "+s.Data.Name
	}
	text := fmt.Sprintf("%s %s type %s%s", kind, s.Name, s.Key.Name, data)
	if s.Size > 0 {
		text += fmt.Sprintf(" size %d", s.Size)
	}
	if s.Timeout > 0 {
		text += fmt.Sprintf(" timeout %s", s.Timeout)
	}
	return text
}

func (s *Set) printElements(b *strings.Builder, elems map[string]string) {
	lines := make([]string, 0, len(elems))
	for key, value := range elems {
		line := "element " + s.Name + " "
		if s.Intervals {
			line += Data(key).printInterval(s.Key)
		} else {
			line += Data(key).print(s.Key)
		}
		if s.isMap() {
			line += " : " + Data(value).print(s.Data)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	for _, line := range lines {
		fmt.Fprintln(b, line)
	}
}
