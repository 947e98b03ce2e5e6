package networking

import (
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
)

// KEP-1880: the messages are v1.36's.
func TestValidateCIDRs(t *testing.T) {
	for _, c := range []struct {
		now, was []string
		want     string // "" is valid
	}{
		{now: []string{"10.0.0.0/16", "fd00::/112"}},
		{want: "spec.cidrs: Required value: at least one CIDR required"},
		{now: []string{"10.0.0.0/16", "10.1.0.0/16", "fd00::/112"}, want: "may only hold up to 2 values"},
		{now: []string{"10.0.0.0/16", "10.1.0.0/16"}, want: "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"},
		{now: []string{"10.0.0.0"}, want: `spec.cidrs[0]: Invalid value: "10.0.0.0": must be a valid CIDR value`},
		{now: []string{"10.0.0.0/16"}, was: []string{"10.0.0.0/16"}},
		{now: []string{"10.0.0.0/16", "fd00::/112"}, was: []string{"10.0.0.0/16"}},
		{now: []string{"10.1.0.0/16"}, was: []string{"10.0.0.0/16"}, want: "spec.cidrs[0]: Invalid value: \"10.1.0.0/16\": field is immutable"},
		{now: []string{"10.0.0.0/16"}, was: []string{"10.0.0.0/16", "fd00::/112"}, want: "field is immutable"},
	} {
		errs := validateCIDRs(c.now)
		if c.was != nil {
			errs = validateCIDRsUpdate(c.now, c.was)
		}
		if c.want == "" && len(errs) > 0 || c.want != "" && !strings.Contains(errs.ToAggregate().Error(), c.want) {
			t.Errorf("%v after %v: %v, want %q", c.now, c.was, errs, c.want)
		}
	}
}

func TestValidateAddress(t *testing.T) {
	for name, want := range map[string]string{
		"192.0.2.1": "", "fd00::1": "", "fd00:0::1": `must be in canonical form ("fd00::1")`, "x": "must be a valid IP address",
	} {
		if got := strings.Join(isAddress(name, false), ","); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for want, ref := range map[string]*networkingv1.ParentReference{
		"spec.parentRef: Required value":                 {},
		"spec.parentRef.resource: Required value":        {Name: "x"},
		"spec.parentRef.name: Required value":            {Resource: "services"},
		"spec.parentRef.group: Invalid value: \"A\"":     {Group: "A", Resource: "services", Name: "x"},
		"spec.parentRef.namespace: Invalid value: \"/\"": {Resource: "services", Name: "x", Namespace: "/"},
	} {
		if want == "spec.parentRef: Required value" {
			ref = nil
		}
		if errs := validateParent(ref); len(errs) == 0 || !strings.HasPrefix(errs[0].Error(), want) {
			t.Errorf("%+v: %v, want %q", ref, errs, want)
		}
	}
	ok := &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "web"}
	if errs := validateParent(ok); len(errs) > 0 || parentCell(ok) != "services/default/web" || parentCell(nil) != "<none>" {
		t.Errorf("%v %s", errs, parentCell(ok))
	}
}
