package main

import (
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/coordinator/rotation"
)

// Keys are seen and changed by who shows a certificate of system:masters, and by nobody
// who is of that group otherwise: by impersonation, or because a front proxy says so.
func TestWhoMaySeeKeys(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	client(t, coordinator(t, dir, port), dir, port)
	ca, err := keysOf(dir).CA()
	if err != nil {
		t.Fatal(err)
	}
	server := "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	as := func(group string) *rest.Config {
		data, err := ca.Kubeconfig(server, pki.Spec{User: "u", Groups: []string{group}, Lifetime: time.Hour}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		c, err := clientcmd.RESTConfigFromKubeConfig(data)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	proxy := rest.AnonymousClientConfig(as("x"))
	proxy.CertFile, proxy.KeyFile = keysOf(dir).Path("front-proxy-client.crt"), keysOf(dir).Path("front-proxy-client.key")
	for name, test := range map[string]struct {
		as     *rest.Config
		header http.Header
		want   int
	}{
		"masters": {as("system:masters"), nil, http.StatusOK},
		"admin":   {as(pki.AdminGroup), nil, http.StatusForbidden},
		"impersonated": {as(pki.AdminGroup),
			http.Header{"Impersonate-User": {"u"}, "Impersonate-Group": {"system:masters"}}, http.StatusForbidden},
		"in_anothers_name": {as("system:masters"),
			http.Header{"Impersonate-User": {"v"}, "Impersonate-Group": {"system:masters"}}, http.StatusForbidden},
		"proxied": {proxy,
			http.Header{"X-Remote-User": {"u"}, "X-Remote-Group": {"system:masters"}}, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := discovery.NewDiscoveryClientForConfig(test.as)
			if err != nil {
				t.Fatal(err)
			}
			ask := func(r *rest.Request) (code int) {
				for key, values := range test.header {
					r.SetHeader(key, values...)
				}
				r.Do(t.Context()).StatusCode(&code)
				return code
			}
			if code := ask(d.RESTClient().Get().AbsPath(rotation.Path)); code != test.want {
				t.Errorf("GET: %d", code)
			}
			want := test.want
			if want == http.StatusOK {
				want = http.StatusNotFound
			}
			body := []byte(`{"set":"none"}`)
			if code := ask(d.RESTClient().Put().AbsPath(rotation.Path).Body(body)); code != want {
				t.Errorf("PUT: %d", code)
			}
			// The header counts elsewhere: else the refusals show nothing.
			if code := ask(d.RESTClient().Get().AbsPath("/api/v1/secrets")); code != http.StatusOK {
				t.Errorf("secrets: %d", code)
			}
		})
	}
}
