package config

import "testing"

func TestGatewayPorts(t *testing.T) {
	no := false
	for _, c := range []struct {
		g           Gateway
		http, https uint16
		ok, on      bool
	}{
		{Gateway{}, 80, 443, true, true},
		{Gateway{IngressHTTPPort: 8080, IngressHTTPSPort: -1}, 8080, 0, true, true},
		{Gateway{IngressHTTPPort: 70000}, 0, 443, false, true},
		{Gateway{IngressHTTPSPort: -2, Enabled: &no}, 80, 0, false, false},
	} {
		http, https := c.g.Ports()
		if err := c.g.Check(); (err == nil) != c.ok || c.g.On() != c.on {
			t.Errorf("%+v: %v", c.g, err)
		}
		if c.ok && (http != c.http || https != c.https) {
			t.Errorf("%+v: %d, %d", c.g, http, https)
		}
	}
}
