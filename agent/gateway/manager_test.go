package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/tests/harness"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

// known are Services that do not change, but when told.
type known struct {
	tables  *service.Tables
	changed chan struct{}
}

func (k *known) Tables() *service.Tables  { return k.tables }
func (k *known) Changed() <-chan struct{} { return k.changed }

func serviceOf(name string, backends ...string) *service.Service {
	s := &service.Service{Key: service.Key{Namespace: "ns", Name: name}}
	p := service.Port{Number: 80, Protocol: "TCP"}
	for _, b := range backends {
		p.Cluster.Backends = append(p.Cluster.Backends, service.Backend{AddrPort: netip.MustParseAddrPort(b)})
	}
	s.Ports = []service.Port{p}
	return s
}

func configOf(port uint16) *gatewayfeed.Config {
	return &gatewayfeed.Config{Ports: []gatewayfeed.Port{{Number: port, Public: 80, Listeners: []gatewayfeed.Listener{{
		Name: "l", Protocol: gatewayfeed.HTTP, Routes: []gatewayfeed.Route{{Rules: []gatewayfeed.Rule{{
			Backends: []gatewayfeed.Backend{{Namespace: "ns", Service: "hello", Port: 80, Weight: 1}}}}}}}}}}}
}

func TestAddresses(t *testing.T) {
	tables := service.NewTables(serviceOf("hello", "10.0.0.1:8080", "10.0.0.2:8080"))
	got := addresses(configOf(1), tables)["tcp/ns/hello/80"]
	if len(got) != 2 || got[0].String() != "10.0.0.1:8080" {
		t.Errorf("%v", got)
	}
	if got := addresses(configOf(1), service.NewTables()); len(got) != 1 || got["tcp/ns/hello/80"] == nil {
		t.Errorf("of a Service that is not there: %v", got)
	}
}

// TestProcess: the real proxy comes with the first Gateway's Service, outlives the manager,
// is taken over by the next, comes back when it is killed, and goes with the last Service.
func TestProcess(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("root starts the proxy as another user")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "shoal-gateway")
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the proxy's user must reach its program
		t.Fatal(err)
	}
	out, err := exec.Command("go", "build", "-o", program, "../gatewayproxy/shoal-gateway").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w,
			"hello")
	}))
	defer backend.Close()
	port := uint16(gatewayfeed.FirstPort)
	for ; ; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err == nil {
			_ = l.Close()
			break
		}
		if port == gatewayfeed.LastPort {
			t.Fatal(err)
		}
	}
	line, err := json.Marshal(gatewayfeed.Update{Config: configOf(port)})
	if err != nil {
		t.Fatal(err)
	}
	gateway := &service.Service{Key: service.Key{Namespace: "ns", Name: "gateway"}, Gateway: true}
	asked := 0
	services := &known{tables: service.NewTables(serviceOf("hello", backend.Listener.Addr().String())),
		changed: make(chan struct{}, 1)}
	c := Config{
		Services: services, Dir: filepath.Join(dir, "run"), Program: program, User: 64731, Group: 64731,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Feed: func(ctx context.Context) (io.ReadCloser, error) {
			asked++
			r, w := io.Pipe()
			go func() {
				_, _ = w.Write(append(line, '\n'))
				<-ctx.Done()
				_ = w.Close()
			}()
			return r, nil
		},
	}
	t.Cleanup(func() {
		if err := End(c.Dir); err != nil {
			t.Error(err)
		}
	})
	run := func() (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = New(c).Run(ctx)
		}()
		services.changed <- struct{}{}
		return func() {
			cancel()
			<-ended
		}
	}
	answers := func() (bool, string) {
		client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d", port))
		if err != nil {
			return false, err.Error()
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return err == nil && string(body) == "hello", string(body)
	}
	pid := func() int {
		data, err := os.ReadFile(pidPath(c.Dir))
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.Fields(string(data))[0])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}

	stop := run()
	time.Sleep(50 * time.Millisecond)
	if _, err := os.Stat(c.Dir); err == nil || asked > 0 {
		t.Error("without a Gateway's Service something was begun")
	}
	stop()
	services.tables = services.tables.With(map[service.Key]*service.Service{gateway.Key: gateway})
	stop = run()
	harness.Eventually(t, "the proxy answers", answers)
	first := pid()
	stop()
	if ok, got := answers(); !ok {
		t.Errorf("without the manager: %s", got)
	}
	stop = run()
	harness.Eventually(t, "the proxy answers", answers)
	if pid() != first {
		t.Error("another proxy was started beside the one that ran")
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the proxy is back", func() (bool, string) {
		ok, got := answers()
		return ok && pid() != first, got
	})
	stop()
	services.tables = services.tables.With(map[service.Key]*service.Service{gateway.Key: nil})
	stop = run()
	defer stop()
	harness.Eventually(t, "the proxy ends", func() (bool, string) {
		ok, got := answers()
		return !ok, got
	})
}
