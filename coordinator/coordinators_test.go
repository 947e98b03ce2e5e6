package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	bootstrap "k8s.io/cluster-bootstrap/token/api"

	"github.com/shoal-project/shoal/coordinator/members"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// three are coordinators of one cluster, each a process with an address of its own.
type three struct {
	t    *testing.T
	all  map[string]*one
	peer int
}

type one struct {
	name, ip, dir string
	port          int
	args          []string
	*child
	c kubernetes.Interface
}

func newThree(t *testing.T) *three {
	return &three{t: t, all: map[string]*one{}, peer: freePort(t)}
}

func (f *three) machine(name, ip string) *one {
	o := &one{name: name, ip: ip, dir: f.t.TempDir(), port: freePort(f.t)}
	o.args = []string{"--bind-address", ip, "--peer-port", fmt.Sprint(f.peer), "--node-name", name, "--gossip-bind", ip,
		"--gossip-port", "0", "--config", o.dir + "/coordinator.yaml"}
	if err := os.WriteFile(o.dir+"/coordinator.yaml", []byte("logLevel: info\n"), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.all[name] = o
	return o
}

// start starts a coordinator and waits until it serves the API.
func (f *three) start(o *one) {
	f.t.Helper()
	o.child = coordinator(f.t, o.dir, o.port, o.args...)
	o.c = clientAt(f.t, o.child, o.dir, o.ip, o.port)
}

// token makes a join token on a coordinator, for so many machines.
func (f *three) token(o *one, uses string) string {
	f.t.Helper()
	const id, secret = "abcdef", "0123456789abcdef"
	secrets := o.c.CoreV1().Secrets(metav1.NamespaceSystem)
	secretOf := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: bootstrap.BootstrapTokenSecretPrefix + id},
		Type:       bootstrap.SecretTypeBootstrapToken,
		StringData: map[string]string{
			bootstrap.BootstrapTokenIDKey: id, bootstrap.BootstrapTokenSecretKey: secret,
			bootstrap.BootstrapTokenUsageAuthentication: "true", bootstrap.BootstrapTokenExtraGroupsKey: members.Group,
			"shoal-uses": uses,
		},
	}
	// A write that is on its way to a leader that goes may be made or not.
	soon(f.t, "a token is made", func() error {
		err := secrets.Delete(f.t.Context(), secretOf.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		_, err = secrets.Create(f.t.Context(), secretOf, metav1.CreateOptions{})
		return err
	})
	return id + "." + secret
}

// join runs the command by which a machine becomes a coordinator.
func (f *three) join(o, by *one, token string, replace bool) error {
	return f.joinAs(o, by, invitation{Token: token, Replace: replace})
}

func (f *three) joinAs(o, by *one, as invitation) error {
	ca, err := os.ReadFile(keysOf(by.dir).Path(pki.CAFile))
	if err != nil {
		f.t.Fatal(err)
	}
	as.Servers, as.CA = []string{net.JoinHostPort(by.ip, fmt.Sprint(by.port))}, ca
	in, err := json.Marshal(as)
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := command()
	cmd.SetIn(bytes.NewReader(in))
	cmd.SetArgs(append([]string{"join", "--data-dir", o.dir}, o.args...))
	return cmd.ExecuteContext(f.t.Context())
}

func keysOf(dir string) pki.Dir { return pki.Dir(dir + "/coordinator/pki") }

// run runs a command of the coordinator's on its machine.
func (o *one) run(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := command()
	cmd.SetOut(&out)
	cmd.SetArgs(append(args, append([]string{"--data-dir", o.dir, "--port", fmt.Sprint(o.port)}, o.args...)...))
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

func (f *three) showsAll(o *one, want ...string) {
	f.t.Helper()
	soon(f.t, "list of coordinators", func() error {
		out, err := o.run(f.t.Context(), "coordinators")
		if err != nil {
			return err
		}
		for _, w := range want {
			if !strings.Contains(strings.Join(strings.Fields(out), " "), w) {
				return fmt.Errorf("no %q in\n%s", w, out)
			}
		}
		return nil
	})
}

// leaderOf is who leads scheduler and controllers.
func leaderOf(ctx context.Context, c kubernetes.Interface) (string, error) {
	l, err := c.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, "shoal-coordinator", metav1.GetOptions{})
	if err != nil || l.Spec.HolderIdentity == nil {
		return "", err
	}
	return *l.Spec.HolderIdentity, nil
}

