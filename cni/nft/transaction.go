package nft

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// transaction gathers what the kernel does at once, or not at all.
type transaction struct {
	nl *nftables.Conn
}

// change queues a change in the order that keeps every reference valid:
// elements go first and come last, chains are emptied before any is deleted,
// and sets go after the rules that name them.
func (tx *transaction) change(ch Change) error {
	t := ch.Add.Table.handle()
	if err := tx.elements(t, ch.Del.Elements, (*Set).keyOnly, tx.nl.SetDeleteElements); err != nil {
		return err
	}
	for _, s := range ch.Add.Sets {
		if err := tx.nl.AddSet(s.handle(t), nil); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	if err := tx.fill(t, ch.Add.Chains); err != nil {
		return err
	}
	if err := tx.elements(t, ch.Add.Elements, (*Set).element, tx.nl.SetAddElements); err != nil {
		return err
	}
	for name := range ch.Del.Chains {
		tx.nl.FlushChain(&nftables.Chain{Table: t, Name: name})
	}
	for name := range ch.Del.Chains {
		tx.nl.DelChain(&nftables.Chain{Table: t, Name: name})
	}
	for _, s := range ch.Del.Sets {
		tx.nl.DelSet(s.handle(t))
	}
	return nil
}

// fill makes chains, and gives them their rules in place of what they have. All
// are there before a rule goes to one.
func (tx *transaction) fill(t *nftables.Table, chains map[string]Chain) error {
	for name, c := range chains {
		tx.nl.AddChain(c.handle(t, name))
		tx.nl.FlushChain(&nftables.Chain{Table: t, Name: name})
	}
	rules := compiler{conn: tx.nl, table: t}
	for name, c := range chains {
		for _, r := range c.Rules {
			rules.rule(name, r)
		}
	}
	return rules.err
}

// Elements go in messages of so many bytes: an attribute's length has 16 bits, and
// the library cuts it off. What is around an element's own bytes is less than
// elementFrame.
const (
	messageMost  = 1 << 15
	elementFrame = 64
)

// messages divides elements among messages.
func messages(elems []nftables.SetElement) (parts [][]nftables.SetElement) {
	begin, size := 0, 0
	for i, e := range elems {
		own := elementFrame + len(e.Key) + len(e.Val)
		if e.VerdictData != nil {
			own += len(e.VerdictData.Chain)
		}
		if size += own; size > messageMost {
			parts = append(parts, elems[begin:i])
			begin, size = i, own
		}
	}
	if begin < len(elems) {
		parts = append(parts, elems[begin:])
	}
	return parts
}

func (tx *transaction) elements(
	t *nftables.Table, all map[*Set]map[string]string,
	encode func(s *Set, key, value string) nftables.SetElement, do func(*nftables.Set, []nftables.SetElement) error,
) error {
	for s, elems := range all {
		list := make([]nftables.SetElement, 0, len(elems))
		for key, value := range elems {
			if s.Intervals {
				list = append(list, interval(Data(key))...)
				continue
			}
			list = append(list, encode(s, key, value))
		}
		for _, part := range messages(list) {
			if err := do(s.handle(t), part); err != nil {
				return fmt.Errorf("elements of %s: %w", s.Name, err)
			}
		}
	}
	return nil
}

func (s *Set) element(key, value string) nftables.SetElement {
	e := nftables.SetElement{Key: []byte(key)}
	switch {
	case s.Data == Verdict:
		e.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: value}
	case s.isMap():
		e.Val = []byte(value)
	}
	return e
}

// interval is the kernel's form of one: where it begins, and where something else
// does.
func interval(d Data) []nftables.SetElement {
	first, last := d[:len(d)/2], d[len(d)/2:]
	out := []nftables.SetElement{{Key: first}}
	if end := last.after(); end != nil {
		out = append(out, nftables.SetElement{Key: end, IntervalEnd: true})
	}
	return out
}

