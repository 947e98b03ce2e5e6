package e2e

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/time/rate"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
)

// distant is a registry that asks for a login, at the end of a line of its own.
type distant struct {
	address string
	images  http.Handler
	line    *rate.Limiter
	sent    atomic.Int64 // bytes of blobs
}

type lineWriter struct {
	http.ResponseWriter
	d *distant
	r *http.Request
}

func (w lineWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		part := p[:min(len(p), 16<<10)]
		if err := w.d.line.WaitN(w.r.Context(), len(part)); err != nil {
			return n, err
		}
		var m int
		m, err = w.ResponseWriter.Write(part)
		w.d.sent.Add(int64(m))
		n, p = n+m, p[m:]
	}
	return n, err
}

func newDistant(t testing.TB, bytesPerSecond int) *distant {
	t.Helper()
	d := &distant{images: registry.New(registry.Logger(log.New(io.Discard, "", 0))), line: rate.NewLimiter(rate.Inf, 1)}
	if bytesPerSecond > 0 {
		d.line = rate.NewLimiter(rate.Limit(bytesPerSecond), 64<<10)
	}
	serve := askingForLogin(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			w = lineWriter{w, d, r}
		}
		d.images.ServeHTTP(w, r)
	}))
	err := harness.Inside(cluster.NetNS, func() error {
		l, err := net.Listen("tcp", cluster.Address+":0")
		if err != nil {
			return err
		}
		server := &http.Server{Handler: serve}
		go func() { _ = server.Serve(l) }()
		t.Cleanup(func() { server.Close() })
		d.address = l.Addr().String()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// push adds random layers to busybox, which all nodes have, and returns how many bytes they have.
func (d *distant) push(t testing.TB, name string, layers ...int64) (size int64) {
	t.Helper()
	image, err := busyboxWith(layers)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := parse(d.address + "/" + name)
	if err == nil {
		err = remote.Write(ref, image, remote.WithTransport(harness.InMemory{Handler: d.images}))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		size += l
	}
	return size
}

func parse(reference string) (name.Reference, error) {
	return name.ParseReference(reference, name.Insecure)
}

func busyboxWith(layers []int64) (v1.Image, error) {
	image, err := imageOf("busybox")
	for _, size := range layers {
		if err != nil {
			return nil, err
		}
		l, lerr := random.Layer(size, types.DockerLayer)
		if lerr != nil {
			return nil, lerr
		}
		image, err = mutate.AppendLayers(image, l)
	}
	return image, err
}

// nodesThatPull adds nodes that know the registry, and returns their agents.
func (d *distant) nodesThatPull(t testing.TB, names []string) (agents []*harness.Agent) {
	t.Helper()
	for _, node := range names {
		agent, err := cluster.Host(node, func(a *harness.Agent, c *agentconfig.Config) {
			dir := filepath.Join(c.RegistryConfigDir, d.address)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			hosts := fmt.Sprintf("[host.%q]\ncapabilities = [\"pull\", \"resolve\"]\n", "http://"+d.address)
			if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(hosts), 0o644); err != nil {
				t.Fatal(err)
			}
		})
		if err == nil {
			err = agent.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { leave(t, agent, node) })
		agents = append(agents, agent)
	}
	for _, node := range names {
		harness.Eventually(t, node+" is Ready", func() (bool, string) {
			out, err := cluster.Kubectl("", "wait", "node/"+node, "--for=condition=Ready", "--timeout=1s")
			return err == nil, out
		})
	}
	return agents
}

var ofNodes = regexp.MustCompile(`(?m)^shoal_image_received_bytes_total\{source="node"\} (\S+)$`)

func receivedFromNodes(t testing.TB, node string) int64 {
	t.Helper()
	page := cluster.Must(t, "get", "--raw", "/api/v1/nodes/"+node+"/proxy/metrics")
	found := ofNodes.FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("%s has no such metric", node)
	}
	n, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return int64(n)
}

const puller = `{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {nodeName: %s, terminationGracePeriodSeconds: 0,
  imagePullSecrets: [%s], containers: [{name: c, image: "%s", imagePullPolicy: Always, command: [sleep, "999"]}]}}`

func (s space) loginAt(address string) {
	s.t.Helper()
	s.k("create", "secret", "docker-registry", "pull", "--docker-server="+address, "--docker-username="+registryUser,
		"--docker-password="+registryPassword)
}

// TestImagesFromOtherNodes: a node gets the layers of a private image from one that has
// it, for a pod that may have it, and nothing for one that may not.
func TestImagesFromOtherNodes(t *testing.T) {
	s := newSpace(t)
	d := newDistant(t, 0)
	size := d.push(t, "private/app:1", 6<<20, 2<<20)
	d.nodesThatPull(t, []string{"peer1", "peer2"})
	s.loginAt(d.address)
	image := d.address + "/private/app:1"
	s.apply(fmt.Sprintf(puller, "first", "peer1", "{name: pull}", image))
	s.ready("first")
	if got := d.sent.Load(); got < size {
		t.Fatalf("the registry sent %d bytes of an image of %d", got, size)
	}
	d.sent.Store(0)
	s.apply(fmt.Sprintf(puller, "second", "peer2", "{name: pull}", image))
	s.ready("second")
	got, near := d.sent.Load(), receivedFromNodes(t, "peer2")
	t.Logf("of %d bytes the second node got %d from the registry, %d from the first", size, got, near)
	if got > 1<<20 || near < 8<<20 {
		t.Errorf("of %d bytes the second node got %d from the registry, %d from the first", size, got, near)
	}
	s.apply(fmt.Sprintf(puller, "stranger", "peer2", "", image))
	s.shows("ErrImagePull", "get", "pod", "stranger")

	// Only nodes get layers: the cluster's administrator is none.
	s.refused("this is for nodes", "get", "--raw",
		"/api/v1/nodes/peer1/proxy/shoal/v1/layers/sha256:"+strings.Repeat("0", 64))
}

