package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
	"github.com/shoal-project/shoal/tests/upstream"
)

// testHandler is the handler of the suite's RuntimeClasses, which nodes have.
const testHandler = "test-handler"

// Of a cluster with both address families.
const (
	bothPods     = "10.244.0.0/16,fd00:10:244::/56"
	bothServices = "10.96.0.0/16,fd00:10:96::/112"
	bothDNS      = "10.96.0.10,fd00:10:96::a"
)

// pool is of addresses that no machine of the cluster's network has.
const pool = `
apiVersion: v1
kind: ConfigMap
metadata: {name: shoal-load-balancer, namespace: kube-system}
data:
  pool: |
    addresses: [10.99.0.100-10.99.0.150]
`

// startCluster starts a cluster whose nodes have the suite's images. After an
// error the cluster, if there is one, has to be stopped as well.
func startCluster(ctx context.Context, o options, archive string) (*harness.Cluster, error) {
	c, err := harness.Prepare("cf")
	if err != nil {
		return c, err
	}
	fmt.Println("cluster:", c.Dir, "network namespace:", c.NetNS)
	// The agent takes no symbolic links; the directories may be on two disks.
	suiteArchive := filepath.Join(c.Dir, "images", filepath.Base(archive))
	if err := os.Link(archive, suiteArchive); err != nil {
		if err := upstream.CopyFile(archive, suiteArchive); err != nil {
			return c, err
		}
	}
	mirrors, err := serveRegistry(c, archive, o)
	if err != nil {
		return c, fmt.Errorf("registry: %w", err)
	}
	flags := []string{"--registry-config-dir", mirrors, "--runtime-handlers", testHandler + "=runc"}
	if o.dualStack() {
		v6, err := c.AddIPv6()
		if err != nil {
			return c, err
		}
		flags = append(flags, "--cluster-cidr", bothPods, "--service-cidr", bothServices, "--cluster-dns", bothDNS,
			"--node-ip", c.Address+","+v6)
	}
	if err := c.Up(flags...); err != nil {
		return c, err
	}
	last := o.nodes
	if o.machines() {
		last++ // the first is no machine, and has no pods of specs
	}
	for i := 2; i <= last; i++ {
		a, err := c.Host("node"+strconv.Itoa(i), func(a *harness.Agent, cfg *agentconfig.Config) {
			cfg.RegistryConfigDir, cfg.RuntimeHandlers = mirrors, map[string]string{testHandler: "runc"}
			if o.dualStack() {
				cfg.NodeIP = a.Address + "," + a.Address6()
				cfg.ClusterCIDR, cfg.ServiceCIDR, cfg.ClusterDNS = bothPods, bothServices, strings.Split(bothDNS, ",")
			}
			if o.machines() {
				harness.Machine(a, cfg)
			}
		})
		if err == nil && o.storage() {
			disk := filepath.Join(a.Dir, "disk")
			a.Disk(disk)
			err = newDisk(disk)
		}
		if err == nil {
			err = a.Start()
		}
		if err != nil {
			return c, err
		}
	}
	if _, err = c.Kubectl("", "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s"); err != nil {
		return c, err
	}
	logs := []string{filepath.Join(c.Dir, "log", "agent.log")}
	for i := 2; i <= last; i++ {
		logs = append(logs, filepath.Join(c.Dir, "node"+strconv.Itoa(i), "agent.log"))
	}
	if err := waitForImport(suiteArchive, logs); err != nil {
		return c, err
	}
	if o.loadBalancer() {
		if _, err := c.Kubectl(pool, "apply", "-f", "-"); err != nil {
			return c, err
		}
	}
	if !o.machines() {
		return c, labelZones(c, o.nodes, o.zones)
	}
	_, err = c.Kubectl("", "taint", "node", "node1", "node-role.kubernetes.io/control-plane:NoSchedule")
	if err == nil && o.storage() {
		err = installSnapshots(ctx, c, filepath.Dir(archive))
	}
	return c, err
}

// labelZones spreads the nodes over zones: specs of topology ask for three.
func labelZones(c *harness.Cluster, nodes, zones int) error {
	for i := range nodes {
		if zones == 0 {
			return nil
		}
		name, zone := "node"+strconv.Itoa(i+1), "zone"+strconv.Itoa(i%zones+1)
		if _, err := c.Kubectl("", "label", "node", name, corev1.LabelTopologyZone+"="+zone); err != nil {
			return err
		}
	}
	return nil
}

