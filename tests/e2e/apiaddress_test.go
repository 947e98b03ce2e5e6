package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	coordinatorconfig "github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/tests/harness"
)

// fellow is a further coordinator, on the machine of a node.
type fellow struct {
	*harness.Agent
	file string
	cmd  *exec.Cmd
	logs bytes.Buffer
}

// newFellow has a node's machine join the coordinators, by a token.
func newFellow(t *testing.T, c *harness.Cluster, name string) *fellow {
	t.Helper()
	a, err := c.Join(name)
	if err != nil {
		t.Fatal(err)
	}
	f := &fellow{Agent: a, file: filepath.Join(a.Dir, "coordinator.yaml")}
	cfg := coordinatorconfig.Default()
	cfg.DataDir, cfg.AdvertiseAddress, cfg.NodeName = filepath.Join(a.Dir, "c"), a.Address, name
	cfg.GossipPort++
	data, err := yaml.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	token, err := c.Run(filepath.Join(c.Bin, "shoal"), "token", "create", "--coordinator", "--data-dir", c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.command("shoal", "join", strings.TrimSpace(token), "--coordinator", "--coordinator-config", f.file,
		"--no-start", "--name", name).CombinedOutput()
	if err != nil {
		t.Fatalf("%s joins the coordinators: %v: %s", name, err, out)
	}
	t.Cleanup(func() {
		if f.cmd != nil {
			_ = f.cmd.Process.Signal(syscall.SIGKILL)
			_ = f.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("coordinator of %s:\n%s", name, lastOf(f.logs.String()))
		}
	})
	f.start(t, c)
	return f
}

func lastOf(text string) string { return text[max(0, len(text)-3000):] }

func (f *fellow) command(program string, args ...string) *exec.Cmd {
	bin := filepath.Join(cluster.Bin, program)
	return harness.Command(f.NetNS, "unshare",
		append([]string{"--uts", "--", "sh", "-c", `hostname "$0" && exec "$@"`, f.Name, bin}, args...)...)
}

func (f *fellow) start(t *testing.T, c *harness.Cluster) {
	t.Helper()
	f.cmd = f.command("shoal-coordinator", "--config", f.file)
	f.cmd.Stdout, f.cmd.Stderr = &f.logs, &f.logs
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, f.Name+" serves the API", func() (bool, string) {
		out, err := c.Kubectl("", "--server=https://"+f.Address+":6443", "get", "--raw", "/readyz")
		return err == nil && out == "ok", fmt.Sprint(out, err)
	})
}

// readyAt asks the API at an address whether it is ready, from a host; its certificate
// must be for that address.
func readyAt(netns, address string, ca []byte, limit time.Duration) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return harness.Inside(netns, func() error {
		conn, err := net.DialTimeout("tcp", address, limit)
		if err != nil {
			return err
		}
		client := http.Client{Timeout: limit, Transport: &http.Transport{
			DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
			TLSClientConfig:   &tls.Config{RootCAs: roots},
			DisableKeepAlives: true,
		}}
		defer conn.Close()
		r, err := client.Get("https://" + address + "/livez")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if body, err := io.ReadAll(r.Body); err != nil || r.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s, %w", r.Status, body, err)
		}
		return nil
	})
}

// TestVirtualAddress: one address leads to whichever of three coordinators lives. The
// machine that has it loses its power, and the API answers there in less than 3 s.
func TestVirtualAddress(t *testing.T) {
	const virtual = "10.99.0.120"
	c := ownCluster(t, "va")
	if err := c.Up("--virtual-address", virtual); err != nil {
		t.Fatal(err)
	}
	fellows := map[string]*fellow{} // by MAC
	for _, name := range []string{"node2", "node3"} {
		f := newFellow(t, c, name)
		fellows[macOf(t, f.NetNS)] = f
		harness.Eventually(t, name+" may have the address", func() (bool, string) {
			out, err := c.Kubectl("", "get", "endpointslices", "-n", "kube-system", "shoal-api", "-o",
				"jsonpath={.endpoints[*].nodeName}")
			return err == nil && strings.Contains(out, name), fmt.Sprint(out, err)
		})
	}
	first := macOf(t, c.NetNS)
	ca, err := os.ReadFile(filepath.Join(c.Dir, "coordinator", "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	outside, _, err := c.Outside()
	if err != nil {
		t.Fatal(err)
	}
	watch := newARPWatch(t, outside, netip.MustParseAddr(virtual))
	at := net.JoinHostPort(virtual, "6443")
	harness.Eventually(t, "the API answers at its virtual address", func() (bool, string) {
		err := readyAt(outside, at, ca, time.Second)
		return err == nil, fmt.Sprint(err)
	})
	owner := watch.settled(t)
	f := fellows[owner]
	if f == nil && owner != first {
		t.Fatalf("%q answers", owner)
	}
	t.Logf("of 3 coordinators %s has the address; the first is %s", owner, first)
	if f == nil {
		if err := c.Cut(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := c.Plug(); err != nil {
				t.Error(err)
			}
		}()
	} else {
		if err := f.Cut(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := f.Plug(); err != nil {
				t.Error(err)
			}
		}()
		if err := f.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = f.cmd.Process.Signal(syscall.SIGKILL)
		_ = f.cmd.Wait()
		f.cmd = nil
	}
	cut := time.Now()
	for readyAt(outside, at, ca, 300*time.Millisecond) != nil {
		if time.Since(cut) > 20*time.Second {
			t.Fatal("no coordinator answers")
		}
	}
	took := time.Since(cut)
	t.Logf("the API answers there again after %v", took)
	if now := watch.owner(); now == owner {
		t.Errorf("%s still answers", now)
	}
	if took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
}
