package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/tests/bench/measure"
	"github.com/shoal-project/shoal/tests/harness"
)

// peer is upstream's release: a control plane and up to two nodes.
type peer struct {
	*host
	options options
	keys    pki.Dir
	stage   stage
	client  kubernetes.Interface // of the administrator
	nodes   []*peerNode
}

// startPeer starts the control plane and a node. All that can be made before
// (keys, configuration files, the runtime's images) is made before.
func startPeer(ctx context.Context, o options, s stage) (*cluster, error) {
	p, err := preparePeer(o, s)
	if p == nil {
		return nil, err
	}
	out := &cluster{dir: p.dir, kubeconfig: p.path("admin.kubeconfig"), podGroup: p.name, daemons: p}
	out.groups = []measure.Group{p.group, measure.Group(filepath.Join(measure.Accountant(), p.name))}
	if err != nil {
		return out, err
	}
	out.netns, out.address = p.netns[0], p.addrs[0]
	start := time.Now()
	err = p.up(ctx)
	out.took = time.Since(start)
	return out, err
}

func preparePeer(o options, s stage) (*peer, error) {
	h, err := newHost()
	if h == nil {
		return nil, err
	}
	p := &peer{host: h, options: o, stage: s, keys: pki.Dir(h.path("pki"))}
	if err != nil {
		return p, err
	}
	if err := p.makeKeys(); err != nil {
		return p, err
	}
	config, err := harness.RESTConfig(h.netns[0], h.path("admin.kubeconfig"))
	if err != nil {
		return p, err
	}
	if p.client, err = kubernetes.NewForConfig(encoded(config, protobuf)); err != nil {
		return p, err
	}
	if err := p.write("scheduler.yaml", fmt.Sprintf(schedulerConfig, h.path("scheduler.kubeconfig"))); err != nil {
		return p, err
	}
	if s == plane {
		return p, nil
	}
	n, err := p.prepareNode(0, nodeOne)
	p.nodes = append(p.nodes, n)
	return p, err
}

