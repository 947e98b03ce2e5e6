package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	coordinatorconfig "github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/pki"
)

const serviceCIDR = "10.96.0.0/16"

// server is one of the two API servers.
type server struct {
	name   string
	base   string // https://address
	client *http.Client
	tape   *tape // records, or answers in the server's place; or nil
}

// pair is upstream's API server and the product's.
type pair struct {
	upstream, shoal *server
	dir             string
	procs           []*process
}

type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
}

// start starts both on free ports, with the same keys; upstream only when no tape
// answers for it. What it returns is to be stopped, after an error too.
func start(ctx context.Context, o options, t *tape) (*pair, error) {
	p := &pair{}
	var err error
	if p.dir, err = os.MkdirTemp("", "apidiff-"); err != nil {
		return p, err
	}
	var ports [5]int
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return p, err
		}
	}
	c := coordinatorconfig.Default()
	c.DataDir, c.BindAddress, c.Port = filepath.Join(p.dir, "shoal"), "127.0.0.1", ports[0]
	c.GossipBind, c.GossipPort, c.ServiceCIDR = "127.0.0.1", ports[1], serviceCIDR
	keys := pki.Dir(c.KeysDir())
	ips := []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP("10.96.0.1")}
	if err := keys.Ensure(pki.Cluster{IPs: ips, Domain: c.ClusterDomain}, time.Now()); err != nil {
		return p, err
	}
	file := filepath.Join(p.dir, "coordinator.yaml")
	data, err := yaml.Marshal(c)
	if err != nil {
		return p, err
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return p, err
	}
	if err := p.run("coordinator", filepath.Join(o.bin, "shoal-coordinator"), "--config", file); err != nil {
		return p, err
	}
	if t == nil || !t.playing {
		if err := p.startUpstream(o, keys, ports[2], ports[3], ports[4]); err != nil {
			return p, err
		}
	}
	admin, err := client(keys)
	if err != nil {
		return p, err
	}
	p.shoal = &server{name: "here", base: fmt.Sprintf("https://127.0.0.1:%d", ports[0]), client: admin}
	p.upstream = &server{name: "upstream", base: fmt.Sprintf("https://127.0.0.1:%d", ports[2]), client: admin, tape: t}
	for _, s := range []*server{p.shoal, p.upstream} {
		if err := p.ready(ctx, s); err != nil {
			return p, fmt.Errorf("%w\nlogs: %s", err, p.logs())
		}
	}
	return p, nil
}

func (p *pair) startUpstream(o options, keys pki.Dir, port, etcdPort, etcdPeerPort int) error {
	etcd := fmt.Sprintf("http://127.0.0.1:%d", etcdPort)
	etcdPeer := fmt.Sprintf("http://127.0.0.1:%d", etcdPeerPort)
	if err := p.run("etcd", filepath.Join(o.cache, "etcd"), "--data-dir", filepath.Join(p.dir, "etcd"),
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", etcdPeer,
		"--initial-advertise-peer-urls", etcdPeer, "--initial-cluster", "default="+etcdPeer,
		"--unsafe-no-fsync", "--log-level", "warn"); err != nil {
		return err
	}
	return p.run("kube-apiserver", filepath.Join(o.cache, "kube-apiserver"), "--etcd-servers", etcd,
		"--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", fmt.Sprint(port),
		"--service-cluster-ip-range", serviceCIDR, "--authorization-mode", "Node,RBAC",
		"--enable-admission-plugins", "NodeRestriction", "--allow-privileged",
		"--client-ca-file", keys.Path("ca.crt"), "--tls-cert-file", keys.Path("apiserver.crt"),
		"--tls-private-key-file", keys.Path("apiserver.key"),
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file", keys.Path("sa.pub"), "--service-account-signing-key-file", keys.Path("sa.key"),
		"--requestheader-client-ca-file", keys.Path("front-proxy-ca.crt"),
		"--requestheader-allowed-names", "front-proxy-client", "--requestheader-username-headers", "X-Remote-User",
		"--requestheader-group-headers", "X-Remote-Group", "--requestheader-extra-headers-prefix", "X-Remote-Extra-",
		"--proxy-client-cert-file", keys.Path("front-proxy-client.crt"),
		"--proxy-client-key-file", keys.Path("front-proxy-client.key"))
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (p *pair) log(name string) string { return filepath.Join(p.dir, name+".log") }

func (p *pair) run(name, program string, args ...string) error {
	log, err := os.Create(p.log(name))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	proc := &process{name: name, cmd: cmd, done: make(chan struct{})}
	go func() { _ = cmd.Wait(); close(proc.done) }()
	p.procs = append(p.procs, proc)
	return nil
}

// client has an administrator's certificate.
func client(keys pki.Dir) (*http.Client, error) {
	ca, err := keys.CA()
	if err != nil {
		return nil, err
	}
	data, err := ca.Kubeconfig("https://127.0.0.1", pki.Spec{User: "admin", Groups: []string{"system:masters"}},
		time.Now())
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		return nil, err
	}
	config.Timeout, config.UserAgent = 30*time.Second, "apidiff"
	return rest.HTTPClientFor(config)
}

