package policyfeed

import (
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
)

func TestReader(t *testing.T) {
	want := []Update{
		{Reset: true, More: true, Policies: []Policy{{Key: Key{"a", "p"},
			Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Egress"}}}}},
		{Namespaces: []Namespace{{Name: "a", Labels: map[string]string{"k": "v"}}},
			Pods: []Pod{{Key: Key{"a", "x"}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
				Ports: []Port{{Name: "http", Number: 80}}, Node: "n"}}},
		{},
		{GonePods: []Key{{"a", "x"}}, GoneNamespaces: []string{"a"}, GonePolicies: []Key{{"a", "p"}}},
	}
	var text strings.Builder
	enc := json.NewEncoder(&text)
	for _, u := range want {
		if err := enc.Encode(u); err != nil {
			t.Fatal(err)
		}
	}
	r := NewReader(strings.NewReader(text.String()))
	for i := range want {
		got, err := r.Read()
		if err != nil || !reflect.DeepEqual(*got, want[i]) {
			t.Errorf("line %d: %+v, %v, want %+v", i, got, err, want[i])
		}
		if got != nil && got.Empty() != (i == 2) {
			t.Errorf("line %d: empty: %v", i, got.Empty())
		}
	}
	if _, err := r.Read(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestBadLines(t *testing.T) {
	for _, line := range []string{
		`{`, `[]`, `{"pods":[{"namespace":"a","name":"b","addrs":["1.2.3"]}]}`,
		`{"pods":[{"namespace":"a","name":"b","addrs":[""]}]}`,
		`{"pods":[{"namespace":"a","name":"b","addrs":["fe80::1%eth0"]}]}`,
		`{"pods":[{"name":"b","addrs":[]}]}`, `{"policies":[{"namespace":"a"}]}`, `{"namespaces":[{}]}`,
		strings.Repeat(" ", maxLine+1),
	} {
		if u, err := NewReader(strings.NewReader(line)).Read(); err == nil {
			t.Errorf("%.60s: taken as %+v", line, u)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"reset":true,"pods":[{"namespace":"a","name":"b","addrs":["::ffff:1.2.3.4"],"ports":[{"name":"x","number":1}]}]}`))
	f.Add([]byte(`{"policies":[{"namespace":"a","name":"b","spec":{"podSelector":{},"ingress":[{}]}}],"goneNamespaces":["x"]}`))
	f.Add([]byte(`{"clusterPolicies":[{"name":"b","spec":{"tier":"Admin","priority":1,"subject":{"namespaces":{}},` +
		`"egress":[{"action":"Deny","to":[{"networks":["::/0"]}]}]}}],"goneClusterPolicies":["x"]}`))
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
			t.Fatalf("%s: %v", again, err)
		}
		for _, p := range u.Pods {
			for _, a := range p.Addrs {
				if !a.IsValid() || a.Is4In6() {
					t.Fatalf("address %v", a)
				}
			}
		}
	})
}
