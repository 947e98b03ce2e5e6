package config

import (
	"strings"
	"testing"
)

// TestPodRanges: several of a family may be there, each by itself.
func TestPodRanges(t *testing.T) {
	for text, want := range map[string]int{
		"10.244.0.0/16": 1, "10.244.0.0/16,10.245.0.0/16, fd00::/56": 3, "10.244.0.0/16,10.244.1.0/24": 0,
		"fd00::/56,fd00::/64": 0, "10.244.0.0/16,": 0,
	} {
		c := Default()
		c.ClusterCIDR = text
		if got, err := c.PodRanges(); len(got) != want || (err == nil) != (want > 0) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

// TestNodeCIDRMaskSizes: each Node's part is one of the range's, of which there are not too
// many.
func TestNodeCIDRMaskSizes(t *testing.T) {
	for _, x := range []struct {
		cluster    string
		four, six  int
		complaints string
	}{
		{"10.244.0.0/16", 24, 64, ""},
		{"10.244.0.0/16", 20, 64, ""},
		{"10.244.0.0/16", 16, 64, ""},
		{"10.244.0.0/16", 15, 64, "nodeCIDRMaskSizeIPv4"},
		{"10.244.0.0/16", 31, 64, "nodeCIDRMaskSizeIPv4"},
		{"10.0.0.0/8", 25, 64, "nodeCIDRMaskSizeIPv4"},
		{"10.244.0.0/16", 24, 1, ""}, // there is no such range
		{"10.244.0.0/16,fd00::/48", 24, 64, ""},
		{"10.244.0.0/16,fd00::/48", 24, 65, "nodeCIDRMaskSizeIPv6"},
		{"10.244.0.0/16,fd00::/108", 24, 120, ""},
		{"10.244.0.0/16,fd00::/108", 24, 64, "nodeCIDRMaskSizeIPv6"},
	} {
		c := Default()
		c.ClusterCIDR, c.NodeCIDRMaskSizeIPv4, c.NodeCIDRMaskSizeIPv6 = x.cluster, x.four, x.six
		err := c.Validate()
		if (err == nil) != (x.complaints == "") || err != nil && !strings.Contains(err.Error(), x.complaints) {
			t.Errorf("%s in parts of /%d and /%d: %v", x.cluster, x.four, x.six, err)
		}
	}
}
