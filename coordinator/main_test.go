package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/tests/leak"
)

// asCoordinator makes the test binary the coordinator itself.
const asCoordinator = "SHOAL_TEST_AS_COORDINATOR"

func TestMain(m *testing.M) {
	if os.Getenv(asCoordinator) != "" {
		main()
		return
	}
	leak.CheckOurs(m)
}

type child struct {
	cmd  *exec.Cmd
	out  *output
	done chan error
}

// coordinator starts a coordinator process on dir and port.
func coordinator(t *testing.T, dir string, port int, args ...string) *child {
	t.Helper()
	p := &child{out: &output{}, done: make(chan error, 1)}
	p.cmd = exec.Command(os.Args[0],
		append([]string{"--data-dir", dir, "--bind-address", "127.0.0.1", "--gossip-bind", "127.0.0.1", "--gossip-port",
			"0", "--port", fmt.Sprint(port)}, args...)...)
	p.cmd.Env = append(os.Environ(), asCoordinator+"=1")
	p.cmd.Stderr, p.cmd.Stdout = p.out, p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() { p.kill() })
	return p
}

func (p *child) kill() {
	_ = p.cmd.Process.Kill()
	p.wait(time.Minute)
}

// output is what a process has said so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (p *child) wait(limit time.Duration) (error, bool) {
	select {
	case err := <-p.done:
		p.done <- err
		return err, true
	case <-time.After(limit):
		return nil, false
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// client waits until the coordinator is ready and returns an administrator's client.
func client(t *testing.T, p *child, dir string, port int) kubernetes.Interface {
	t.Helper()
	return clientAt(t, p, dir, "127.0.0.1", port)
}

// clientAt does so where the coordinator serves at another address.
func clientAt(t *testing.T, p *child, dir, ip string, port int) kubernetes.Interface {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute) // with the race detector, on a busy machine
	for ; time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		out := dir + "/admin.kubeconfig"
		cmd := command()
		cmd.SetArgs([]string{"kubeconfig", "--data-dir", dir, "--server", fmt.Sprintf("https://%s:%d", ip, port),
			"--group", "system:masters", "--out", out})
		if cmd.Execute() != nil {
			if _, ended := p.wait(0); ended {
				t.Fatalf("coordinator ended:\n%s", p.out)
			}
			continue
		}
		config, err := clientcmd.BuildConfigFromFlags("", out)
		if err != nil {
			t.Fatal(err)
		}
		c, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		// Not for longer: the CA of that moment may have been one that is followed just now.
		for soon := time.Now().Add(5 * time.Second); time.Now().Before(soon); time.Sleep(10 * time.Millisecond) {
			if _, err = c.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(context.Background()); err == nil {
				return c
			}
			if _, ended := p.wait(0); ended {
				t.Fatalf("coordinator ended:\n%s", p.out)
			}
		}
	}
	t.Fatalf("coordinator not ready:\n%s", p.out)
	return nil
}

// What was acknowledged is there after kill -9; a second process on the same
// directory, or the same port, is told why it cannot; SIGTERM stops quickly.
func TestProcess(t *testing.T) {
	ctx := context.Background()
	dir, port := t.TempDir(), freePort(t)
	first := coordinator(t, dir, port)
	c := client(t, first, dir, port)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "v"}}
	if _, err := c.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	sameDir := coordinator(t, dir, freePort(t))
	if err, ended := sameDir.wait(time.Minute); !ended || err == nil ||
		!strings.Contains(sameDir.out.String(),
			fmt.Sprintf("another coordinator (pid %d) runs on it", first.cmd.Process.Pid)) {
		t.Errorf("second on the directory: %v\n%s", err, sameDir.out)
	}
	samePort := coordinator(t, t.TempDir(), port)
	if err, ended := samePort.wait(time.Minute); !ended || err == nil || !strings.Contains(samePort.out.String(), "the port is in use") {
		t.Errorf("second on the port: %v\n%s", err, samePort.out)
	}

	holder := leads(t, c, "")
	first.kill()
	second := coordinator(t, dir, port)
	c = client(t, second, dir, port)
	if got, err := c.CoreV1().ConfigMaps("default").Get(ctx, "a", metav1.GetOptions{}); err != nil || got.Data["k"] != "v" {
		t.Errorf("after kill -9: %v, %v", got, err)
	}
	leads(t, c, holder) // at once: nobody else can have the store
	terminate(t, second)
}

func soon(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// Bad configuration is told field by field, with the remedy.
func TestBadFlags(t *testing.T) {
	cmd := command()
	cmd.SetArgs(
		[]string{"--service-cidr", "10.96.0.0", "--cluster-dns", "10.96.0.10", "--node-port-range", "x", "--log-level",
			"loud", "--encryption-provider-config", "e.yaml",
			"--audit-log-mode", "never", "--audit-log-path", "here", "--oidc-client-id", "shoal", "--authorization-config",
			"/a", "--authorization-mode", "RBAC"})
	err := cmd.ExecuteContext(context.Background())
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		`serviceCIDR "10.96.0.0": give a range such as 10.96.0.0/16`,
		`clusterDNS "10.96.0.10": give an address inside serviceCIDR`,
		`nodePortRange "x": give first-last`, `logLevel "loud": give debug`, `encryptionProviderConfig "e.yaml": give an absolute path`,
		`auditLogMode "never": give batch, blocking or blocking-strict`, `auditLogPath "here": give an absolute path`,
		`oidcClientID "shoal": give oidcIssuerURL and oidcClientID together`, `authorizationConfig "/a": remove authorizationMode`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}
