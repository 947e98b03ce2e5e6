package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// certLife is how long certificates live in the scenario rotation. Nodes ask for their
// next one when 70 to 90 % of it are over, coordinators make theirs after two thirds.
const certLife = 2 * time.Minute

// certFiles are what clients show, by the names of files in the product's directory.
var certFiles = []string{
	"coordinator/pki/apiserver-kubelet-client.crt", "coordinator/pki/front-proxy-client.crt", "agent/kubelet-client.pem",
}

// certPorts are where certificates are shown: API, kubelet, peers of the store.
var certPorts = []string{"6443", "10250", "2380"}

// rotation watches three machines whose certificates live for minutes: a coordinator and
// a node on each.
type rotation struct {
	cluster
	*rig
	asking, streaming []kubernetes.Interface // of the coordinators on the machines

	mu       sync.Mutex
	seen     map[string]map[[sha256.Size]byte]bool // certificates, by machine and file or port
	asked    map[string]int                        // requests, by kind
	failures []string
}

// runRotation has all certificates of three coordinators and nodes live for two minutes,
// and looks whether a request fails, a watch ends or a process restarts by it.
func runRotation(ctx context.Context, r *rig) (err error) {
	c, remove, err := r.machines(ctx, "second", "third")
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil {
		return err
	}
	for _, m := range c.all() {
		images := filepath.Join(m.dir, "var/lib/shoal/images")
		if err := errors.Join(r.install(ctx, m.root), r.images(images)); err != nil {
			return err
		}
	}
	t := &rotation{cluster: c, rig: r, seen: map[string]map[[sha256.Size]byte]bool{}, asked: map[string]int{}}
	defer r.showNodes(c)
	if !t.setUp(ctx) {
		return nil
	}
	if err := t.connect(ctx); err != nil {
		return err
	}
	before, err := t.processes(ctx)
	if err != nil {
		return err
	}
	t.soak(ctx)
	r.step(ctx, fmt.Sprintf("each certificate was followed by %d others", r.rotations),
		func(context.Context) (string, error) { return t.counted() })
	r.step(ctx, "no request failed and no stream ended", func(context.Context) (string, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if n := len(t.failures); n > 0 {
			return fmt.Sprint(t.asked), fmt.Errorf("%d failures: %s", n, strings.Join(t.failures[:min(n, 10)], "; "))
		}
		return strings.Trim(fmt.Sprint(t.asked), "map[]"), nil
	})
	r.step(ctx, "every process is the one of before", func(ctx context.Context) (string, error) {
		after, err := t.processes(ctx)
		if err == nil && after != before {
			err = fmt.Errorf("before: %s; after: %s", before, after)
		}
		return "", err
	})
	return nil
}

func (t *rotation) setUp(ctx context.Context) bool {
	live := fmt.Sprintf("printf 'clusterSigningDuration: %s\\n' >>/etc/shoal/coordinator.yaml\n", certLife)
	ok := t.boots(ctx, t.cluster) && t.step(ctx, "certificates shall live for "+certLife.String(),
		func(ctx context.Context) (string, error) {
			return "", each(ctx, t.all(), func(ctx context.Context, m *container) error {
				_, err := m.sh(ctx, smallDisk+live)
				return err
			})
		}) && t.script(ctx, t.first, "the first machine has coordinator and agent", services)
	for _, m := range t.nodes {
		ok = ok && t.becomes(ctx, t.first, m, "coordinator") && t.prepared(ctx, t.first, m, asAdmin)
	}
	for _, m := range t.all() {
		name := "on-" + nodeName(m)
		ok = ok && t.script(ctx, t.first, "a pod runs on "+nodeName(m),
			apply(pod(name, 0, "  nodeName: "+nodeName(m)))+fmt.Sprintf(running, name))
	}
	return ok
}

// connect makes clients of the three coordinators.
func (t *rotation) connect(ctx context.Context) error {
	kubeconfig, err := os.ReadFile(filepath.Join(t.first.root, rootKubeconfig))
	if err != nil {
		return err
	}
	base, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return err
	}
	for n := range t.all() {
		at := fmt.Sprintf("10.97.0.%d:6443", 2+n)
		asking, e := clientOf(base, askTime, at)
		streaming, err := clientOf(base, 0, at)
		if err = errors.Join(e, err); err != nil {
			return err
		}
		t.asking, t.streaming = append(t.asking, asking), append(t.streaming, streaming)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	_, err = t.asking[0].CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	return err
}

// processes are those of the product and of the pods on all machines.
func (t *rotation) processes(ctx context.Context) (string, error) {
	var all []string
	for _, m := range t.all() {
		out, err := m.sh(ctx, "systemctl show -P MainPID shoal-agent shoal-coordinator\n"+processesOf)
		if err != nil {
			return "", err
		}
		all = append(all, nodeName(m)+": "+strings.Join(strings.Fields(out), " "))
	}
	return strings.Join(all, "; "), nil
}

// soak asks and looks until every certificate has been followed as often as wanted.
func (t *rotation) soak(ctx context.Context) {
	// The latest that all is done: nine tenths of a life for each, and a life more.
	limit := time.Duration(t.rotations)*certLife*9/10 + 2*certLife
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var wg sync.WaitGroup
	for n, m := range t.all() {
		wg.Go(func() { t.watches(ctx, t.streaming[n], nodeName(m)) })
		wg.Go(func() { t.follows(ctx, t.streaming[n], nodeName(m)) })
		wg.Go(func() { t.asks(ctx, t.asking[n], m) })
		wg.Go(func() { t.enters(ctx, m) })
	}
	for began := time.Now(); ctx.Err() == nil; sleep(ctx, 3*time.Second) {
		t.look(ctx)
		if _, err := t.counted(); err == nil {
			fmt.Printf("rotation: all of it after %.0f s\n", time.Since(began).Seconds())
			break
		}
	}
	cancel()
	wg.Wait()
}

