package encryption

import (
	"slices"
	"time"

	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
)

// phase is how far a rotation has come.
type phase int

const (
	// whole: no rotation is under way.
	whole phase = iota
	// added: the newest key is known but not written with.
	added
	// promoted: values are written with the newest key; older ones may still be
	// what others are stored with.
	promoted
)

// written is a list of keys whose first one values are written with.
type written struct {
	provider string // as it stands in stored values: k8s:enc:PROVIDER:v1:KEY:
	keys     *[]apiserverv1.Key
}

// lists are those of each entry's first provider; KMS and identity have none.
func lists(c *apiserverv1.EncryptionConfiguration) []written {
	var out []written
	for i := range c.Resources {
		if len(c.Resources[i].Providers) == 0 {
			continue
		}
		switch p := &c.Resources[i].Providers[0]; {
		case p.Secretbox != nil:
			out = append(out, written{"secretbox", &p.Secretbox.Keys})
		case p.AESGCM != nil:
			out = append(out, written{"aesgcm", &p.AESGCM.Keys})
		case p.AESCBC != nil:
			out = append(out, written{"aescbc", &p.AESCBC.Keys})
		}
	}
	return slices.DeleteFunc(out, func(w written) bool { return len(*w.keys) == 0 })
}

// newest is the place of the key that was made last; -1 when none is ours.
func newest(keys []apiserverv1.Key) int {
	best := -1
	for i, k := range keys {
		if at := made(k); !at.IsZero() && (best < 0 || at.After(made(keys[best]))) {
			best = i
		}
	}
	return best
}

// progress is the earliest phase of all lists: they go together.
func progress(c *apiserverv1.EncryptionConfiguration) phase {
	p := whole
	for _, w := range lists(c) {
		switch at := newest(*w.keys); {
		case at > 0:
			return added
		case at == 0 && len(*w.keys) > 1:
			p = promoted
		}
	}
	return p
}

// add makes a new key the second of each list.
func add(c *apiserverv1.EncryptionConfiguration, now time.Time) error {
	for _, w := range lists(c) {
		at := now.Truncate(time.Second)
		if n := newest(*w.keys); n >= 0 && !at.After(made((*w.keys)[n])) {
			at = made((*w.keys)[n]).Add(time.Second) // the clock is behind, or has moved little
		}
		key, err := newKey(at)
		if err != nil {
			return err
		}
		*w.keys = slices.Insert(*w.keys, 1, key)
	}
	return nil
}

// promote makes the newest key the first of each list.
func promote(c *apiserverv1.EncryptionConfiguration) {
	for _, w := range lists(c) {
		if at := newest(*w.keys); at > 0 {
			key := (*w.keys)[at]
			*w.keys = slices.Insert(slices.Delete(*w.keys, at, at+1), 0, key)
		}
	}
}

// drop leaves each list its first key, when that is the newest, and returns the
// others as PROVIDER:KEY.
func drop(c *apiserverv1.EncryptionConfiguration) []string {
	var dropped []string
	for _, w := range lists(c) {
		if newest(*w.keys) != 0 {
			continue
		}
		for _, k := range (*w.keys)[1:] {
			dropped = append(dropped, w.provider+":"+k.Name)
		}
		*w.keys = (*w.keys)[:1]
	}
	return dropped
}

// current are the keys that values are written with, as PROVIDER:KEY.
func current(c *apiserverv1.EncryptionConfiguration) []string {
	var names []string
	for _, w := range lists(c) {
		if name := w.provider + ":" + (*w.keys)[0].Name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
