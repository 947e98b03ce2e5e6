package gatewayproxy

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

// TestPaths has the table of the Ingress documentation (ING-12 to ING-14).
func TestPaths(t *testing.T) {
	for _, c := range []struct {
		kind  string
		rules []string
		path  string
		want  string
	}{
		{gatewayfeed.Prefix, []string{"/"}, "/any/path", "/"},
		{gatewayfeed.Exact, []string{"/foo"}, "/foo", "/foo"},
		{gatewayfeed.Exact, []string{"/foo"}, "/bar", ""},
		{gatewayfeed.Exact, []string{"/foo"}, "/foo/", ""},
		{gatewayfeed.Exact, []string{"/foo/"}, "/foo", ""},
		{gatewayfeed.Prefix, []string{"/foo"}, "/foo/", "/foo"},
		{gatewayfeed.Prefix, []string{"/foo/"}, "/foo", "/foo/"},
		{gatewayfeed.Prefix, []string{"/aaa/bb"}, "/aaa/bbb", ""},
		{gatewayfeed.Prefix, []string{"/aaa/bbb"}, "/aaa/bbb/ccc", "/aaa/bbb"},
		{gatewayfeed.Prefix, []string{"/aaa/bbb"}, "/aaa/bbbxyz", ""},
		{gatewayfeed.Prefix, []string{"/", "/aaa"}, "/aaa/ccc", "/aaa"},
		{gatewayfeed.Prefix, []string{"/", "/aaa", "/aaa/bbb"}, "/aaa/bbb", "/aaa/bbb"},
		{gatewayfeed.Prefix, []string{"/", "/aaa", "/aaa/bbb"}, "/ccc", "/"},
		{gatewayfeed.Prefix, []string{"/aaa"}, "/ccc", ""},
		{gatewayfeed.Prefix, []string{"/foo"}, "/Foo", ""},
	} {
		var r gatewayfeed.Route
		for _, p := range c.rules {
			r.Rules = append(r.Rules, gatewayfeed.Rule{Matches: []gatewayfeed.Match{{PathKind: c.kind, Path: p}}})
		}
		table, err := NewTable([]gatewayfeed.Route{r})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if f := table.Match(&Request{Path: c.path, Method: http.MethodGet}); f != nil {
			got = f.Matches[0].Path
		}
		if got != c.want {
			t.Errorf("%s of %v (%s): %q, not %q", c.path, c.rules, c.kind, got, c.want)
		}
	}
}

// TestHosts has wildcards of Ingresses (ING-15) and of Gateways, which have more labels.
func TestHosts(t *testing.T) {
	for _, c := range []struct {
		host, name string
		one, want  bool
	}{
		{"*.foo.com", "bar.foo.com", true, true},
		{"*.foo.com", "baz.bar.foo.com", true, false},
		{"*.foo.com", "baz.bar.foo.com", false, true},
		{"*.foo.com", "foo.com", true, false},
		{"*.foo.com", "foo.com", false, false},
		{"*.foo.com", "xfoo.com", false, false},
		{"", "any.example", false, true},
		{"a.example", "b.example", false, false},
	} {
		if got := MatchHost(c.host, c.name, c.one); got != c.want {
			t.Errorf("%q has %q (one label: %t): %t", c.host, c.name, c.one, got)
		}
	}
}

// TestPrecedence has the order of HTTPRouteRule's matches.
func TestPrecedence(t *testing.T) {
	rule := func(name string, m gatewayfeed.Match, hosts ...string) gatewayfeed.Route {
		return gatewayfeed.Route{Name: name, Hostnames: hosts,
			Rules: []gatewayfeed.Rule{{Matches: []gatewayfeed.Match{m}}}}
	}
	h := []gatewayfeed.Value{{Name: "version", Value: "2"}}
	routes := []gatewayfeed.Route{
		rule("oldest", gatewayfeed.Match{PathKind: gatewayfeed.Prefix, Path: "/"}),
		rule("second", gatewayfeed.Match{PathKind: gatewayfeed.Prefix, Path: "/"}),
		rule("wildcard", gatewayfeed.Match{PathKind: gatewayfeed.Prefix, Path: "/"}, "*.example.com"),
		rule("precise", gatewayfeed.Match{PathKind: gatewayfeed.Prefix, Path: "/a"}, "x.example.com"),
		rule("longer", gatewayfeed.Match{PathKind: gatewayfeed.Prefix, Path: "/long/path"}),
		rule("exact", gatewayfeed.Match{Path: "/long/path"}),
		rule("regex", gatewayfeed.Match{PathKind: gatewayfeed.Regex, Path: "/lo[a-z]+"}),
		rule("header", gatewayfeed.Match{PathKind: gatewayfeed.Prefix, Path: "/long/path", Headers: h}),
		rule("method", gatewayfeed.Match{PathKind: gatewayfeed.Prefix, Path: "/long/path", Method: "POST"}),
		rule("query", gatewayfeed.Match{PathKind: gatewayfeed.Prefix, Path: "/q",
			Query: []gatewayfeed.Value{{Name: "k", Value: "v"}}}),
	}
	table, err := NewTable(routes)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		r    Request
		want string
	}{
		{Request{Path: "/"}, "oldest"},
		{Request{Path: "/", Host: "x.example.com"}, "wildcard"},
		{Request{Path: "/a", Host: "x.example.com"}, "precise"},
		{Request{Path: "/long/path/x"}, "longer"},
		{Request{Path: "/long/path"}, "exact"},
		{Request{Path: "/long"}, "regex"},
		{Request{Path: "/long/path/x", Header: http.Header{"Version": {"2"}}}, "header"},
		{Request{Path: "/long/path/x", Method: "POST", Header: http.Header{"Version": {"2"}}}, "method"},
		{Request{Path: "/q", Query: url.Values{"k": {"v", "w"}}}, "query"},
		{Request{Path: "/q", Query: url.Values{"k": {"w"}}}, "oldest"},
	} {
		if got := table.Match(&c.r); got == nil || got.route.Name != c.want {
			t.Errorf("%+v: %+v, not %s", c.r, got, c.want)
		}
	}
}
