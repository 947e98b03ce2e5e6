package launch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestResolverLimits: what a resolver does not take is dropped, and told.
func TestResolverLimits(t *testing.T) {
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("d%d", i))
	}
	host := testHost()
	long, wide := strings.Repeat("l", 254), strings.Repeat("w", 250)
	for _, c := range []struct {
		resolver          string
		servers, searches []string
		told              int
	}{
		{"nameserver 1\nnameserver 2\nnameserver 3\nsearch a b a\n", []string{"1", "2", "3"}, []string{"a", "b", "a"}, 0},
		{"nameserver 1\nnameserver 2\nnameserver 3\nnameserver 4\n", []string{"1", "2", "3"}, nil, 1},
		{"search " + strings.Join(many, " "), nil, many[:32], 1},
		{"search a " + long + " b", nil, []string{"a", "b"}, 1},
		{"search " + strings.Repeat(wide+" ", 10), nil, slices.Repeat([]string{wide}, 8), 1},
		{"search " + strings.Repeat(wide+" ", 8), nil, slices.Repeat([]string{wide}, 8), 0},
	} {
		told := 0
		f := &SandboxFacts{Host: &host, Pod: &corev1.Pod{Spec: corev1.PodSpec{DNSPolicy: corev1.DNSDefault}},
			NodeResolver: func() ([]byte, error) { return []byte(c.resolver), nil }, Warn: func(string, string) { told++ }}
		got, err := f.resolver()
		if err != nil || !slices.Equal(got.Servers, c.servers) || !slices.Equal(got.Searches, c.searches) ||
			told != c.told {
			t.Errorf("%.40q: %v, told %d times, %v", c.resolver, got, told, err)
		}
	}
	host.ClusterDNS = nil
	for _, c := range []struct {
		policy      corev1.DNSPolicy
		hostNetwork bool
		told        string
	}{
		{corev1.DNSClusterFirst, false, "MissingClusterDNS"}, {corev1.DNSClusterFirst, true, ""},
		{corev1.DNSClusterFirstWithHostNet, true, "MissingClusterDNS"}, {corev1.DNSDefault, false, ""},
	} {
		told := ""
		f := &SandboxFacts{Host: &host, Warn: func(reason, _ string) { told += reason },
			Pod:          &corev1.Pod{Spec: corev1.PodSpec{DNSPolicy: c.policy, HostNetwork: c.hostNetwork}},
			NodeResolver: func() ([]byte, error) { return []byte("nameserver 1\n"), nil }}
		got, err := f.resolver()
		if err != nil || !slices.Equal(got.Servers, []string{"1"}) || got.Searches != nil || told != c.told {
			t.Errorf("%s without a server of the cluster: %v, %v, told %q", c.policy, got, err, told)
		}
	}
	f := &SandboxFacts{Host: &host, Pod: &corev1.Pod{Spec: corev1.PodSpec{DNSPolicy: corev1.DNSDefault}},
		NodeResolver: func() ([]byte, error) {
			return []byte("options ndots:1 edns0\noptions ndots:2\n"), nil
		}}
	if got, err := f.resolver(); err != nil || !slices.Equal(got.Options, []string{"ndots:2", "edns0"}) {
		t.Errorf("%v, %v", got, err)
	}
}
