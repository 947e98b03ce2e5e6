package upgrade

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
)

// Annotations of a Node: what its machine is to upgrade to, written by an administrator,
// and how that went, written by the node.
const (
	WishAnnotation   = "shoal-project.io/upgrade"
	ResultAnnotation = "shoal-project.io/upgrade-result"
)

// PackagesPath is where coordinators give packages, with the parameter digest.
const PackagesPath = "/shoal/v1/packages"

// Wish is what a node is to upgrade to.
type Wish struct {
	// ID is the wish's own: another one is another try.
	ID string `json:"id"`
	// Digest is the package's SHA-256 in hexadecimal.
	Digest string `json:"digest"`
	Format string `json:"format"`
	// Version is the package's.
	Version string `json:"version"`
}

// Result is how a wish went.
type Result struct {
	ID    string `json:"id"`
	Phase Phase  `json:"phase"`
	// Why of what is not Done, in one sentence.
	Why string `json:"why,omitempty"`
}

// maxWish is more than a wish takes, maxWhy what is told of a reason: a byte of it takes
// up to six as JSON has it.
const maxWish, maxWhy = 4 << 10, 512

var (
	digests = regexp.MustCompile(`^[0-9a-f]{64}$`)
	ids     = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)
)

// ParseWish reads the annotation; nil for none.
func ParseWish(text string) (*Wish, error) {
	if text == "" {
		return nil, nil
	}
	w := &Wish{}
	switch {
	case len(text) > maxWish:
		return nil, errors.New("it is too long")
	case json.Unmarshal([]byte(text), w) != nil:
		return nil, errors.New("it is no JSON object of id, digest, format and version")
	case !ids.MatchString(w.ID):
		return nil, errors.New("its id has other characters than letters, digits and hyphens, none, or more than 64")
	case !digests.MatchString(w.Digest):
		return nil, errors.New("its digest is no SHA-256 in hexadecimal")
	case w.Format != Deb && w.Format != RPM:
		return nil, fmt.Errorf("its format is neither %s nor %s", Deb, RPM)
	}
	if _, err := numbers(w.Version); err != nil {
		return nil, err
	}
	return w, nil
}

// ParseResult reads the annotation; what is no result is one of no wish.
func ParseResult(text string) (r Result) {
	if len(text) > maxWish || json.Unmarshal([]byte(text), &r) != nil {
		return Result{}
	}
	return r
}

// Text is a result as it is annotated.
func (r Result) Text() string {
	if len(r.Why) > maxWhy {
		r.Why = r.Why[:maxWhy] + "…"
	}
	data, err := json.Marshal(r)
	if err != nil {
		return "" // there is nothing in it that JSON does not take
	}
	return string(data)
}

// Member is a node that is to be upgraded.
type Member struct {
	Name, Zone string
	// Coordinator: the cluster's state is on this machine too.
	Coordinator bool
}

// Waves orders nodes: machines with a coordinator first, each alone, so that the
// majority of their store stays and that agents never are newer than who serves them;
// then those of one zone together, which may fail together anyhow; those without a zone
// each alone.
func Waves(nodes []Member) (waves [][]string) {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b Member) int {
		first := func(m Member) int {
			if m.Coordinator {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Name, b.Name))
	})
	last := Member{}
	for i, n := range nodes {
		with := i > 0 && !n.Coordinator && !last.Coordinator && n.Zone != "" && n.Zone == last.Zone
		if with {
			waves[len(waves)-1] = append(waves[len(waves)-1], n.Name)
		} else {
			waves = append(waves, []string{n.Name})
		}
		last = n
	}
	return waves
}