// TestSlowNeighbour: the only node that has an image is at the end of a slow line. Another one
// does not wait for it longer than it takes to see that.
func TestSlowNeighbour(t *testing.T) {
	s := newSpace(t)
	d := newDistant(t, 0)
	size := d.push(t, "app:1", 6<<20, 5<<20, 4<<20, 3<<20, 2<<20, 1<<20)
	agents := d.nodesThatPull(t, []string{"slow1", "quick1"})
	s.loginAt(d.address)
	s.apply(fmt.Sprintf(puller, "first", "slow1", "{name: pull}", d.address+"/app:1"))
	s.ready("first")
	out, err := exec.Command("tc", "-n", agents[0].NetNS, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "800kbit",
		"burst", "32kb", "latency", "400ms").CombinedOutput()
	if err != nil {
		t.Fatalf("tc: %v %s", err, out)
	}
	d.sent.Store(0)
	begin := time.Now()
	s.apply(fmt.Sprintf(puller, "second", "quick1", "{name: pull}", d.address+"/app:1"))
	s.ready("second")
	took, near := time.Since(begin), receivedFromNodes(t, "quick1")
	t.Logf("the pull took %v; of %d bytes the registry sent %d, the neighbour %d", took, size, d.sent.Load(), near)
	if took > 30*time.Second || near == 0 {
		t.Errorf("the pull took %v; the registry sent %d bytes, the neighbour %d", took, d.sent.Load(), near)
	}
}

// BenchmarkFleetPull has 20 nodes pull an image at the same time, from a registry whose
// line carries 2 MiB a second, and prints how much the registry sent, and how long the
// last node took, in images and in times of a single node.
func BenchmarkFleetPull(b *testing.B) {
	const nodes = 20
	d := newDistant(b, 2<<20)
	var names []string
	for i := range nodes {
		names = append(names, fmt.Sprintf("pull%02d", i))
	}
	d.nodesThatPull(b, append([]string{"single"}, names...))
	cluster.Must(b, "create", "namespace", "fleetpull")
	defer func() { cluster.Must(b, "delete", "namespace", "fleetpull") }()
	cluster.Must(b, "-n", "fleetpull", "create", "secret", "docker-registry", "pull", "--docker-server="+d.address,
		"--docker-username="+registryUser, "--docker-password="+registryPassword)
	pull := func(image string, nodes ...string) time.Duration {
		b.Helper()
		var all []string
		for _, n := range nodes {
			all = append(all, fmt.Sprintf(puller, n, n, "{name: pull}", d.address+"/"+image))
		}
		begin := time.Now()
		cluster.MustWith(b, strings.Join(all, "\n---\n"), "-n", "fleetpull", "apply", "-f", "-")
		cluster.Must(b, "-n", "fleetpull", "wait", "pods", "--all", "--for=condition=Ready", "--timeout=5m")
		took := time.Since(begin)
		cluster.Must(b, "-n", "fleetpull", "delete", "pods", "--all")
		return took
	}
	for i := range b.N {
		alone, together := fmt.Sprintf("alone:%d", i), fmt.Sprintf("together:%d", i)
		d.push(b, alone, 20<<20, 8<<20, 4<<20)
		size := d.push(b, together, 20<<20, 8<<20, 4<<20)
		single := pull(alone, "single")
		d.sent.Store(0)
		all := pull(together, names...)
		b.ReportMetric(single.Seconds(), "s-single")
		b.ReportMetric(all.Seconds(), "s-all")
		b.ReportMetric(all.Seconds()/single.Seconds(), "times-single")
		b.ReportMetric(float64(d.sent.Load())/float64(size), "images-sent")
	}
}

// TestPullProgress: how far a slow pull is can be seen in the pod's events, and on the node.
func TestPullProgress(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	d := &distant{images: registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		line: rate.NewLimiter(200<<10, 64<<10)}
	d.address = serveInside(t, cluster, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			w = lineWriter{w, d, r}
		}
		d.images.ServeHTTP(w, r)
	})
	d.push(t, "slow:1", 3<<20)
	s.apply(fmt.Sprintf(puller, "slow", "node1", "", d.address+"/slow:1"))
	harness.Eventually(t, "the node shows the pull", func() (bool, string) {
		out, err := cluster.Command("shoal", "images", "list", "--data-dir", cluster.Dir).CombinedOutput()
		return err == nil && strings.Contains(string(out), "PULLED NOW") &&
			strings.Contains(string(out), d.address+"/slow:1"), fmt.Sprint(string(out), err)
	})
	s.shows(" of 9.", "get", "events", "--field-selector=involvedObject.name=slow,reason=Pulling")
	s.ready("slow")
}