func (s *Set) keyOnly(key, _ string) nftables.SetElement {
	return nftables.SetElement{Key: []byte(key)}
}

// reset queues what brings a table from whatever it is to what it is to be. Of
// the kernel it asks only which chains and sets there are and what they are like:
// what they hold is replaced.
func (tx *transaction) reset(want Objects) error {
	chains, sets, err := tx.found(want.Table)
	if err != nil {
		return err
	}
	t := want.Table.handle()
	tx.nl.AddTable(t)
	for _, c := range chains {
		tx.nl.FlushChain(c) // no rule names another chain or set any more
	}
	for _, s := range sets {
		if w := want.Sets[s.Name]; !s.Anonymous && (w == nil || !w.Keep || !w.like(s)) {
			tx.nl.FlushSet(s)
		}
	}
	for _, c := range chains {
		if w, wanted := want.Chains[c.Name]; !wanted || w.Hook != hookOf(c) {
			tx.nl.DelChain(c)
		}
	}
	for _, s := range sets {
		if w := want.Sets[s.Name]; !s.Anonymous && (w == nil || !w.like(s)) { // those go with their rule
			tx.nl.DelSet(s)
		}
	}
	return tx.change(Change{Del: NewObjects(want.Table), Add: want})
}

// like tells whether the kernel's set is one of this kind. A map that leads to
// chains never is: the library does not tell of what type its keys are.
func (s *Set) like(have *nftables.Set) bool {
	want := s.handle(have.Table)
	return s.Data != Verdict && want.IsMap == have.IsMap && want.Dynamic == have.Dynamic &&
		want.HasTimeout == have.HasTimeout && want.Timeout == have.Timeout && want.Size == have.Size &&
		want.Interval == have.Interval && want.Concatenation == have.Concatenation &&
		want.DataType.Bytes == have.DataType.Bytes &&
		want.KeyType.Bytes == have.KeyType.Bytes
}

func hookOf(c *nftables.Chain) Hook {
	if c.Hooknum == nil || c.Priority == nil {
		return Hook{}
	}
	return Hook{string(c.Type), Point(*c.Hooknum), int(*c.Priority)}
}

// found lists what a table has, nothing if it is not there.
func (tx *transaction) found(t Table) (chains []*nftables.Chain, sets []*nftables.Set, err error) {
	all, err := tx.nl.ListChainsOfTableFamily(t.handle().Family)
	if err != nil {
		return nil, nil, fmt.Errorf("list chains: %w", err)
	}
	for _, c := range all {
		if c.Table.Name == t.Name {
			chains = append(chains, c)
		}
	}
	if _, err := tx.nl.ListTableOfFamily(t.Name, t.handle().Family); err != nil {
		return nil, nil, nil
	}
	if sets, err = tx.nl.GetSets(t.handle()); err != nil {
		return nil, nil, fmt.Errorf("list sets: %w", err)
	}
	return chains, sets, nil
}

// handle is the set as the library has it.
func (s *Set) handle(t *nftables.Table) *nftables.Set {
	return &nftables.Set{
		Table: t, ID: setID(), Name: s.Name, IsMap: s.isMap(), KeyType: s.Key, DataType: s.Data,
		Concatenation: len(nftables.ConcatSetTypeElements(s.Key)) > 1,
		Interval:      s.Intervals,
		Dynamic:       s.Timeout > 0, HasTimeout: s.Timeout > 0, Timeout: s.Timeout, Size: s.Size,
	}
}

// handle is the chain as the library has it, without its rules.
func (c Chain) handle(t *nftables.Table, name string) *nftables.Chain {
	chain := &nftables.Chain{Table: t, Name: name}
	if c.Hook.Kind != "" {
		point, priority := nftables.ChainHook(c.Hook.At), nftables.ChainPriority(c.Hook.Priority)
		chain.Type, chain.Hooknum, chain.Priority = nftables.ChainType(c.Hook.Kind), &point, &priority
	}
	return chain
}
