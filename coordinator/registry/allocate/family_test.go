package allocate

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// service reads "TYPE policy=P families=A,B ips=X,Y selector"; what is left out is
// unset, as a client leaves it.
func service(text string) *corev1.Service {
	s := &corev1.Service{}
	for i, word := range strings.Fields(text) {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "policy":
			policy := corev1.IPFamilyPolicy(value)
			s.Spec.IPFamilyPolicy = &policy
		case "families":
			for _, f := range strings.Split(value, ",") {
				s.Spec.IPFamilies = append(s.Spec.IPFamilies, corev1.IPFamily(f))
			}
		case "ips":
			s.Spec.ClusterIPs = strings.Split(value, ",")
			s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
		case "selector":
			s.Spec.Selector = map[string]string{"a": "b"}
		default:
			if i == 0 {
				s.Spec.Type = corev1.ServiceType(word)
			}
		}
	}
	return s
}

func familyFields(s *corev1.Service) string {
	policy := "unset"
	if s.Spec.IPFamilyPolicy != nil {
		policy = string(*s.Spec.IPFamilyPolicy)
	}
	return fmt.Sprintf("%s %v %v", policy, s.Spec.IPFamilies, s.Spec.ClusterIPs)
}

// The families of a Service, in clusters of one and of both (KEP-563).
func TestFamilies(t *testing.T) {
	v4 := []corev1.IPFamily{corev1.IPv4Protocol}
	both := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	const dual = "ClusterIP policy=PreferDualStack families=IPv4,IPv6 ips=10.0.0.1,fd00::1"
	for _, c := range []struct {
		service, old string
		configured   []corev1.IPFamily
		want         string // the fields, or what the error says
	}{
		{"ClusterIP", "", v4, "SingleStack [IPv4] []"},
		{"ClusterIP", "", both, "SingleStack [IPv4] []"},
		{"ClusterIP policy=PreferDualStack", "", v4, "PreferDualStack [IPv4] []"},
		{"ClusterIP policy=PreferDualStack", "", both, "PreferDualStack [IPv4 IPv6] []"},
		{"ClusterIP policy=RequireDualStack families=IPv6", "", both, "RequireDualStack [IPv6 IPv4] []"},
		{"ClusterIP policy=RequireDualStack", "", v4, "this cluster is not configured for dual-stack services"},
		{"ClusterIP families=IPv6", "", v4, "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster"},
		{"ClusterIP ips=fd00::7", "", both, "SingleStack [IPv6] [fd00::7]"},
		{"ClusterIP ips=fd00::7", "", v4, "IPv6 is not configured on this cluster"},
		{"ClusterIP families=IPv4 ips=fd00::7", "", both, "expected an IPv4 value as indicated by `ipFamilies[0]`"},
		{"ClusterIP policy=SingleStack families=IPv4,IPv6", "", both, "when multiple IP families are specified"},
		{"ClusterIP ips=10.0.0.1,10.0.0.2", "", both, "may specify no more than one IP for each IP family"},
		{"ExternalName", "", both, "unset [] []"},
		// Nobody but the user knows the endpoints of a headless one without a selector.
		{"ClusterIP ips=None", "", v4, "RequireDualStack [IPv4 IPv6] [None]"},
		{"ClusterIP ips=None selector", "", v4, "SingleStack [IPv4] [None]"},
		// An update that leaves out what was given keeps it; the second goes by policy.
		{"ClusterIP policy=PreferDualStack", dual, both, "PreferDualStack [IPv4 IPv6] [10.0.0.1 fd00::1]"},
		{strings.Replace(dual, "Prefer", "Require", 1), dual, both, "RequireDualStack [IPv4 IPv6] [10.0.0.1 fd00::1]"},
		{strings.Replace(dual, "PreferDualStack", "SingleStack", 1), dual, both, "SingleStack [IPv4] [10.0.0.1]"},
		{"ClusterIP policy=PreferDualStack families=IPv4,IPv6 ips=10.0.0.1", dual, both, "must be 'SingleStack' to release the secondary cluster IP"},
		{dual, dual, v4, "PreferDualStack [IPv4 IPv6] [10.0.0.1 fd00::1]"},
	} {
		s := service(c.service)
		var old *corev1.Service
		if c.old != "" {
			old = service(c.old)
		}
		carryOver(s, old)
		got := ""
		if err := chooseFamilies(s, old, c.configured); err != nil {
			got = err.Error()
		} else {
			got = familyFields(s)
		}
		if failed := strings.Contains(got, "is invalid"); got != c.want && !(failed && strings.Contains(got, c.want)) {
			t.Errorf("%s, was %q, in a cluster of %v: %s, want %s", c.service, c.old, c.configured, got, c.want)
		}
	}
}