// waitForImport waits until all agents have logged the archive's import: no
// spec has to find that its image cannot be pulled. It reads the logs again and
// again, five times a second among minutes.
func waitForImport(archive string, logs []string) error {
	deadline := time.Now().Add(5 * time.Minute)
	for _, log := range logs {
		for {
			data, err := os.ReadFile(log)
			if err == nil && bytes.Contains(data, []byte(archive)) {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s does not tell of the import of %s: %w", log, archive, err)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	return nil
}

// suite is a run of e2e.test.
type suite struct {
	cluster       *harness.Cluster
	cache, report string
	names         []string // of the specs, where not all
	options       options
	node          *nodeMachine // of the suite of nodes
	netns         string       // where it runs, unless on a machine of nodes
}

// start starts what the specs run on. After an error the cluster, if there is one, has to be
// stopped as well.
func (s *suite) start(ctx context.Context, archive string) (c *harness.Cluster, err error) {
	if err := os.RemoveAll(s.report); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.report, 0o755); err != nil {
		return nil, err
	}
	if s.options.node {
		s.node, c, err = startNode(ctx, s.options, archive)
	} else {
		c, err = startCluster(ctx, s.options, archive)
	}
	s.cluster = c
	if err == nil {
		s.netns = c.NetNS
	}
	if err == nil && s.options.loadBalancer() {
		s.netns, _, err = c.Far() // a client with an address as the nodes' is taken for a node
	}
	return c, err
}

// run runs the specs on the first machine, or beside it. That some fail is no error.
func (s suite) run(ctx context.Context) error {
	if s.node != nil {
		return s.node.run(ctx, s)
	}
	args := append([]string{"--net=/run/netns/" + s.netns, "--", filepath.Join(s.cache, "ginkgo")},
		s.ginkgoArgs()...)
	args = append(append(args, filepath.Join(s.cache, "e2e.test"), "--"), s.suiteArgs()...)
	log, err := os.Create(filepath.Join(s.report, "e2e.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Println("log:", log.Name())
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = s.report
	// The variable has the specs of groups of snapshots run.
	cmd.Env = append(os.Environ(), "HOME="+s.report, "CSI_PROW_ENABLE_GROUP_SNAPSHOT=true")
	runErr := cmd.Run()
	if _, err := os.Stat(filepath.Join(s.report, "report.json")); err != nil {
		return fmt.Errorf("the suite wrote no report: %w (log: %s)", runErr, log.Name())
	}
	return nil
}

func (s suite) ginkgoArgs() []string {
	o := s.options
	args := []string{
		"run", "--procs=" + strconv.Itoa(o.jobs), "--label-filter=" + o.labelFilter(), "--timeout=" + o.timeout.String(),
		"--grace-period=10s", "--no-color", "--keep-going",
		"--silence-skips", "--output-dir=" + s.report, "--json-report=report.json", "--junit-report=junit.xml",
	}
	if o.focus != "" && s.names == nil { // ginkgo runs what any focus matches
		args = append(args, "--focus="+o.focus)
	}
	if o.skip != "" {
		args = append(args, "--skip="+o.skip)
	}
	for _, n := range s.names {
		args = append(args, "--focus="+exactly(n))
	}
	return args
}

// exactly matches the spec of a name. Where a container of the suite has no text the name in
// its report has two spaces, and that which ginkgo matches has one.
func exactly(name string) string {
	return strings.ReplaceAll(regexp.QuoteMeta(name), "  ", " +") + "$"
}

func (s suite) suiteArgs() []string {
	c := s.cluster
	return append([]string{
		"--provider=local", "--kubeconfig=" + c.Kubeconfig(), "--host=https://" + c.Address + ":6443",
		"--kubectl-path=" + filepath.Join(c.Bin, "kubectl"),
		"--num-nodes=" + strconv.Itoa(s.options.nodes), "--allowed-not-ready-nodes=0", "--disable-log-dump=true",
		"--dump-logs-on-failure=false", "--report-dir=" + s.report,
	}, s.options.externalDriver()...)
}
