package gatewayproxy

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// Request is what a table sees of one.
type Request struct {
	Host   string // lower case, without port
	Path   string
	Method string
	Header http.Header
	Query  url.Values
}

// Table has the rules of a listener in the order in which they are tried: those of a request's
// own name come before all others. It is never changed.
type Table struct {
	names      map[string][]candidate // of one host name
	candidates []candidate            // of wildcards, and of all names
}

// candidate is one match of a rule, for one host name.
type candidate struct {
	host     string
	oneLabel bool
	match    gatewayfeed.Match
	path     *regexp.Regexp
	headers  []value
	query    []value
	rule     *rule
}

type value struct {
	gatewayfeed.Value
	regex *regexp.Regexp
}

// rule is what a match leads to.
type rule struct {
	*gatewayfeed.Rule
	route *gatewayfeed.Route
}

// Found is a rule with the match that led to it.
type Found struct {
	*rule
	// Prefix is the part of the path that the match names.
	Prefix string
}

// NewTable compiles routes, the oldest first. Among the matches that a request meets the
// most exact counts (HTTPRouteRule, "Proxy or Load Balancer routing configuration
// generated from HTTPRoutes MUST prioritize matches"): that of the longest name, the
// exact path, the longest prefix, the method, the most headers, the most parameters; then
// that of the oldest route, and of its first rule. An Ingress's are the same (ING-14).
func NewTable(routes []gatewayfeed.Route) (*Table, error) {
	t := &Table{names: map[string][]candidate{}}
	for i := range routes {
		r := &routes[i]
		hosts := r.Hostnames
		if len(hosts) == 0 {
			hosts = []string{""}
		}
		for j := range r.Rules {
			ru := &rule{&r.Rules[j], r}
			matches := ru.Matches
			if len(matches) == 0 {
				matches = []gatewayfeed.Match{{}}
			}
			for _, m := range matches {
				c, err := compile(m)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", r.Name, err)
				}
				c.rule, c.oneLabel = ru, r.OneLabel
				for _, h := range hosts {
					c.host = strings.ToLower(h)
					if c.host == "" || strings.HasPrefix(c.host, "*") {
						t.candidates = append(t.candidates, c)
					} else {
						t.names[c.host] = append(t.names[c.host], c)
					}
				}
			}
		}
	}
	slices.SortStableFunc(t.candidates, compare)
	for _, list := range t.names {
		slices.SortStableFunc(list, compare)
	}
	return t, nil
}

func compile(m gatewayfeed.Match) (c candidate, err error) {
	c.match = m
	if m.PathKind == gatewayfeed.Regex {
		if c.path, err = gatewayfeed.Whole(m.Path); err != nil {
			return c, err
		}
	}
	if c.headers, err = values(m.Headers); err != nil {
		return c, err
	}
	c.query, err = values(m.Query)
	return c, err
}

func values(list []gatewayfeed.Value) (out []value, err error) {
	for _, v := range list {
		c := value{Value: v}
		if v.Kind == gatewayfeed.Regex {
			if c.regex, err = gatewayfeed.Whole(v.Value); err != nil {
				return nil, err
			}
		}
		out = append(out, c)
	}
	return out, nil
}

func compare(a, b candidate) int {
	return cmp.Or(
		-cmp.Compare(hostRank(a.host), hostRank(b.host)),
		-cmp.Compare(pathRank(a.match), pathRank(b.match)),
		-cmp.Compare(len(a.match.Path), len(b.match.Path)),
		-cmp.Compare(count(a.match.Method != ""), count(b.match.Method != "")),
		-cmp.Compare(len(a.headers), len(b.headers)),
		-cmp.Compare(len(a.query), len(b.query)),
	)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// hostRank orders names: exact ones first, then the longest.
func hostRank(h string) int {
	switch {
	case h == "":
		return 0
	case strings.HasPrefix(h, "*."):
		return len(h)
	}
	return 1000 + len(h) // a name has 253 bytes at most
}

func pathRank(m gatewayfeed.Match) int {
	switch {
	case m.Path == "":
		return 0
	case m.PathKind == gatewayfeed.Exact:
		return 3
	case m.PathKind == gatewayfeed.Regex:
		return 2
	}
	return 1
}

// MatchHost tells whether a name is one of those that host stands for.
func MatchHost(host, name string, oneLabel bool) bool {
	suffix, wildcard := strings.CutPrefix(host, "*")
	switch {
	case host == "" || host == name:
		return true
	case !wildcard || !strings.HasSuffix(name, suffix):
		return false
	}
	label := strings.TrimSuffix(name, suffix)
	return label != "" && !(oneLabel && strings.Contains(label, "."))
}

// Match finds the rule for a request; nil: there is none.
func (t *Table) Match(r *Request) *Found {
	if f := match(t.names[r.Host], r); f != nil {
		return f
	}
	return match(t.candidates, r)
}

func match(list []candidate, r *Request) *Found {
	for i := range list {
		c := &list[i]
		if !MatchHost(c.host, r.Host, c.oneLabel) || c.match.Method != "" && c.match.Method != r.Method {
			continue
		}
		if c.matchPath(r.Path) && c.matchHeaders(r) && c.matchQuery(r) {
			f := &Found{rule: c.rule}
			if c.match.PathKind == gatewayfeed.Prefix {
				f.Prefix = strings.TrimSuffix(c.match.Path, "/")
			}
			return f
		}
	}
	return nil
}

func (c *candidate) matchPath(path string) bool {
	m := &c.match
	switch {
	case m.Path == "":
		return true
	case m.PathKind == gatewayfeed.Prefix:
		prefix := strings.TrimSuffix(m.Path, "/")
		return strings.HasPrefix(path, prefix) && (len(path) == len(prefix) || path[len(prefix)] == '/')
	case c.path != nil:
		return c.path.MatchString(path)
	}
	return path == m.Path
}

func (c *candidate) matchHeaders(r *Request) bool {
	for _, h := range c.headers {
		got := strings.Join(r.Header.Values(h.Name), ",")
		if strings.EqualFold(h.Name, "Host") {
			got = r.Host
		}
		if !h.match(got) {
			return false
		}
	}
	return true
}

func (c *candidate) matchQuery(r *Request) bool {
	for _, q := range c.query {
		if !r.Query.Has(q.Name) || !q.match(r.Query.Get(q.Name)) {
			return false
		}
	}
	return true
}

func (v *value) match(got string) bool {
	if v.regex != nil {
		return v.regex.MatchString(got)
	}
	return got == v.Value.Value
}
