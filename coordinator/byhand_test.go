package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// The CAs that no rotation changes, of the front proxy and between the stores, change by
// hand as docs/operating.md says; certificates of the one before are good no more.
func TestChangeOtherCAsByHand(t *testing.T) {
	f, all := allJoined(t, "127.0.0.71", "127.0.0.72")
	a, b := all[0], all[1]
	f.followed(a)
	stolen := t.TempDir()
	for _, name := range []string{"front-proxy-client.crt", "front-proxy-client.key"} {
		if err := os.WriteFile(stolen+"/"+name, []byte(readFile(t, keysOf(a.dir).Path(name))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(at *one) error { // as anybody
		c, err := a.fresh(at)
		if err != nil {
			return err
		}
		c = rest.AnonymousClientConfig(c)
		c.CertFile, c.KeyFile = stolen+"/front-proxy-client.crt", stolen+"/front-proxy-client.key"
		c.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				r.Header.Set("X-Remote-User", "u")
				r.Header.Set("X-Remote-Group", "system:masters")
				return next.RoundTrip(r)
			})
		})
		client, err := kubernetes.NewForConfig(c)
		if err != nil {
			return err
		}
		_, err = client.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := ask(b); err != nil {
		t.Errorf("what is in wrong hands is not worth anything: the test shows nothing: %v", err)
	}
	before := readFile(t, keysOf(a.dir).Path("front-proxy-ca.crt"))
	cas := []string{"front-proxy-ca.crt", "front-proxy-ca.key", "etcd/ca.crt", "etcd/ca.key"}
	for _, o := range all {
		o.kill()
		for _, name := range append([]string{"etcd/peer.crt", "etcd/peer.key"}, cas...) {
			if err := os.Remove(keysOf(o.dir).Path(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	a.child = coordinator(t, a.dir, a.port, a.args...)
	for _, name := range cas {
		soon(t, name+" is made", func() error {
			_, err := os.Stat(keysOf(a.dir).Path(name))
			return err
		})
	}
	for _, name := range cas {
		made := []byte(readFile(t, keysOf(a.dir).Path(name)))
		if err := os.WriteFile(keysOf(b.dir).Path(name), made, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.start(b)
	a.c = clientAt(t, a.child, a.dir, a.ip, a.port)
	f.followed(a)
	f.writeThrough(a, b)
	for _, o := range all {
		if err := ask(o); err == nil {
			t.Errorf("what the CA before has signed is believed at %s", net.JoinHostPort(o.ip, fmt.Sprint(o.port)))
		}
	}
	soon(t, "aggregated API servers are told", func() error {
		m, err := b.c.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), "extension-apiserver-authentication",
			metav1.GetOptions{})
		if err == nil && m.Data["requestheader-client-ca-file"] == before {
			err = errors.New("it is the one before")
		}
		return err
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