// ready waits for a server, and for what it makes of itself when it starts.
func (p *pair) ready(ctx context.Context, s *server) error {
	deadline := time.Now().Add(3 * time.Minute)
	for {
		ok := true
		var last string
		for _, path := range []string{"/readyz", "/api/v1/namespaces/default",
			"/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical"} {
			a, err := s.do(ctx, request{Method: http.MethodGet, Path: path})
			if err != nil || a.Code != http.StatusOK {
				ok, last = false, fmt.Sprint(path, ": ", a.Code, err)
				break
			}
		}
		if ok {
			return nil
		}
		for _, proc := range p.procs {
			select {
			case <-proc.done:
				return fmt.Errorf("%s ended", proc.name)
			default:
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready: %s", s.name, last)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond): // /readyz is no event
		}
	}
}

func (p *pair) logs() string {
	var out strings.Builder
	for _, proc := range p.procs {
		data, _ := os.ReadFile(p.log(proc.name))
		if len(data) > 3000 {
			data = data[len(data)-3000:]
		}
		fmt.Fprintf(&out, "\n--- %s\n%s", proc.name, data)
	}
	return out.String()
}

// stop ends all processes and removes what they kept.
func (p *pair) stop() {
	for _, proc := range p.procs {
		_ = proc.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, proc := range p.procs {
		select {
		case <-proc.done:
		case <-time.After(10 * time.Second):
			_ = proc.cmd.Process.Kill()
			<-proc.done
		}
	}
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}

// answer is what of a response is compared.
type answer struct {
	Code     int
	Warnings []string
	Body     []byte
}

// do sends a request, or takes its answer from the tape.
func (s *server) do(ctx context.Context, r request) (answer, error) {
	if s.tape == nil {
		return s.send(ctx, r)
	}
	if s.tape.playing {
		return s.tape.play(r)
	}
	a, err := s.send(ctx, r)
	if err != nil {
		return a, err
	}
	return a, s.tape.keep(r, a)
}

// send sends a request. A connection that is reset is an answer too: a handler
// has panicked.
func (s *server) send(ctx context.Context, r request) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, s.base+r.Path, bytes.NewReader(r.Body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("User-Agent", "apidiff")
	if r.Type != "" {
		req.Header.Set("Content-Type", r.Type)
	}
	if r.Accept != "" {
		req.Header.Set("Accept", r.Accept)
	}
	if r.as != nil {
		req.Header.Set("Impersonate-User", r.as.Name)
		req.Header["Impersonate-Group"] = r.as.Groups
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return answer{}, ctx.Err()
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return answer{}, fmt.Errorf("%s: %w", s.name, err)
		}
		return answer{Body: []byte("connection: " + unwrapped(err))}, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return answer{Body: []byte("connection: " + unwrapped(err))}, nil
	}
	return answer{Code: resp.StatusCode, Warnings: warnings(resp.Header), Body: body}, nil
}

func unwrapped(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}
