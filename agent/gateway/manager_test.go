package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
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

// records are kept in memory.
type records struct {
	all  map[string]*gatewayfeed.Config
	fail error
}

func (r *records) All() (map[string]*gatewayfeed.Config, error) { return maps.Clone(r.all), nil }

func (r *records) Put(key string, c *gatewayfeed.Config) error {
	if r.fail != nil {
		return r.fail
	}
	r.all[key] = c
	return nil
}

func (r *records) Delete(key string) error {
	delete(r.all, key)
	return nil
}

// TestKept: each port has a record with the certificates that it names; what is not told any
// more has none, and neither has what could not be written or, where keys are not kept, has
// one. What cannot be true is not taken.
func TestKept(t *testing.T) {
	c := configOf(28000)
	c.Ports = append(c.Ports, gatewayfeed.Port{Number: 28001, Listeners: []gatewayfeed.Listener{{
		Name: "s", Protocol: gatewayfeed.HTTPS, Certificates: []string{"one"}}}})
	c.Certificates = map[string]gatewayfeed.Certificate{"one": {Chain: "c", Key: "k"}}
	r := &records{all: map[string]*gatewayfeed.Config{}}
	manager := func(keys bool) *Manager {
		m := New(Config{Kept: r, KeepKeys: keys, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
		m.restore()
		return m
	}
	m := manager(true)
	if m.config != nil {
		t.Errorf("nothing was kept, and there is %+v", m.config)
	}
	m.config = c
	m.keep()
	if len(r.all) != 2 || len(r.all["tcp/28000"].Certificates) != 0 || r.all["tcp/28001"].Certificates["one"].Key != "k" {
		t.Errorf("kept are %+v", r.all)
	}
	if m = manager(true); !reflect.DeepEqual(m.config, c) {
		t.Errorf("restored %+v, not %+v", m.config, c)
	}
	if m = manager(false); len(m.config.Ports) != 1 || len(r.all) != 1 {
		t.Errorf("without keys there are %+v, and kept are %+v", m.config, r.all)
	}
	m.config = c
	m.keep()
	if len(r.all) != 1 {
		t.Errorf("a key is kept: %+v", r.all)
	}
	m = manager(true)
	r.fail = errors.New("no space")
	m.config = configOf(28000)
	m.config.Ports[0].Public = 81
	m.keep()
	if len(r.all) != 0 {
		t.Errorf("what is not true any more is kept: %+v", r.all)
	}
	r.fail = nil
	m.keep()
	m.config = &gatewayfeed.Config{}
	m.keep()
	if len(r.all) != 0 {
		t.Errorf("what nobody tells any more is kept: %+v", r.all)
	}
	r.all["tcp/28000"], r.all["tcp/22"] = configOf(28001), configOf(22)
	if m = manager(true); m.config != nil || len(r.all) != 0 {
		t.Errorf("what cannot be was taken: %+v, %+v", m.config, r.all)
	}
}

// TestWithdrawal: as long as a proxy runs that is not at the agent's command, nobody says that it
// leads traffic nowhere.
func TestWithdrawal(t *testing.T) {
	said := ""
	m := New(Config{
		Dir:        t.TempDir(),
		Programmed: func(tables *service.Tables) { said = fmt.Sprint("tables ", tables != nil) },
		Unknown:    func() { said = "unknown" },
		Log:        slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	m.tellNone()
	if said != "tables false" {
		t.Errorf("without a proxy: %s", said)
	}
	proxy := exec.Command("sleep", "60")
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = proxy.Wait() }()
	defer func() { _ = proxy.Process.Kill() }()
	if err := remember(m.cfg.Dir, proxy.Process.Pid); err != nil {
		t.Fatal(err)
	}
	m.tell(service.NewTables())
	if said != "unknown" {
		t.Errorf("while one runs that does not answer: %s", said)
	}
	if err := End(m.cfg.Dir); err != nil {
		t.Fatal(err)
	}
	m.tellNone() // though nobody has waited for it
	if said != "tables false" {
		t.Errorf("when it has ended: %s", said)
	}
	if err := os.WriteFile(pidPath(m.cfg.Dir), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.tellNone()
	if said != "unknown" {
		t.Errorf("when it cannot be told which process it is: %s", said)
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
	asked, away := 0, false
	kept := &records{all: map[string]*gatewayfeed.Config{}}
	services := &known{tables: service.NewTables(serviceOf("hello", backend.Listener.Addr().String())),
		changed: make(chan struct{}, 1)}
	c := Config{
		Services: services, Dir: filepath.Join(dir, "run"), Program: program, User: 64731, Group: 64731,
		Kept: kept, KeepKeys: true,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Feed: func(ctx context.Context) (io.ReadCloser, error) {
			if asked++; away {
				return nil, errors.New("no coordinator is in reach")
			}
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

	// A reboot while no coordinator is in reach.
	if err := End(c.Dir); err != nil {
		t.Fatal(err)
	}
	away = true
	stop = run()
	harness.Eventually(t, "the proxy answers from what was kept", answers)
	stop()
	away = false
	services.tables = services.tables.With(map[service.Key]*service.Service{gateway.Key: nil})
	stop = run()
	harness.Eventually(t, "the proxy ends", func() (bool, string) {
		ok, got := answers()
		return !ok, got
	})
	stop()
	if len(kept.all) > 0 {
		t.Errorf("without a Gateway there is kept %v", kept.all)
	}
}
