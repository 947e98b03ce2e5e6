package process

import (
	"cmp"
	"os"
	"strings"
)

// KeepOffProxy has requests to the hosts go straight to them where the environment names an
// HTTP proxy (HTTPS_PROXY, HTTP_PROXY): domains with a dot before them, addresses, ranges. No
// proxy reaches what is within a cluster. It is for the beginning of a process: the
// environment is read once, at the first request.
func KeepOffProxy(hosts ...string) {
	proxied := false
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"} {
		proxied = proxied || os.Getenv(name) != ""
	}
	if !proxied {
		return
	}
	if others := cmp.Or(os.Getenv("NO_PROXY"), os.Getenv("no_proxy")); others != "" {
		hosts = append([]string{others}, hosts...)
	}
	os.Setenv("NO_PROXY", strings.Join(hosts, ",")) // fails for no name but one with a NUL or a "="
}
