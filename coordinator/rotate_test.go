package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/coordinator/pki"
)

// allJoined are three coordinators of one cluster.
func allJoined(t *testing.T, ips ...string) (f *three, all []*one) {
	t.Helper()
	f = newThree(t)
	for i, ip := range ips {
		o := f.machine(string(rune('a'+i)), ip)
		if i > 0 {
			if err := f.join(o, all[0], f.token(all[0], "1"), false); err != nil {
				t.Fatal(err)
			}
		}
		f.start(o)
		all = append(all, o)
	}
	return f, all
}

// traffic asks coordinators without a pause, each time as a client that comes anew: with
// a certificate made just now, and with a token of one at another.
type traffic struct {
	t    *testing.T
	all  []*one
	down atomic.Pointer[one] // is not asked

	requests, failed atomic.Int64
	stop             func()
}

func (f *three) traffic(all []*one) *traffic {
	w := &traffic{t: f.t, all: all}
	ctx, cancel := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			for ctx.Err() == nil {
				w.once(ctx, all[i], all[(i+1)%len(all)])
			}
		})
	}
	w.stop = func() {
		cancel()
		wg.Wait()
	}
	f.t.Cleanup(w.stop)
	return w
}

// fresh is the configuration of a client with a certificate made now on a machine.
func (o *one) fresh(at *one) (*rest.Config, error) {
	ca, err := keysOf(o.dir).CA()
	if err != nil {
		return nil, err
	}
	data, err := ca.Kubeconfig("https://"+net.JoinHostPort(at.ip, fmt.Sprint(at.port)),
		pki.Spec{User: "traffic", Groups: []string{"system:masters"}, Lifetime: time.Hour}, time.Now())
	if err != nil {
		return nil, err
	}
	return clientcmd.RESTConfigFromKubeConfig(data)
}

func (w *traffic) once(ctx context.Context, one, other *one) {
	if w.down.Load() == one || w.down.Load() == other {
		time.Sleep(5 * time.Millisecond)
		return
	}
	err := w.ask(ctx, one, other)
	if ctx.Err() != nil || w.down.Load() == one || w.down.Load() == other {
		return
	}
	w.requests.Add(3)
	if err != nil {
		w.failed.Add(1)
		w.t.Errorf("%s, then %s: %v", one.name, other.name, err)
	}
}

func (w *traffic) ask(ctx context.Context, one, other *one) error {
	c, err := one.fresh(other)
	if err != nil {
		return err
	}
	client, done, err := newcomer(c)
	if err != nil {
		return err
	}
	defer done()
	if _, err := client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{}); err != nil {
		return fmt.Errorf("with a certificate: %w", err)
	}
	token, err := client.CoreV1().ServiceAccounts("default").CreateToken(ctx, "default",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ask for a token: %w", err)
	}
	return whoIs(ctx, c, one, token.Status.Token)
}

// newcomer is a client that shares no connection with others.
func newcomer(c *rest.Config) (kubernetes.Interface, func(), error) {
	verify, err := rest.TLSConfigFor(c)
	if err != nil {
		return nil, nil, err
	}
	t := &http.Transport{TLSClientConfig: verify, ForceAttemptHTTP2: true}
	c = rest.CopyConfig(c)
	c.TLSClientConfig, c.Transport = rest.TLSClientConfig{}, t
	client, err := kubernetes.NewForConfig(c)
	return client, t.CloseIdleConnections, err
}

// whoIs uses a token at a coordinator.
func whoIs(ctx context.Context, c *rest.Config, at *one, token string) error {
	c = rest.AnonymousClientConfig(c)
	c.Host, c.BearerToken = "https://"+net.JoinHostPort(at.ip, fmt.Sprint(at.port)), token
	client, done, err := newcomer(c)
	if err != nil {
		return err
	}
	defer done()
	r, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err == nil && r.Status.UserInfo.Username != "system:serviceaccount:default:default" {
		err = fmt.Errorf("it is %q", r.Status.UserInfo.Username)
	}
	if err != nil {
		return fmt.Errorf("with a token: %w", err)
	}
	return nil
}

