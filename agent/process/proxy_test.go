package process

import (
	"net/http"
	"net/url"
	"os"
	"testing"
)

func TestKeepOffProxy(t *testing.T) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"} {
		t.Setenv(name, "")
	}
	KeepOffProxy(".svc")
	if got := os.Getenv("NO_PROXY"); got != "" {
		t.Errorf("without a proxy NO_PROXY is %q", got)
	}
	t.Setenv("https_proxy", "http://proxy.example:3128")
	t.Setenv("no_proxy", "example.org")
	KeepOffProxy("10.96.0.0/16,fd00::/112", ".svc", ".cluster.local")
	// The environment is read once in a process: here for the first time.
	for host, proxied := range map[string]bool{
		"registry.example": true, "example.org": false, "10.96.3.4": false, "[fd00::9]": false, "10.97.0.1": true,
		"web.default.svc": false, "web.default.svc.cluster.local": false,
	} {
		proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "https", Host: host + ":443"}})
		if err != nil || (proxy != nil) != proxied {
			t.Errorf("%s: asks %v, %v", host, proxy, err)
		}
	}
}