// Three coordinators join one after the other, serve one API, lose the one that leads
// without losing a write that was acknowledged, and take it back.
func TestThreeCoordinators(t *testing.T) {
	f := newThree(t)
	a, b, c := f.machine("a", "127.0.0.11"), f.machine("b", "127.0.0.12"), f.machine("c", "127.0.0.13")
	f.start(a)
	token := f.token(a, "2")
	for _, o := range []*one{b, c} {
		if err := f.join(o, a, token, false); err != nil {
			t.Fatal(err)
		}
		f.start(o)
	}
	if err := f.join(f.machine("d", "127.0.0.14"), a, token, false); err == nil || !strings.Contains(err.Error(), "as many machines as it is for") {
		t.Errorf("a fourth with a token for two: %v", err)
	}
	f.showsAll(b, "a https://127.0.0.11:", "b https://127.0.0.12:", "c https://127.0.0.13:", "One may fail")
	for _, file := range []string{"ca.key", "sa.key", "encryption.yaml"} {
		if one, other := readFile(t, keysOf(a.dir).Path(file)), readFile(t, keysOf(c.dir).Path(file)); one != other {
			t.Errorf("%s differs", file)
		}
	}
	f.writeThrough(a, b, c)

	// The one that leads controllers, and most likely the store, is killed.
	holder := ""
	soon(t, "somebody leads", func() (err error) {
		if holder, err = leaderOf(t.Context(), b.c); err == nil && holder == "" {
			err = fmt.Errorf("nobody")
		}
		return err
	})
	acked, stop := f.writeAll(b, c)
	a.kill()
	began := time.Now()
	soon(t, "another leads", func() error {
		now, err := leaderOf(t.Context(), b.c)
		if err == nil && now == holder {
			err = fmt.Errorf("still %s", now)
		}
		return err
	})
	t.Logf("another coordinator leads %s after the kill", time.Since(began).Round(100*time.Millisecond))
	stop()
	f.hasAll(c, acked)
	f.showsAll(c, "a https://127.0.0.11:"+fmt.Sprint(f.peer)+" follower no", "No further one may fail now")

	f.start(a)
	f.hasAll(a, acked)
	f.showsAll(a, "One may fail")

	// A disk is lost: the machine joins anew in its own place.
	c.kill()
	if err := os.RemoveAll(c.dir + "/coordinator"); err != nil {
		t.Fatal(err)
	}
	token = f.token(a, "1")
	if err := f.join(c, a, token, false); err == nil || !strings.Contains(err.Error(), "--replace") {
		t.Errorf("in the place of one that is gone, unasked: %v", err)
	}
	soon(t, "it is replaced", func() error { return f.join(c, a, token, true) })
	f.start(c)
	f.hasAll(c, acked)

	for _, gone := range []*one{c, b} {
		soon(t, "it is removed", func() error {
			_, err := a.run(t.Context(), "coordinators", "remove", gone.name)
			return err
		})
		if _, ended := gone.wait(time.Minute); !ended || !strings.Contains(gone.out.String(), "was removed from the cluster") {
			t.Errorf("%s does not end:\n%s", gone.name, gone.out)
		}
	}
	f.showsAll(a, "One coordinator")
	soon(t, "it writes alone", func() error {
		_, err := a.c.CoreV1().ConfigMaps("default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "alone-"}}, metav1.CreateOptions{})
		return err
	})
}

// Two coordinators and a witness: either of the two may die, and the other writes on.
// The witness has none of the cluster's keys, and serves no API.
func TestWitness(t *testing.T) {
	f := newThree(t)
	a, b, w := f.machine("a", "127.0.0.21"), f.machine("b", "127.0.0.22"), f.machine("w", "127.0.0.23")
	f.start(a)
	token := f.token(a, "3")
	if err := f.join(b, a, token, false); err != nil {
		t.Fatal(err)
	}
	f.start(b)
	if err := f.joinAs(w, b, invitation{Token: token, Witness: true}); err != nil {
		t.Fatal(err)
	}
	w.child = coordinator(t, w.dir, w.port, w.args...)
	soon(t, "it votes", func() error {
		if !strings.Contains(w.out.String(), "witness votes") {
			return errors.New(w.out.String())
		}
		return nil
	})
	f.showsAll(b, "w https://127.0.0.23:"+fmt.Sprint(f.peer)+" follower (witness) yes", "One may fail")
	if left, err := filepath.Glob(string(keysOf(w.dir)) + "/*"); err != nil || len(left) != 1 {
		t.Errorf("the witness has %v, %v", left, err)
	}
	if c, err := net.Dial("tcp", net.JoinHostPort(w.ip, fmt.Sprint(w.port))); err == nil {
		c.Close()
		t.Error("the witness serves an API")
	}
	acked, stop := f.writeAll(b)
	a.kill()
	began := time.Now()
	stop()
	t.Logf("written again %s after the kill", time.Since(began).Round(100*time.Millisecond))
	f.hasAll(b, acked)
	f.start(a)
	acked, stop = f.writeAll(a)
	b.kill()
	stop()
	f.hasAll(a, acked)
	f.restoreOn(a, b, w)
}

// restoreOn restores the cluster on one, while a witness runs and another coordinator is
// down: both join the restored one by themselves, and keep what they had.
func (f *three) restoreOn(a, b, w *one) {
	f.t.Helper()
	t := f.t
	early := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "early"}, StringData: map[string]string{"k": "early"}}
	soon(t, "a Secret is written", func() error {
		_, err := a.c.CoreV1().Secrets("default").Create(t.Context(), early, metav1.CreateOptions{})
		return unlessThere(err)
	})
	file := filepath.Join(t.TempDir(), "cluster.db")
	if out, err := a.run(t.Context(), "snapshot", "save", file); err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	late := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}
	soon(t, "a ConfigMap is written", func() error {
		_, err := a.c.CoreV1().ConfigMaps("default").Create(t.Context(), late, metav1.CreateOptions{})
		return unlessThere(err)
	})
	a.kill()
	_, err := a.run(t.Context(), "snapshot", "restore", file)
	if err == nil || !strings.Contains(err.Error(), "w (https://127.0.0.23:") || strings.Contains(err.Error(), "b (") {
		t.Errorf("restored under a witness that runs: %v", err)
	}
	out, err := a.run(t.Context(), "snapshot", "restore", "--force", file)
	if err != nil || !strings.Contains(out, "b (https://127.0.0.22:") ||
		!strings.Contains(out, "w (https://127.0.0.23:") {
		t.Fatalf("%s, %v", out, err)
	}
	f.start(a)
	b.child = coordinator(t, b.dir, b.port, b.args...)
	for _, o := range []*one{b, w} {
		if _, ended := o.wait(3 * time.Minute); !ended || !strings.Contains(o.out.String(), "restored from a snapshot on") {
			t.Fatalf("%s goes on:\n%s", o.name, o.out)
		}
	}
	f.showsAll(a, "b https://127.0.0.22:"+fmt.Sprint(f.peer)+" expected no",
		"w https://127.0.0.23:"+fmt.Sprint(f.peer)+" expected")
	w.child = coordinator(t, w.dir, w.port, w.args...) // as a unit is
	f.start(b)
	f.showsAll(b, "a https://127.0.0.21:", "b https://127.0.0.22:", "w https://127.0.0.23:", "(witness) yes",
		"One may fail")
	for _, o := range []*one{b, w} {
		kept, err := filepath.Glob(o.dir + "/coordinator/etcd.before-*/member/snap/db")
		if err != nil || len(kept) != 1 {
			t.Errorf("%s has kept %v, %v", o.name, kept, err)
		}
	}
	soon(t, "the Secret can be read", func() error {
		s, err := b.c.CoreV1().Secrets("default").Get(t.Context(), "early", metav1.GetOptions{})
		if err == nil && string(s.Data["k"]) != "early" {
			err = fmt.Errorf("it is %q", s.Data["k"])
		}
		return err
	})
	soon(t, "what came after the snapshot is gone", func() error {
		_, err := b.c.CoreV1().ConfigMaps("default").Get(t.Context(), "late", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there, or: %w", err)
	})
}

