package config

// validateOverlay checks how pods of several networks reach each other.
func (c *Config) validateOverlay(bad func(field, format string, args ...any)) {
	// 1280 is the least of IPv6 (RFC 8200, section 5), 65535 the most of IP.
	if m := c.PodMTU; m != 0 && (m < 1280 || m > 65535) {
		bad("podMTU", "%d: 1280 to 65535; leave it out to have what fits", m)
	}
	if p := c.VXLANPort; p < 1 || p > 65535 {
		bad("vxlanPort", "%d is not a port", p)
	}
	if p := c.WireGuardPort; p < 1024 || p > 65535 { // who has it is not root
		bad("wireGuardPort", "%d: 1024 to 65535", p)
	}
	if c.WireGuardPort == c.VXLANPort || c.WireGuardPort == c.GossipPort {
		bad("wireGuardPort", "%d is that of the gossip or of VXLAN", c.WireGuardPort)
	}
	if f := c.HostFirewall; f != OpenFirewall && f != LeaveFirewall {
		bad("hostFirewall", "%q: use open or leave", f)
	}
	switch c.ReverseConnection {
	case ReverseAuto, ReverseAlways, ReverseNever:
	default:
		bad("reverseConnection", "%q: use auto, always or never", c.ReverseConnection)
	}
	if id := c.VXLANID; id < 1 || id >= 1<<24 { // RFC 7348, section 4: 24 bits
		bad("vxlanID", "%d: 1 to 16777215", id)
	}
}
