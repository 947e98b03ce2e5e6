package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-project/shoal/tests/harness"
	"github.com/shoal-project/shoal/tests/upstream"
)

// The suite's release, and CoreDNS, which answers its datagrams: of what the suite asks for
// the nearest version on the module proxy.
const (
	version = "v1.6.0"
	suite   = "sigs.k8s.io/gateway-api/conformance@" + version
	api     = "sigs.k8s.io/gateway-api@" + version
	coreDNS = "github.com/coredns/coredns@v1.12.4"

	coreDNSPlugins = `package plugin

import (
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/whoami"
)
`
)

// images are what the suite's manifests name.
var images = []struct{ ref, program, entrypoint string }{
	{"registry.k8s.io/gateway-api/echo-basic:v1.5.1", "echo-basic", "/echo-basic"},
	{"registry.k8s.io/gateway-api/echo-basic:v1.6.0-dev.2", "echo-basic", "/echo-basic"},
	{"registry.k8s.io/gateway-api/echo-basic:v1.6.0-dev.3", "echo-basic", "/echo-basic"},
	{"registry.k8s.io/coredns/coredns:v1.12.2", "coredns", "/coredns"},
}

type options struct {
	bin, report     string
	profiles, focus string
	features        string
	nodes           int
	keep            bool
	timeout         time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory of the product's programs; the suite is built into bin/gateway")
	flag.StringVar(&o.report, "report", "bin/gateway/report", "directory of the log and the report")
	flag.StringVar(&o.profiles, "profiles", "GATEWAY-HTTP,GATEWAY-TLS,GATEWAY-GRPC", "profiles of the suite")
	flag.StringVar(&o.features, "features", "", "features beside those that the class says it has")
	flag.StringVar(&o.focus, "focus", os.Getenv("FOCUS"), "the one test to run; default FOCUS, all when empty")
	flag.IntVar(&o.nodes, "nodes", 2, "nodes of the cluster")
	flag.BoolVar(&o.keep, "keep", false, "keep the cluster running at the end")
	flag.DurationVar(&o.timeout, "timeout", time.Hour, "time after which the run ends")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return err
	}
	cache := filepath.Join(bin, "gateway")
	if o.report, err = filepath.Abs(o.report); err != nil {
		return err
	}
	if err := os.MkdirAll(o.report, 0o755); err != nil {
		return err
	}
	if err := build(ctx, cache); err != nil {
		return err
	}
	c, err := start(ctx, o, cache)
	if c != nil && !o.keep {
		defer func() {
			if serr := c.Stop(); serr != nil {
				fmt.Fprintln(os.Stderr, "gateway: stop the cluster:", serr)
			}
		}()
	}
	if err != nil {
		return err
	}
	return o.test(ctx, c, cache)
}

// build makes what is not in the cache directory yet.
func build(ctx context.Context, cache string) error {
	src := filepath.Join(cache, "src")
	if !upstream.Have(filepath.Join(src, "go.mod")) {
		if err := upstream.Source(ctx, suite, src); err != nil {
			return err
		}
		// The suite's module is beside the API's in their repository.
		file := filepath.Join(src, "go.mod")
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		text = bytes.ReplaceAll(text, []byte("replace sigs.k8s.io/gateway-api => ../"), nil)
		text = bytes.ReplaceAll(text, []byte("sigs.k8s.io/gateway-api v0.0.0-00010101000000-000000000000"),
			[]byte("sigs.k8s.io/gateway-api "+version))
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return err
		}
	}
	err := upstream.Build(ctx, suite, src, cache, []upstream.Program{
		{Name: "echo-basic", Package: "./echo-basic"},
		{Name: "gateway.test", Package: ".", Test: true},
	})
	if err != nil {
		return err
	}
	if err := upstream.Source(ctx, api, filepath.Join(cache, "api-src")); err != nil {
		return err
	}
	if upstream.Have(filepath.Join(cache, "coredns")) {
		return nil
	}
	src = filepath.Join(cache, "coredns-src")
	if err := upstream.Source(ctx, coreDNS, src); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(src, "core", "plugin", "zplugin.go"), []byte(coreDNSPlugins),
		0o644); err != nil {
		return err
	}
	return upstream.Build(ctx, coreDNS, src, cache, []upstream.Program{{Name: "coredns", Package: "."}})
}

// pack makes an image's archive in a directory that an agent imports from.
func pack(ctx context.Context, cache, dir string) error {
	for _, i := range images {
		name := strings.NewReplacer("/", "-", ":", "-").Replace(i.ref) + ".tar"
		out, err := exec.CommandContext(ctx, upstream.GoProgram(), "run", "./hack/image", "-name", i.ref,
			"-out", filepath.Join(dir, name), "-entrypoint", i.entrypoint,
			filepath.Join(cache, i.program)+"="+i.entrypoint).CombinedOutput()
		if err != nil {
			return fmt.Errorf("pack %s: %w: %s", i.ref, err, out)
		}
	}
	return nil
}

// start starts a cluster that has the definitions and a class.
func start(ctx context.Context, o options, cache string) (*harness.Cluster, error) {
	c, err := harness.Prepare("gw")
	if err != nil {
		return c, err
	}
	fmt.Println("cluster:", c.Dir, "network namespace:", c.NetNS)
	if err := pack(ctx, cache, filepath.Join(c.Dir, "images")); err != nil {
		return c, err
	}
	if err := c.Up(); err != nil {
		return c, err
	}
	for i := 2; i <= o.nodes; i++ {
		a, err := c.Host("node" + strconv.Itoa(i))
		if err == nil {
			err = a.Start()
		}
		if err != nil {
			return c, err
		}
	}
	definitions := filepath.Join(cache, "api-src", "config", "crd", "standard")
	if _, err := c.Kubectl("", "apply", "--server-side", "-f", definitions); err != nil {
		return c, err
	}
	if _, err := c.Kubectl("", "wait", "--for=condition=Established", "crd",
		"gatewayclasses.gateway.networking.k8s.io", "--timeout=60s"); err != nil {
		return c, err
	}
	if _, err = c.Kubectl(class, "apply", "-f", "-"); err != nil {
		return c, err
	}
	// The suite runs what the class says it can.
	_, err = c.Kubectl("", "wait", "--for=condition=Accepted", "gatewayclass/shoal", "--timeout=60s")
	return c, err
}

const class = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: shoal}
spec: {controllerName: shoal-project.io/gateway}
`

// test runs the suite where a node is, so that it reaches cluster IPs.
func (o options) test(ctx context.Context, c *harness.Cluster, cache string) error {
	log, err := os.Create(filepath.Join(o.report, "gateway.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"--net=/run/netns/" + c.NetNS, "--", filepath.Join(cache, "gateway.test"), "-test.v",
		"-test.run=^TestConformance$",
		"-test.timeout=" + o.timeout.String(), "-gateway-class=shoal", "-conformance-profiles=" + o.profiles,
		"-report-output=" + filepath.Join(o.report, "report.yaml"), "-organization=shoal", "-project=shoal",
		"-url=https://github.com/shoal-project/shoal", "-version=v1.36", "-contact=none",
		"-cleanup-base-resources=false",
		"-debug=false"}
	if o.features != "" {
		args = append(args, "-supported-features="+o.features)
	}
	if o.focus != "" {
		args = append(args, "-run-test="+o.focus)
	}
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stdout, log), log
	cmd.Dir = o.report
	cmd.Env = append(os.Environ(), "HOME="+o.report, "KUBECONFIG="+c.Kubeconfig())
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("conformance of the Gateway API: %w (log: %s)", err, log.Name())
	}
	return nil
}
