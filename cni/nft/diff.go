package nft

// Change leads a table from one state to another, in one transaction.
type Change struct {
	Del Objects
	Add Objects // chains may be there already: they are filled anew
}

// NewChange does nothing yet.
func NewChange(t Table) Change { return Change{NewObjects(t), NewObjects(t)} }

// Diff returns what leads from had to want. Both may be the same part of a
// table: its cost is theirs, not the table's.
func Diff(had, want Objects) Change {
	c := NewChange(want.Table)
	for name, s := range want.Sets {
		if had.Sets[name] == nil {
			c.Add.Sets[name] = s
		}
	}
	for name, s := range had.Sets {
		if want.Sets[name] == nil {
			c.Del.Sets[name] = s
		}
	}
	for name, chain := range want.Chains {
		if old, ok := had.Chains[name]; !ok || !old.equal(chain) {
			c.Add.Chains[name] = chain
		}
	}
	for name, chain := range had.Chains {
		if _, ok := want.Chains[name]; !ok {
			c.Del.Chains[name] = chain
		}
	}
	for s, elems := range had.Elements {
		c.Del.missing(s, elems, want.Elements[s])
	}
	for s, elems := range want.Elements {
		c.Add.missing(s, elems, had.Elements[s])
	}
	return c
}

// missing adds the elements of a set that others are not among.
func (o Objects) missing(s *Set, elems, others map[string]string) {
	for key, value := range elems {
		if other, ok := others[key]; !ok || other != value {
			o.Add(s, Data(key), Data(value))
		}
	}
}

// Empty tells whether there is nothing to do.
func (c Change) Empty() bool { return c.Del.empty() && c.Add.empty() }

func (o Objects) empty() bool { return len(o.Sets)+len(o.Chains)+len(o.Elements) == 0 }
