package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	coordinatorconfig "github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/tests/harness"
	"github.com/shoal-project/shoal/tests/upstream"
)

// The suite of nodes runs on the node itself: it looks at the node's files and cgroups, calls
// the runtime, rewrites the kubelet's configuration and restarts the kubelet by systemctl.
// Its node is a machine of the harness whose agent is a service, which this process is asked
// to end and to start; the suite's calls of sudo and systemctl are those of a directory of
// links to this program.

// nodeSpecs are those of the suite of nodes that -labels does not choose: they need a proxy
// in front of the runtime, images that only upstream has, or a kubelet without an API server,
// which -criproxy and -standalone give them.
const nodeSpecs = "!Flaky && !Benchmark && !NodeSpecialFeature && !(Feature: containsAny {CriProxy, StandaloneMode})"

// proxySpecs are those that need the proxy, which -criproxy gives them.
const proxySpecs = "Feature: containsAny CriProxy"

const (
	nodeResults = "tests/conformance/node.txt"
	beginNode   = "<!-- totals of the suite of nodes: written by make node-suite -->\n"

	// outsideResults is the record of what ran on a containerd.
	outsideResults = "tests/conformance/nodecontainerd.txt"
	beginOutside   = "<!-- totals of nodes on containerd: written by make node-suite ARGS=-containerd -->\n"

	// unitName is what the suite takes for the kubelet's unit.
	unitName = "kubelet-shoal"
	// unitAddress is where this process is asked to end and start the agent.
	unitAddress = "127.0.0.1:10247"
)

// nodeMachine is the node of a run.
type nodeMachine struct {
	cluster *harness.Cluster
	agent   *harness.Agent
	token   string
	// outside is its runtime; nil: the agent's own.
	outside *outsideRuntime
	// standalone: the agent knows no API server. There is one all the same, for the suite.
	// proxied: the suite makes a proxy of the runtime, which the agent is to use.
	standalone, proxied bool
	proxySocket         string // the proxy's, which it leaves
	// dir is the directory of the run's link to the suite's program, which ginkgo runs it
	// in: there it writes the kubelet's configuration.
	dir string

	mu     sync.Mutex
	base   map[string]any // the agent's configuration at the beginning
	wanted bool           // the agent is to run: it is started again when it ends, as by its unit
}

// restartAfter is the RestartSec of the agent's unit.
const restartAfter = 500 * time.Millisecond

// keepUp starts the agent again when it has ended by itself, or was killed.
func (n *nodeMachine) keepUp(ctx context.Context) {
	for tick := time.NewTicker(restartAfter); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		n.mu.Lock()
		if n.wanted && !n.agent.Running() {
			if err := n.agent.Start(); err != nil {
				fmt.Fprintln(os.Stderr, "conformance: start the agent again:", err)
			}
		}
		n.mu.Unlock()
	}
}

// startNode starts a coordinator and one node. After an error the cluster, if there is
// one, has to be stopped as well.
func startNode(ctx context.Context, o options, archive string) (*nodeMachine, *harness.Cluster, error) {
	c, err := harness.Prepare("nd")
	if err != nil {
		return nil, c, err
	}
	fmt.Println("cluster:", c.Dir)
	suiteArchive := filepath.Join(c.Dir, "images", filepath.Base(archive))
	if err := os.Link(archive, suiteArchive); err != nil {
		if err := upstream.CopyFile(archive, suiteArchive); err != nil {
			return nil, c, err
		}
	}
	mirrors, err := serveRegistry(c, archive, o)
	if err != nil {
		return nil, c, fmt.Errorf("registry: %w", err)
	}
	if err := c.UpCoordinator(func(cfg *coordinatorconfig.Config) {
		cfg.DisableAdmissionPlugins = []string{"ServiceAccount", "TaintNodesByCondition"} // as the suite's own server
	}); err != nil {
		return nil, c, err
	}
	a, err := c.Host("node1", func(a *harness.Agent, cfg *agentconfig.Config) {
		harness.Service(a, cfg)
		cfg.RegistryConfigDir, cfg.RuntimeHandlers = mirrors, map[string]string{testHandler: "runc"}
		if o.outside() {
			cfg.ContainerRuntimeEndpoint = "unix://" + outsideDir(a, "s")
		}
		cfg.StaticPodPath = filepath.Join(a.Dir, "manifests")
		if o.standalone {
			cfg.Address = a.Address // 127.0.0.1 is the rig's
		}
		// As the kubelet has that the suite would start.
		unlimited := int64(-1)
		cfg.PodPidsLimit = &unlimited
		cfg.EvictionPressureTransitionPeriod = metav1.Duration{Duration: 30 * time.Second}
	})
	if err != nil {
		return nil, c, err
	}
	n := &nodeMachine{cluster: c, agent: a, dir: filepath.Join(c.Dir, "suite"), standalone: o.standalone,
		proxied: o.criproxy}
	imported := func() error { return waitForImport(suiteArchive, []string{filepath.Join(a.Dir, "agent.log")}) }
	if o.outside() {
		imported = func() error { return nil } // by start
		if n.outside, err = newOutsideRuntime(a, filepath.Dir(archive), o.bin, mirrors); err != nil {
			return nil, c, err
		}
	}
	if err := n.start(); err != nil {
		return n, c, err
	}
	if o.standalone {
		if err := n.ready(); err != nil {
			return n, c, err
		}
		return n, c, imported()
	}
	if _, err = c.Kubectl("", "wait", "--for=create", "node/node1", "--timeout=60s"); err == nil {
		_, err = c.Kubectl("", "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s")
	}
	if err != nil {
		return n, c, fmt.Errorf("%w: %s", err, a.Logs())
	}
	return n, c, imported()
}