// unlessThere drops the error of a write that was made, though nobody was told so.
func unlessThere(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// writeThrough writes at one and reads at the others at once.
func (f *three) writeThrough(all ...*one) {
	f.t.Helper()
	for i, o := range all {
		name := "by-" + o.name
		_, err := o.c.CoreV1().Secrets("default").Create(f.t.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"k": name}},
			metav1.CreateOptions{})
		if err != nil {
			f.t.Fatal(err)
		}
		other := all[(i+1)%len(all)]
		s, err := other.c.CoreV1().Secrets("default").Get(f.t.Context(), name, metav1.GetOptions{})
		if err != nil || string(s.Data["k"]) != name {
			f.t.Errorf("written at %s, read at %s: %v", o.name, other.name, err)
		}
	}
}

// writeAll writes by several until stop, and returns what was acknowledged.
func (f *three) writeAll(by ...*one) (acked *sync.Map, stop func()) {
	acked = &sync.Map{}
	ctx, cancel := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	var n, last atomic.Int64
	for _, o := range by {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("write-%s-%d", o.name, i)
				_, err := o.c.CoreV1().ConfigMaps("default").Create(f.t.Context(),
					&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				if err == nil {
					acked.Store(name, true)
					n.Add(1)
					last.Store(time.Now().UnixNano())
				} else {
					f.t.Logf("not acknowledged: %s: %v", name, err)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	return acked, func() {
		before := n.Load()
		soon(f.t, "writes go on", func() error {
			if n.Load() < before+5 {
				return fmt.Errorf("%d more", n.Load()-before)
			}
			return nil
		})
		cancel()
		wg.Wait()
		f.t.Logf("%d writes were acknowledged", n.Load())
	}
}

func (f *three) hasAll(o *one, acked *sync.Map) {
	f.t.Helper()
	acked.Range(func(name, _ any) bool {
		_, err := o.c.CoreV1().ConfigMaps("default").Get(f.t.Context(), name.(string), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			f.t.Errorf("%s was acknowledged and is lost at %s", name, o.name)
		}
		return true
	})
}
