package gatewayfeed

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

func TestDecode(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{`{}`, ""},
		{`{"config":{"ports":[{"number":28000,"listeners":[{"name":"l","protocol":"HTTP"}]}]}}`, ""},
		{`{"config":{"ports":[{"ingress":"http"},{"ingress":"https"}]}}`, ""},
		{`{"config":{"ports":[{"number":28001},{"number":28001}]}}`, "tcp/28001 is there twice"},
		{`{"config":{"ports":[{"number":10250}]}}`, "port 10250 is none of"},
		{`{"config":{"ports":[{"ingress":"ftp"}]}}`, `"ftp" is no port of Ingresses`},
		{`{"config":{"ports":[{}]}}`, "port 0 is none of 28000 to 29999"},
		{`{"config":{"ports":[{"number":28001,"listeners":[{"protocol":"SCTP"}]}]}}`, "is no protocol"},
		{`{"config":{"ports":[{"number":28001,"listeners":[{"protocol":"UDP"},{"protocol":"TCP"}]}]}}`, "the port is one of UDP"},
		{`{"config":{"ports":[{"number":28001,"listeners":[{"protocol":"HTTPS","certificates":["c"]}]}]}}`, `there is no certificate "c"`},
		{`{"config":{"ports":[{"number":28001,"listeners":[{"protocol":"HTTPS","clients":{"authorities":["a"]}}]}]}}`, `there is no authority "a"`},
		{`{"config":{"ports":[{"number":28001,"listeners":[{"protocol":"HTTP","routes":[{"rules":[{"backends":[{"tls":{"authorities":["a"]}}]}]}]}]}]}}`,
			`there is no authority "a"`},
		{`[`, "unexpected end"},
	} {
		_, err := Decode([]byte(c.line))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %q", c.line, err, c.want)
		}
	}
}

// TestBackends: all are visited, those of filters too, each with its network.
func TestBackends(t *testing.T) {
	b := func(name string) Backend { return Backend{Namespace: "ns", Service: name, Port: 80} }
	mirrored := b("a")
	mirrored.Filters.Mirrors = []Mirror{{Backend: b("m1")}}
	c := Config{Ports: []Port{
		{Number: 1, Listeners: []Listener{{Protocol: HTTP, Routes: []Route{{Rules: []Rule{{
			Backends: []Backend{mirrored, {}}, Filters: Filters{Mirrors: []Mirror{{Backend: b("m2")}}}}}}}}}},
		{Number: 2, Listeners: []Listener{{Protocol: UDP, Streams: []Stream{{Backends: []Backend{b("u")}}}}}},
	}}
	var got []string
	c.Backends(func(b *Backend, udp bool) { got = append(got, b.Key(udp)) })
	if want := []string{"tcp/ns/a/80", "tcp/ns/m1/80", "", "tcp/ns/m2/80", "udp/ns/u/80"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
}

// TestOnly: a part has the certificates and authorities that it names, of backends too, and
// no other's.
func TestOnly(t *testing.T) {
	secure := func(number uint16, certificate, authority, client string) Port {
		return Port{Number: number, Listeners: []Listener{{
			Protocol: HTTPS, Certificates: []string{certificate}, Clients: &ClientAuth{Authorities: []string{authority}},
			Routes: []Route{{Rules: []Rule{{Backends: []Backend{{TLS: &BackendTLS{Certificate: client,
				Authorities: []string{"b"}}}}}}}}}}}
	}
	c := Config{
		Ports: []Port{secure(28000, "one", "a", "shown"), secure(28001, "two", "a2", "shown2")},
		Certificates: map[string]Certificate{"one": {"c1", "k1"}, "two": {"c2", "k2"}, "shown": {"c3", "k3"},
			"shown2": {"c4", "k4"}},
		Authorities: map[string]string{"a": "1", "a2": "2", "b": "3"},
	}
	got := c.Only(func(p *Port) bool { return p.Number == 28000 })
	want := &Config{
		Ports:        c.Ports[:1],
		Certificates: map[string]Certificate{"one": {"c1", "k1"}, "shown": {"c3", "k3"}},
		Authorities:  map[string]string{"a": "1", "b": "3"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, not %+v", got, want)
	}
	if err := got.Check(); err != nil {
		t.Error(err)
	}
	got.Add(c.Only(func(p *Port) bool { return p.Number == 28001 }))
	if !reflect.DeepEqual(got, &c) {
		t.Errorf("put together: %+v, not %+v", got, c)
	}
	if none := c.Only(func(*Port) bool { return false }); !reflect.DeepEqual(none, &Config{}) {
		t.Errorf("of no port: %+v", none)
	}
}

func TestHeaders(t *testing.T) {
	h := http.Header{"Gone": {"x"}, "Kept": {"a"}, "Other": {"b"}}
	(&Headers{Set: []Header{{"kept", "s"}}, Add: []Header{{"other", "c"}}, Remove: []string{"gone"}}).Apply(h)
	(*Headers)(nil).Apply(h)
	if want := (http.Header{"Kept": {"s"}, "Other": {"b", "c"}}); !reflect.DeepEqual(h, want) {
		t.Errorf("%v, not %v", h, want)
	}
}

// FuzzDecode: a line that is taken can be told again, and is taken then too.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"config":{"ports":[{"number":28000,"listeners":[{"name":"l","protocol":"HTTP","routes":[{"rules":[{}]}]}]}]}}`))
	f.Add([]byte(`{"config":{"ports":[{"ingress":"http"}],"certificates":{"a":{"chain":"x","key":"y"}}}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		u, err := Decode(line)
		if err != nil {
			return
		}
		again, err := json.Marshal(u)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(again); err != nil {
			t.Errorf("%s became %s: %v", line, again, err)
		}
	})
}