// more waits for that many more requests.
func (w *traffic) more(n int64) {
	w.t.Helper()
	want := w.requests.Load() + n
	soon(w.t, "traffic goes on", func() error {
		if got := w.requests.Load(); got < want {
			return fmt.Errorf("%d of %d", got, want)
		}
		return nil
	})
}

func (w *traffic) kill(o *one) {
	w.down.Store(o)
	time.Sleep(50 * time.Millisecond)
	o.kill()
}

func (w *traffic) start(f *three, o *one) {
	f.start(o)
	w.down.Store(nil)
}

// keys runs `shoal-coordinator keys …` on a machine.
func (o *one) keys(t *testing.T, args ...string) string {
	t.Helper()
	out, err := o.run(t.Context(), append([]string{"keys"}, args...)...)
	if err != nil {
		t.Fatalf("keys %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	t.Logf("keys %s:\n%s", strings.Join(args, " "), out)
	return out
}

func (f *three) followed(by *one) {
	f.t.Helper()
	soon(f.t, "all have followed", func() error {
		out, err := by.run(f.t.Context(), "keys", "status")
		if err == nil && strings.Contains(out, "behind") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
}

func (f *three) sameFiles(all []*one, names ...string) {
	f.t.Helper()
	for _, name := range names {
		for _, o := range all[1:] {
			if readFile(f.t, keysOf(o.dir).Path(name)) != readFile(f.t, keysOf(all[0].dir).Path(name)) {
				f.t.Errorf("%s differs at %s", name, o.name)
			}
		}
	}
}

func shownKeys(t *testing.T, o *one) int {
	t.Helper()
	data, err := o.c.Discovery().RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var set struct{ Keys []any }
	if err := json.Unmarshal(data, &set); err != nil {
		t.Fatal(err)
	}
	return len(set.Keys)
}

// The key of service account tokens changes on three coordinators while tokens of each
// are used at another; one that was down meanwhile has the new one when it is back.
func TestRotateServiceAccountKey(t *testing.T) {
	f, all := allJoined(t, "127.0.0.31", "127.0.0.32", "127.0.0.33")
	a, b, c := all[0], all[1], all[2]
	f.followed(a)
	w := f.traffic(all)
	w.more(30)
	old, err := a.c.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fixed := func() (token string) {
		t.Helper()
		soon(t, "the token of a Secret", func() error {
			s, err := a.c.CoreV1().Secrets("default").Get(t.Context(), "fixed", metav1.GetOptions{})
			if err == nil && len(s.Data["token"]) == 0 {
				err = fmt.Errorf("none")
			}
			if err == nil {
				token = string(s.Data["token"])
			}
			return err
		})
		return token
	}
	if _, err := a.c.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "fixed", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	first := fixed()
	before := readFile(t, keysOf(a.dir).Path("sa.key"))
	b.keys(t, "rotate", "serviceaccount")
	w.more(30)
	f.sameFiles(all, "sa.key", "sa.pub")
	if readFile(t, keysOf(a.dir).Path("sa.key")) == before {
		t.Error("the key is the old one")
	}
	at, err := a.fresh(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if n := shownKeys(t, o); n != 2 {
			t.Errorf("%s shows %d keys", o.name, n)
		}
		if err := whoIs(t.Context(), at, o, old.Status.Token); err != nil {
			t.Errorf("a token of the old key at %s: %v", o.name, err)
		}
	}
	if fixed() != first {
		t.Error("the token of a Secret changed before its key was dropped")
	}
	w.kill(c)
	// What it uses is known: one step may be taken without it, which it is waited for.
	if out, err := a.run(t.Context(), "keys", "drop", "serviceaccount"); err == nil || !strings.Contains(err.Error(), "not all coordinators have followed yet") {
		t.Fatalf("%v\n%s", err, out)
	}
	w.more(10)
	w.start(f, c)
	f.followed(b)
	w.more(30)
	f.sameFiles(all, "sa.key", "sa.pub")
	for _, o := range all {
		if n := shownKeys(t, o); n != 1 {
			t.Errorf("%s shows %d keys", o.name, n)
		}
		soon(t, "a token of the old key is refused at "+o.name, func() error {
			if err := whoIs(t.Context(), at, o, old.Status.Token); !apierrors.IsUnauthorized(unwrapAll(err)) {
				return fmt.Errorf("%v", err)
			}
			return nil
		})
	}
	soon(t, "the token of a Secret is made anew", func() error {
		if fixed() == first {
			return fmt.Errorf("it is the old one")
		}
		return nil
	})
	if err := whoIs(t.Context(), at, b, fixed()); err != nil {
		t.Error(err)
	}
	w.stop()
	t.Logf("%d requests, %d failed", w.requests.Load(), w.failed.Load())
}

func unwrapAll(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok || u.Unwrap() == nil {
			return err
		}
		err = u.Unwrap()
	}
}

// The cluster's CA changes on three coordinators without a failed request, one of them
// down while the new one begins to sign.
func TestRotateCA(t *testing.T) {
	f, all := allJoined(t, "127.0.0.41", "127.0.0.42", "127.0.0.43")
	a, b, c := all[0], all[1], all[2]
	f.followed(a)
	w := f.traffic(all)
	w.more(30)
	oldCA := readFile(t, keysOf(a.dir).Path(pki.CAFile))
	asBefore, err := a.fresh(b)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := a.run(t.Context(), "keys", "sign", "ca"); err == nil || !strings.Contains(err.Error(), "there is none") {
		t.Errorf("sign before there is a new key: %v", err)
	}
	w.kill(c)
	for _, step := range []string{"rotate", "sign"} {
		if out, err := a.run(t.Context(), "keys", step, "ca", "--force"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	w.more(10)
	w.start(f, c)
	f.followed(b)
	w.more(30)
	f.sameFiles(all, pki.CAFile, "ca.key", "ca-old.key")
	both := readFile(t, keysOf(c.dir).Path(pki.CAFile))
	if strings.Count(both, "BEGIN CERTIFICATE") != 2 || !strings.HasSuffix(both, oldCA) {
		t.Errorf("trusted: %s", both)
	}
	f.publishes(both)
	for _, o := range all {
		f.servesFor(o, both[:len(both)-len(oldCA)])
	}

	b.keys(t, "sign", "ca") // nothing more to do
	c.keys(t, "drop", "ca")
	w.more(60)
	f.sameFiles(all, pki.CAFile, "ca.key")
	only := readFile(t, keysOf(a.dir).Path(pki.CAFile))
	if only+oldCA != both {
		t.Errorf("trusted: %s", only)
	}
	f.publishes(only)
	asBefore.CAData = []byte(only)
	for _, o := range all {
		asBefore.Host = "https://" + net.JoinHostPort(o.ip, fmt.Sprint(o.port))
		client, err := kubernetes.NewForConfig(asBefore)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			t.Errorf("a certificate of the old CA at %s: %v", o.name, err)
		}
	}
	w.stop()
	t.Logf("%d requests, %d failed", w.requests.Load(), w.failed.Load())
}

// publishes waits until pods and aggregated API servers are given a bundle.
func (f *three) publishes(bundle string) {
	f.t.Helper()
	for name, key := range map[[2]string]string{
		{"default", "kube-root-ca.crt"}:                       "ca.crt",
		{"kube-system", "extension-apiserver-authentication"}: "client-ca-file",
	} {
		soon(f.t, name[1], func() error {
			c, err := f.all["a"].fresh(f.all["b"])
			if err != nil {
				return err
			}
			client, err := kubernetes.NewForConfig(c)
			if err != nil {
				return err
			}
			m, err := client.CoreV1().ConfigMaps(name[0]).Get(f.t.Context(), name[1], metav1.GetOptions{})
			if err == nil && m.Data[key] != bundle {
				err = fmt.Errorf("it has %s", m.Data[key])
			}
			return err
		})
	}
}

// servesFor waits until a coordinator shows a certificate that a CA alone vouches for.
func (f *three) servesFor(o *one, ca string) {
	f.t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(ca))
	t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}
	soon(f.t, o.name+" shows a certificate of the new CA", func() error {
		r, err := (&http.Client{Transport: t}).Get("https://" + net.JoinHostPort(o.ip, fmt.Sprint(o.port)) + "/livez")
		if err == nil {
			_ = r.Body.Close()
		}
		return err
	})
}

// Keys of the store and of the gossip change on three coordinators.
func TestRotateSharedKeys(t *testing.T) {
	f, all := allJoined(t, "127.0.0.51", "127.0.0.52", "127.0.0.53")
	a, b, c := all[0], all[1], all[2]
	f.followed(a)
	for i := range 50 {
		_, err := a.c.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", i)}, StringData: map[string]string{"k": "v"},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	w := f.traffic(all)
	w.more(10)
	old := readFile(t, keysOf(a.dir).Path("encryption.yaml"))
	if out, err := b.run(t.Context(), "secrets", "rotate"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f.sameFiles(all, "encryption.yaml")
	if now := readFile(t, keysOf(a.dir).Path("encryption.yaml")); now == old || strings.Count(now, "secret:") != 1 {
		t.Errorf("keys: %s", bytes.ReplaceAll([]byte(now), []byte("secret:"), []byte("…")))
	}
	w.kill(c)
	if out, err := a.run(t.Context(), "secrets", "rotate"); err == nil {
		t.Errorf("rotated without one that is down, which could read nothing then: %s", out)
	}
	w.start(f, c)
	f.followed(a)
	if out, err := c.run(t.Context(), "secrets", "rotate"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f.sameFiles(all, "encryption.yaml")
	for _, o := range all {
		s, err := o.c.CoreV1().Secrets("default").Get(t.Context(), "s7", metav1.GetOptions{})
		if err != nil || string(s.Data["k"]) != "v" {
			t.Errorf("at %s: %v", o.name, err)
		}
	}
	gossip := readFile(t, keysOf(a.dir).Path(pki.GossipKeyFile))
	if out, err := b.run(t.Context(), "gossip", "rotate"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f.sameFiles(all, pki.GossipKeyFile)
	if now := readFile(t, keysOf(a.dir).Path(pki.GossipKeyFile)); now == gossip || strings.Count(now, "\n") != 1 {
		t.Errorf("%d lines", strings.Count(now, "\n"))
	}
	w.stop()
	t.Logf("%d requests, %d failed", w.requests.Load(), w.failed.Load())
}

// Power cuts of all coordinators between the steps, and just after one was begun, leave a
// cluster that serves and goes on.
func TestRotationOutlivesPowerCuts(t *testing.T) {
	f, all := allJoined(t, "127.0.0.61", "127.0.0.62", "127.0.0.63")
	a, b, c := all[0], all[1], all[2]
	f.followed(a)
	cut := func() {
		t.Helper()
		for _, o := range all {
			o.kill()
		}
		for _, o := range all {
			o.child = coordinator(t, o.dir, o.port, o.args...)
		}
		for _, o := range all {
			o.c = clientAt(t, o.child, o.dir, o.ip, o.port)
		}
		f.followed(b)
	}
	a.keys(t, "rotate", "ca")
	cut()
	begun := make(chan error, 1)
	go func() {
		_, err := b.run(t.Context(), "keys", "sign", "ca")
		begun <- err
	}()
	soon(t, "the step is in the store", func() error {
		if !strings.Contains(b.out.String(), "step=signing") && !strings.Contains(a.out.String(), "step=signing") &&
			!strings.Contains(c.out.String(), "step=signing") {
			return fmt.Errorf("nobody has taken it over")
		}
		return nil
	})
	cut()
	<-begun // it may have been told of, or not
	c.keys(t, "sign", "ca")
	cut()
	a.keys(t, "drop", "ca")
	f.followed(c)
	f.sameFiles(all, pki.CAFile, "ca.key")
	if n := strings.Count(readFile(t, keysOf(b.dir).Path(pki.CAFile)), "BEGIN CERTIFICATE"); n != 1 {
		t.Errorf("%d CAs are left", n)
	}
	f.writeThrough(a, b, c)
}