// schedulerConfig lets the scheduler write as fast as upstream's own
// measurements of it do. There is no other to elect: where the machine is too
// busy to renew a Lease in time, the only one would end.
const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %s, qps: 5000, burst: 5000}
leaderElection: {leaderElect: false}
`

func (p *peer) write(name, text string) error {
	return os.WriteFile(p.path(name), []byte(text), 0o600)
}

func (p *peer) server() string { return "https://" + p.addrs[0] + ":6443" }

// makeKeys makes the cluster's keys and a kubeconfig for each client.
func (p *peer) makeKeys() error {
	ips := []net.IP{net.ParseIP(p.addrs[0]), net.ParseIP("10.96.0.1")}
	if err := p.keys.Ensure(pki.Cluster{IPs: ips, Domain: "cluster.local"}, time.Now()); err != nil {
		return err
	}
	for name, spec := range map[string]pki.Spec{
		"admin":      {User: "admin", Groups: []string{"system:masters"}},
		"scheduler":  {User: "system:kube-scheduler"},
		"controller": {User: "system:kube-controller-manager"},
		"proxy":      {User: "system:kube-proxy"},
		nodeOne:      {User: "system:node:" + nodeOne, Groups: []string{"system:nodes"}},
		nodeTwo:      {User: "system:node:" + nodeTwo, Groups: []string{"system:nodes"}},
	} {
		ca, err := p.keys.CA()
		if err != nil {
			return err
		}
		data, err := ca.Kubeconfig(p.server(), spec, time.Now())
		if err != nil {
			return err
		}
		if err := p.write(name+".kubeconfig", string(data)); err != nil {
			return err
		}
	}
	return nil
}

// up starts everything and returns when the node, if there is one, is Ready.
func (p *peer) up(ctx context.Context) error {
	if err := p.startPlane(ctx); err != nil {
		return err
	}
	if p.stage == plane {
		return p.until(ctx, "the default service account is there", time.Minute, func() error {
			_, err := p.client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
			return err
		})
	}
	return p.startNode(ctx, p.nodes[0])
}

func (p *peer) program(name string) string { return filepath.Join(p.options.cache, name) }

// startPlane starts etcd and the API server at once, and the others when the
// API server answers: earlier they would only wait, and longer than needed.
func (p *peer) startPlane(ctx context.Context) error {
	const etcd = "http://127.0.0.1:2379"
	if _, err := p.host.start(0, "etcd", p.program("etcd"), "--data-dir", p.path("etcd"), "--listen-client-urls", etcd,
		"--advertise-client-urls", etcd,
		"--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380",
		"--initial-cluster", "default=http://127.0.0.1:2380",
		"--log-level", "warn"); err != nil {
		return err
	}
	key := func(name string) string { return p.keys.Path(name) }
	if _, err := p.host.start(0, "kube-apiserver", p.program("kube-apiserver"), "--etcd-servers", etcd,
		"--advertise-address", p.addrs[0],
		"--service-cluster-ip-range", serviceCIDR, "--authorization-mode", "Node,RBAC", "--enable-admission-plugins",
		"NodeRestriction", "--allow-privileged",
		"--client-ca-file", key("ca.crt"), "--tls-cert-file", key("apiserver.crt"), "--tls-private-key-file", key("apiserver.key"),
		"--kubelet-client-certificate", key("apiserver-kubelet-client.crt"), "--kubelet-client-key", key("apiserver-kubelet-client.key"),
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file", key("sa.pub"), "--service-account-signing-key-file", key("sa.key"),
		"--requestheader-client-ca-file", key("front-proxy-ca.crt"), "--requestheader-allowed-names",
		"front-proxy-client", "--requestheader-username-headers", "X-Remote-User",
		"--requestheader-group-headers", "X-Remote-Group", "--requestheader-extra-headers-prefix", "X-Remote-Extra-",
		"--proxy-client-cert-file", key("front-proxy-client.crt"),
		"--proxy-client-key-file", key("front-proxy-client.key")); err != nil {
		return err
	}
	if p.stage != plane { // the runtime needs no API server
		if err := p.startRuntime(p.nodes[0]); err != nil {
			return err
		}
	}
	if err := p.until(ctx, "the API server serves", time.Minute,
		func() error { return ready(ctx, p.netns[0], p.server()) }); err != nil {
		return err
	}
	// Simulated nodes are not to be lost because the machine is too busy.
	cidr, grace := planeCIDR, "10m"
	if p.stage != plane {
		cidr, grace = "10.244.0.0/16", "50s" // which is the default
	}
	if _, err := p.host.start(0, "kube-controller-manager", p.program("kube-controller-manager"),
		"--kubeconfig", p.path("controller.kubeconfig"), "--bind-address", "127.0.0.1",
		"--leader-elect=false", "--use-service-account-credentials",
		"--service-account-private-key-file", key("sa.key"), "--root-ca-file", key("ca.crt"),
		"--cluster-signing-cert-file", key("ca.crt"), "--cluster-signing-key-file", key("ca.key"),
		"--allocate-node-cidrs", "--cluster-cidr", cidr, "--node-monitor-grace-period", grace,
		"--service-cluster-ip-range", serviceCIDR, "--kube-api-qps", "1000", "--kube-api-burst", "2000"); err != nil {
		return err
	}
	_, err := p.host.start(0, "kube-scheduler", p.program("kube-scheduler"), "--config", p.path("scheduler.yaml"),
		"--bind-address", "127.0.0.1")
	return err
}

// ready asks an API server for /readyz. Whose certificate it has does not
// matter here.
func ready(ctx context.Context, netns, server string) error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = harness.Inside(netns, func() (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// nodeReady returns nil when a node can take pods.
func nodeReady(ctx context.Context, client kubernetes.Interface, name string) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !takesPods(node) {
		return fmt.Errorf("node %s is not Ready", name)
	}
	return nil
}

func takesPods(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (p *peer) join(ctx context.Context) error {
	if err := p.machine(); err != nil {
		return err
	}
	n, err := p.prepareNode(1, nodeTwo)
	p.nodes = append(p.nodes, n)
	if err != nil {
		return err
	}
	if err := p.startRuntime(n); err != nil {
		return err
	}
	return p.startNode(ctx, n)
}

func (p *peer) cut() error { return p.lan.Cut(2) }

func (p *peer) onNode(node int, name string, command ...string) error {
	n := p.nodes[node]
	return p.beside(n.machine, name, n.inside(command...))
}

func (p *peer) kubeletDir(node int) string { return p.nodePath(p.nodes[node], "kubelet") }

// stop lets pods' cgroups of a second node go too.
func (p *peer) stop() error {
	var errs []error
	for _, n := range p.nodes {
		if n != nil && n.pods != p.name {
			if g := measure.Group(filepath.Join(measure.Accountant(), n.pods)); g.Exists() {
				errs = append(errs, g.Kill())
			}
			defer measure.RemoveGroups(n.pods)
		}
	}
	return errors.Join(append(errs, p.host.stop())...)
}