// did counts a request, and keeps why it failed; what the end of the soak cuts off is not
// counted.
func (t *rotation) did(ctx context.Context, kind, where string, err error) {
	if ctx.Err() != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked[kind]++
	if err != nil {
		text := fmt.Sprintf("%s %s at %s: %v", time.Now().Format(time.TimeOnly), kind, where, err)
		t.failures = append(t.failures, text)
		fmt.Println("rotation:", text)
	}
}

// watches has a watch open that nobody but the coordinator could end.
func (t *rotation) watches(ctx context.Context, client kubernetes.Interface, at string) {
	week := int64((7 * 24 * time.Hour).Seconds())
	for ctx.Err() == nil {
		w, err := client.CoreV1().ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{TimeoutSeconds: &week})
		t.did(ctx, "watches", at, err)
		if err != nil {
			sleep(ctx, time.Second)
			continue
		}
		for range w.ResultChan() {
		}
		t.did(ctx, "ends of a watch", at, errors.New("it ended"))
	}
}

// follows has the log of the machine's pod open.
func (t *rotation) follows(ctx context.Context, client kubernetes.Interface, at string) {
	for ctx.Err() == nil {
		s, err := client.CoreV1().Pods("default").GetLogs("on-"+at, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
		t.did(ctx, "logs followed", at, err)
		if err != nil {
			sleep(ctx, time.Second)
			continue
		}
		_, err = io.Copy(io.Discard, s)
		s.Close()
		t.did(ctx, "ends of a log", at, fmt.Errorf("it ended: %v", err))
	}
}

// asks writes and reads at a coordinator, and reads logs of all nodes through it.
func (t *rotation) asks(ctx context.Context, client kubernetes.Interface, m *container) {
	at := nodeName(m)
	maps := client.CoreV1().ConfigMaps(namespace)
	_, err := maps.Create(ctx, holding("of-"+at, 0), metav1.CreateOptions{})
	t.did(ctx, "writes", at, err)
	for n := 1; ctx.Err() == nil; n++ {
		_, err := maps.Update(ctx, holding("of-"+at, n), metav1.UpdateOptions{})
		t.did(ctx, "writes", at, err)
		_, err = maps.Get(ctx, "of-"+at, metav1.GetOptions{})
		t.did(ctx, "reads", at, err)
		for _, node := range t.all() {
			name := "on-" + nodeName(node)
			_, err := client.CoreV1().Pods("default").GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
			t.did(ctx, "logs", at+" of "+name, err)
		}
		sleep(ctx, 500*time.Millisecond)
	}
}

// enters runs programs in the pods of all machines, from one of them.
func (t *rotation) enters(ctx context.Context, m *container) {
	for ctx.Err() == nil {
		for _, node := range t.all() {
			_, err := m.sh(ctx, "kubectl exec on-"+nodeName(node)+" -- true")
			t.did(ctx, "execs", nodeName(m)+" into on-"+nodeName(node), err)
			sleep(ctx, 3*time.Second)
		}
	}
}

// look notes which certificates are there.
func (t *rotation) look(ctx context.Context) {
	note := func(m *container, what string, der []byte) {
		t.mu.Lock()
		defer t.mu.Unlock()
		key := nodeName(m) + " " + what
		if t.seen[key] == nil {
			t.seen[key] = map[[sha256.Size]byte]bool{}
		}
		t.seen[key][sha256.Sum256(der)] = true
	}
	for n, m := range t.all() {
		for _, name := range certFiles {
			data, err := os.ReadFile(filepath.Join(m.dir, "var/lib/shoal", name))
			if err != nil {
				continue // it is counted in the end
			}
			note(m, name, data)
		}
		for _, port := range certPorts {
			dial, cancel := context.WithTimeout(ctx, 5*time.Second)
			conn, err := dialIn(lan, fmt.Sprintf("10.97.0.%d:%s", 2+n, port))(dial, "tcp", "")
			if err == nil {
				// What is shown is read only; some do not talk with those who show nothing.
				shown := func(s tls.ConnectionState) error {
					note(m, "port "+port, s.PeerCertificates[0].Raw)
					return nil
				}
				c := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, VerifyConnection: shown})
				_ = c.HandshakeContext(dial)
				c.Close()
			}
			cancel()
		}
	}
}

// counted fails while a certificate has not been followed as often as wanted.
func (t *rotation) counted() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kinds := slices.Clone(certFiles)
	for _, port := range certPorts {
		kinds = append(kinds, "port "+port)
	}
	var behind, counts []string
	for _, what := range kinds {
		least, most := 1<<30, 0
		for _, m := range t.all() {
			n := max(len(t.seen[nodeName(m)+" "+what])-1, 0)
			least, most = min(least, n), max(most, n)
		}
		counts = append(counts, fmt.Sprintf("%s %d-%d", filepath.Base(what), least, most))
		if least < t.rotations {
			behind = append(behind, what)
		}
	}
	if len(behind) > 0 {
		return "", fmt.Errorf("%s: not so often: %s", strings.Join(behind, ", "), strings.Join(counts, ", "))
	}
	return strings.Join(counts, ", "), nil
}
