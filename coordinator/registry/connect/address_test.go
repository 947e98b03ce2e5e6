package connect

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shoal-project/shoal/coordinator/kubelet"
	"github.com/shoal-project/shoal/coordinator/pki"
)

func TestReachable(t *testing.T) {
	for ip, want := range map[string]bool{
		"10.244.1.2": true, "203.0.113.1": true, "2001:db8::1": true, "fd00::1": true,
		"127.0.0.1": false, "::1": false, "0.0.0.0": false, "::": false, "169.254.169.254": false, "fe80::1": false,
		"224.0.0.1": false, "ff02::1": false, "255.255.255.255": false,
		"::ffff:127.0.0.1": false, "::ffff:0.0.0.0": false, "::ffff:169.254.1.1": false, "": false, "localhost": false,
	} {
		if got := reachable(ip); got != want {
			t.Errorf("%q: got %v", ip, got)
		}
	}
}

// A node's name is resolved, and what it has come to is looked at once more when
// it is dialed.
func TestNamesOfTheServersOwnMachine(t *testing.T) {
	if err := mayProxyTo(t.Context(), "localhost"); !errors.Is(err, errNotAllowed) {
		t.Errorf("check: got %v", err)
	}
	if err := mayProxyTo(t.Context(), "127.0.0.1"); !errors.Is(err, errNotAllowed) {
		t.Errorf("check: got %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	dir := pki.Dir(t.TempDir())
	if err := dir.Ensure(pki.Cluster{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	transports, err := kubelet.New(kubelet.Config{CertFile: dir.Path("apiserver-kubelet-client.crt"),
		KeyFile: dir.Path("apiserver-kubelet-client.key"), Reverse: &kubelet.Reverse{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"localhost", "127.0.0.1"} {
		for name, rt := range map[string]http.RoundTripper{"pods and services": plain,
			"agents": guardTransport(&http.Transport{}), "agents by certificates": guardTransport(transports.To("n1"))} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
				"http://"+net.JoinHostPort(host, port), nil)
			if err != nil {
				t.Fatal(err)
			}
			if r, err := rt.RoundTrip(req); !errors.Is(err, errNotAllowed) {
				if err == nil {
					r.Body.Close()
				}
				t.Errorf("%s: dial %s: got %v", name, host, err)
			}
		}
	}
}

// TestEntryThroughNodeProxy: the right to read nodes/proxy enters no container,
// whatever begins it: the agent sees the API server's own rights.
func TestEntryThroughNodeProxy(t *testing.T) {
	rights := map[string]string{"reader": "get", "updater": "update", "writer": "create"}
	n := nodeProxy{
		kubelets{
			authorizer: authorizer.AuthorizerFunc(
				func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
					if a.GetResource() == "nodes" && a.GetSubresource() == "proxy" && a.GetName() == "n1" &&
						rights[a.GetUser().GetName()] == a.GetVerb() {
						return authorizer.DecisionAllow, "", nil
					}
					return authorizer.DecisionNoOpinion, "", nil
				})}}
	for _, c := range []struct {
		user, verb, path, upgrade string
		ok                        bool
	}{
		{"reader", "get", "/pods", "", true},
		{"reader", "get", "/logs/exec", "", true},
		{"reader", "get", "/exec/ns/p/c", "websocket", false},
		{"reader", "get", "//exec/ns/p/c", "websocket", false},
		{"reader", "get", "/anything", "websocket", false},
		{"updater", "update", "/exec/ns/p/c", "SPDY/3.1", false},
		{"reader", "get", "/portForward/ns/p", "", false},
		{"reader", "get", "exec/ns/p/c", "", false},
		{"reader", "get", "/pods/../run/ns/p/c", "", false},
		{"writer", "get", "/exec/ns/p/c", "websocket", true},
		{"writer", "create", "/exec/ns/p/c", "SPDY/3.1", true},
	} {
		ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: c.user})
		ctx = request.WithRequestInfo(ctx,
			&request.RequestInfo{IsResourceRequest: true, Verb: c.verb,
				APIVersion: "v1", Resource: "nodes", Subresource: "proxy", Name: "n1"})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://api", nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.upgrade != "" {
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", c.upgrade)
		}
		err = n.check(req, &url.URL{Path: c.path})
		if (err == nil) != c.ok || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s of %s as %s: %v", c.verb, c.path, c.user, err)
		}
	}
}