// start starts the agent and what the suite needs beside it.
func (n *nodeMachine) start() error {
	data, err := os.ReadFile(n.agent.Config())
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(data, &n.base); err != nil {
		return err
	}
	if n.standalone {
		delete(n.base, "kubeconfig")
		delete(n.base, "join")
		if data, err = yaml.Marshal(n.base); err != nil {
			return err
		}
		if err := os.WriteFile(n.agent.Config(), data, 0o600); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(n.agent.Dir, "manifests"), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(n.dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"sudo", "systemctl"} {
		if err := n.link(name); err != nil {
			return err
		}
	}
	if err := n.agent.Start(); err != nil {
		return err
	}
	if n.outside != nil {
		if err := n.outside.start(filepath.Join(n.cluster.Dir, "images")); err != nil {
			return err
		}
	}
	if err := n.serveLogind(); err != nil {
		return err
	}
	if n.token, err = n.administrator(); err != nil {
		return err
	}
	return n.serve()
}

func (n *nodeMachine) programs() string { return filepath.Join(n.cluster.Dir, "programs") }

func (n *nodeMachine) link(name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(n.programs(), 0o755); err != nil {
		return err
	}
	return os.Symlink(self, filepath.Join(n.programs(), name))
}

// administrator returns a token that may do anything.
func (n *nodeMachine) administrator() (string, error) {
	k := n.cluster.Kubectl
	if _, err := k("", "create", "serviceaccount", "suite", "-n", "kube-system"); err != nil {
		return "", err
	}
	if _, err := k("", "create", "clusterrolebinding", "suite", "--clusterrole=cluster-admin",
		"--serviceaccount=kube-system:suite"); err != nil {
		return "", err
	}
	token, err := k("", "create", "token", "suite", "-n", "kube-system", "--duration=24h")
	return strings.TrimSpace(token), err
}

// unit does what systemctl was asked to. Only what the suite calls is there.
func (n *nodeMachine) unit(verb string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch verb {
	case "reset-failed":
		return nil
	case "kill", "stop":
		n.wanted = false
		if !n.agent.Running() {
			return nil
		}
		return n.agent.Halt(syscall.SIGTERM)
	case "start", "restart":
		if n.agent.Running() {
			if verb == "start" {
				return nil
			}
			if err := n.agent.Halt(syscall.SIGTERM); err != nil {
				return err
			}
		}
		if err := n.takeConfiguration(); err != nil {
			return err
		}
		if err := n.agent.Start(); err != nil {
			return err
		}
		n.wanted = true
		return n.ready()
	}
	return fmt.Errorf("%q is not what this systemctl does", verb)
}

// ready returns when the agent's runtime answers, as systemctl does when the agent says that
// it is ready; of an agent whose runtime is another's, when the agent itself does.
func (n *nodeMachine) ready() error {
	err := answers(func() (net.Conn, error) { return net.Dial("unix", n.runtime()) })
	if n.outside != nil {
		err = answers(func() (conn net.Conn, err error) {
			_ = harness.Inside(n.agent.NetNS, func() error {
				conn, err = net.Dial("tcp", net.JoinHostPort(n.agent.Address, "10250"))
				return nil
			})
			return conn, err
		})
	}
	if err != nil {
		return fmt.Errorf("the agent does not come up: %w: %s", err, n.agent.Logs())
	}
	return nil
}

// answers returns when a connection can be made, within a minute. A socket that is not there
// yet has no event here.
func answers(dial func() (net.Conn, error)) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		conn, err := dial()
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

func (n *nodeMachine) runtime() string {
	if n.outside != nil {
		return n.outside.Socket()
	}
	return filepath.Join(n.agent.Dir, "run", "cri.sock")
}

// stop ends what Cluster.Stop does not know of.
func (n *nodeMachine) stop() error {
	if n.outside == nil {
		return nil
	}
	var err error
	if n.agent.Running() {
		err = n.agent.Halt(syscall.SIGTERM)
	}
	if n.proxySocket != "" {
		_ = os.Remove(n.proxySocket)
	}
	return errors.Join(err, n.outside.stop())
}

// takeConfiguration writes the agent's configuration of the kubelet's that the suite wrote.
func (n *nodeMachine) takeConfiguration() error {
	data, err := os.ReadFile(n.configuration())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	kubelet := map[string]any{}
	if err := yaml.Unmarshal(data, &kubelet); err != nil {
		return err
	}
	out, err := yaml.Marshal(agentConfiguration(n.base, kubelet))
	if err != nil {
		return err
	}
	return os.WriteFile(n.agent.Config(), out, 0o600)
}

// taken are the fields of a KubeletConfiguration that the agent's has by the same name and
// that say nothing about where the node is.
var taken = []string{
	"staticPodPath", "staticPodURL", "staticPodURLHeader", "httpCheckFrequency", "fileCheckFrequency",
	"tlsCertFile", "tlsPrivateKeyFile", "maxPods", "nodeLeaseDurationSeconds", "nodeStatusReportFrequency",
	"nodeStatusMaxImages", "systemReserved", "kubeReserved", "memoryReservationPolicy", "memoryThrottlingFactor",
	"cpuManagerPolicy", "cpuManagerPolicyOptions", "reservedSystemCPUs", "memoryManagerPolicy", "reservedMemory",
	"topologyManagerPolicy", "topologyManagerScope", "topologyManagerPolicyOptions", "cpuCFSQuota", "cpuCFSQuotaPeriod",
	"failSwapOn", "memorySwap", "evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim",
	"mergeDefaultEvictionSettings", "evictionMaxPodGracePeriod", "evictionPressureTransitionPeriod",
	"imageGCHighThresholdPercent", "imageGCLowThresholdPercent", "imageMinimumGCAge", "imageMaximumGCAge",
	"seccompDefault", "podPidsLimit", "userNamespaces", "maxParallelImagePulls", "serializeImagePulls",
	"singleProcessOOMKill", "containerLogMaxSize", "containerLogMaxFiles", "shutdownGracePeriod",
	"shutdownGracePeriodCriticalPods", "shutdownGracePeriodByPodPriority",
	"allowedUnsafeSysctls", "imagePullCredentialsVerificationPolicy", "preloadedImagesVerificationAllowlist",
	"enableSystemLogHandler",
}

// agentConfiguration is base with what the kubelet's configuration says. A field that this
// leaves out has the default again.
func agentConfiguration(base, kubelet map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range base {
		if !slices.Contains(taken, k) {
			out[k] = v
		}
	}
	for _, k := range taken {
		if v, ok := kubelet[k]; ok {
			out[k] = v
		}
	}
	if back, ok := kubelet["crashLoopBackOff"].(map[string]any); ok {
		out["maxContainerRestartPeriod"] = back["maxContainerRestartPeriod"]
	}
	if auth, ok := kubelet["authentication"].(map[string]any); ok {
		if x509, ok := auth["x509"].(map[string]any); ok && x509["clientCAFile"] != nil {
			out["clientCAFile"] = x509["clientCAFile"]
		}
	}
	if taints, ok := kubelet["registerWithTaints"].([]any); ok {
		var list []string
		for _, t := range taints {
			if t, ok := t.(map[string]any); ok {
				value, _ := t["value"].(string)
				list = append(list, fmt.Sprintf("%v=%s:%v", t["key"], value, t["effect"]))
			}
		}
		out["registerWithTaints"] = list
	}
	return out
}

// run runs the suite on the node. That some specs fail is no error.
func (n *nodeMachine) run(ctx context.Context, s suite) error {
	if err := n.writeConfiguration(s.report); err != nil {
		return err
	}
	program := filepath.Join(n.dir, "e2e_node.test")
	if err := os.Symlink(filepath.Join(s.cache, "e2e_node.test"), program); err != nil {
		return err
	}
	// Specs look for lines of the kubelet's log there.
	kubeletLog := filepath.Join(s.report, "kubelet.log")
	if err := os.Symlink(filepath.Join(n.agent.Dir, "agent.log"), kubeletLog); err != nil {
		return err
	}
	defer os.Remove(kubeletLog)
	log, err := os.Create(filepath.Join(s.report, "e2e.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Println("log:", log.Name())
	args := append([]string{"PATH=" + n.programs() + ":" + os.Getenv("PATH"),
		filepath.Join(s.cache, "ginkgo")}, s.ginkgoArgs()...)
	args = append(args, program, "--")
	runtime := "unix://" + n.runtime()
	args = append(args, "--host=http://127.0.0.1:8080", "--bearer-token="+n.token, "--node-name=node1",
		"--start-services=false", "--stop-services=false", "--prepull-images=false",
		"--container-runtime-endpoint="+runtime, "--image-service-endpoint="+runtime,
		"--container-runtime-process-name="+n.runtimeProgram(), "--container-runtime-pid-file=",
		"--cri-proxy-enabled="+strconv.FormatBool(n.proxied),
		"--system-spec-file="+filepath.Join(s.report, "system-spec.yaml"),
		"--standalone-mode="+strconv.FormatBool(n.standalone),
		"--report-dir="+s.report, "--dns-domain=cluster.local", "--config-dir="+filepath.Join(s.report, "kubelet.conf.d"))
	n.mu.Lock()
	n.wanted = true
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.wanted = false // before the cluster is stopped
		n.mu.Unlock()
	}()
	keeping, stop := context.WithCancel(ctx)
	defer stop()
	go n.keepUp(keeping)
	cmd := n.agent.Command("env", args...)
	cmd.Dir = s.report
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err = <-done:
	case <-ctx.Done():
		// Those of the machine: a terminal would tell all of them, too.
		_ = n.agent.Command("pkill", "-INT", "ginkgo|e2e_node").Run()
		select {
		case err = <-done:
		case <-time.After(5 * time.Minute): // specs under way clean up
			_ = cmd.Process.Kill()
			err = ctx.Err()
		}
	}
	if _, serr := os.Stat(filepath.Join(s.report, "report.json")); serr != nil {
		return fmt.Errorf("the suite wrote no report: %w (log: %s)", err, log.Name())
	}
	return nil
}

func (n *nodeMachine) runtimeProgram() string {
	if n.outside != nil {
		return "containerd"
	}
	return "shoal-agent"
}

// writeConfiguration writes the kubelet's configuration where the suite looks for it.
func (n *nodeMachine) writeConfiguration(report string) error {
	text, err := n.configz()
	if err != nil {
		return err
	}
	var configz struct {
		Kubelet json.RawMessage `json:"kubeletconfig"`
	}
	if err := json.Unmarshal([]byte(text), &configz); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(report, "system-spec.yaml"), []byte("os: Linux\n"), 0o644); err != nil {
		return err
	}
	// Where one spec writes further configuration, with fields that the agent does not have.
	if err := os.Mkdir(filepath.Join(report, "kubelet.conf.d"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(n.configuration(), configz.Kubelet, 0o644)
}

// configz is what the agent tells of its configuration.
func (n *nodeMachine) configz() (string, error) {
	if !n.standalone {
		return n.cluster.Kubectl("", "get", "--raw", "/api/v1/nodes/node1/proxy/configz")
	}
	out, err := n.agent.Command("curl", "-sf", "http://127.0.0.1:10255/configz").Output()
	return string(out), err
}

func (n *nodeMachine) configuration() string { return filepath.Join(n.dir, "kubelet-config") }

// called is what this program does under the names sudo and systemctl.
func called(name string, args []string) (int, bool) {
	switch name {
	case "sudo":
		if len(args) == 0 {
			return 1, true
		}
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return 1, true
		}
		return 0, true
	case "systemctl":
		verb := ""
		if len(args) > 0 {
			verb = args[0]
		}
		running := slices.Contains(args, "--state=running")
		if err := ask(verb + "?running=" + strconv.FormatBool(running)); err != nil {
			fmt.Fprintln(os.Stderr, "systemctl:", err)
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

func ask(path string) error {
	resp, err := http.Post("http://"+unitAddress+"/"+path, "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, text)
	}
	_, err = os.Stdout.Write(text)
	return err
}
