package policy

import "github.com/shoal-project/shoal/cni/nft"

// journal is what a table is to hold, with what the kernel has where that differs.
// What a change costs is what it touches.
type journal struct {
	nft.Objects
	// As the kernel has them, of what was touched since the last change: nil or false
	// for what is not there.
	chains map[string]*nft.Chain
	sets   map[string]*nft.Set
	elems  map[*nft.Set]map[string]element
}

type element struct {
	there bool
	value string
}

func newJournal(t nft.Table) *journal {
	j := &journal{Objects: nft.NewObjects(t)}
	j.forget()
	return j
}

// forget says that the kernel has all of it.
func (j *journal) forget() {
	j.chains, j.sets, j.elems = map[string]*nft.Chain{}, map[string]*nft.Set{}, map[*nft.Set]map[string]element{}
}

func (j *journal) touch(s *nft.Set, key string) {
	if j.elems[s] == nil {
		j.elems[s] = map[string]element{}
	}
	if _, known := j.elems[s][key]; !known {
		value, there := j.Elements[s][key]
		j.elems[s][key] = element{there, value}
	}
}

func (j *journal) put(s *nft.Set, key, value nft.Data) {
	j.touch(s, string(key))
	j.Add(s, key, value)
}

func (j *journal) drop(s *nft.Set, key nft.Data) {
	j.touch(s, string(key))
	delete(j.Elements[s], string(key))
}

// addSet adds a set whose name no other has.
func (j *journal) addSet(s *nft.Set) {
	if _, known := j.sets[s.Name]; !known {
		j.sets[s.Name] = j.Sets[s.Name]
	}
	j.Sets[s.Name] = s
}

// dropSet drops a set with its elements.
func (j *journal) dropSet(s *nft.Set) {
	if _, known := j.sets[s.Name]; !known {
		j.sets[s.Name] = s
	}
	delete(j.Sets, s.Name)
	delete(j.Elements, s)
	delete(j.elems, s)
}

func (j *journal) setChain(name string, c *nft.Chain) {
	if _, known := j.chains[name]; !known {
		j.chains[name] = nil
		if old, there := j.Chains[name]; there {
			j.chains[name] = &old
		}
	}
	if c == nil {
		delete(j.Chains, name)
	} else {
		j.Chains[name] = *c
	}
}

// change is what brings the kernel to what is wanted.
func (j *journal) change() nft.Change {
	had, want := nft.NewObjects(j.Table), nft.NewObjects(j.Table)
	for name, old := range j.sets {
		if old != nil {
			had.Sets[name] = old
		}
		if now := j.Sets[name]; now != nil {
			want.Sets[name] = now
		}
	}
	for name, old := range j.chains {
		if old != nil {
			had.Chains[name] = *old
		}
		if now, there := j.Chains[name]; there {
			want.Chains[name] = now
		}
	}
	for s, elems := range j.elems {
		for key, old := range elems {
			if old.there {
				had.Add(s, nft.Data(key), nft.Data(old.value))
			}
			if value, there := j.Elements[s][key]; there {
				want.Add(s, nft.Data(key), nft.Data(value))
			}
		}
	}
	return nft.Diff(had, want)
}
