package netconf

import "testing"

// FuzzParse: a plugin's standard input is taken with a pod network or refused.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"shoal","type":"shoal-cni","podCIDRs":["10.244.7.0/24"],"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":8080,"hostIP":"192.0.2.1"}]}}`))
	f.Add([]byte(`{"podCIDRs":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err == nil && (len(c.PodCIDRs) == 0 || !c.PodCIDRs[0].IsValid()) {
			t.Errorf("%q was taken as %+v", data, c)
		}
	})
}
