package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/jointoken"
	"github.com/shoal-project/shoal/coordinator/joinapi"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// agentConfigFile is the agent's configuration where its unit looks for it.
const agentConfigFile = "/etc/shoal/agent.yaml"

// joinOptions are the flags of `shoal join`.
type joinOptions struct {
	config, nodeName, nodeIP, caFile string
	noStart                          bool
	encrypts                         bool
	encryption                       *bool // nil: as the file has it
	as                               coordinatorOptions
	timeout                          time.Duration
}

func joinCommand() *cobra.Command {
	c, _ := newJoinCommand()
	return c
}

func newJoinCommand() (*cobra.Command, *joinOptions) {
	o := &joinOptions{}
	c := &cobra.Command{
		Use: "join TOKEN", Short: "Make this machine a node of the cluster that the token is of (- reads it from standard input)",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.takeFlags(cmd.Flags())
			if args[0] != "-" {
				return o.join(cmd.Context(), args[0], os.Stdout)
			}
			text, err := io.ReadAll(io.LimitReader(os.Stdin, 64<<10))
			if err != nil {
				return err
			}
			return o.join(cmd.Context(), string(text), os.Stdout)
		},
	}
	f := c.Flags()
	f.StringVar(&o.config, "config", agentConfigFile, "the agent's configuration file; what it says beside the cluster stays")
	f.StringVar(&o.nodeName, "node-name", "", "name of this node (default: that of the file, or the host's)")
	f.StringVar(&o.nodeIP, "node-ip", "", "address of this node (default: that of the file, or of the default route)")
	f.StringVar(&o.caFile, "ca-file", "", "the cluster's ca.crt, where coordinators answer nobody that they do not know")
	f.BoolVar(&o.encrypts, "encryption", false, "encrypt what pods send to those of other nodes that encrypt too (default: as the file says)")
	f.BoolVar(&o.noStart, "no-start", false, "write the configuration and start nothing")
	o.as.flags(f)
	f.DurationVar(&o.timeout, "timeout", startTimeout, "how long the node may take to be Ready")
	return c, o
}

// takeFlags takes what counts only when it was said.
func (o *joinOptions) takeFlags(f *pflag.FlagSet) {
	if f.Changed("encryption") {
		o.encryption = &o.encrypts
	}
}

// fits tells which flags do not go with each other.
func (o *joinOptions) fits() error {
	if o.encryption != nil && (o.as.coordinator || o.as.witness) {
		return errors.New("--encryption is about a node's pods: it does not go with --coordinator and --witness")
	}
	return nil
}

// join makes this machine a node. What it writes is complete when the kubeconfig is
// there: until then it may be repeated with the same token.
func (o *joinOptions) join(ctx context.Context, text string, out io.Writer) error {
	steps := &steps{out: out, start: time.Now()}
	t, err := jointoken.Decode(text)
	if err != nil {
		return err
	}
	if err := errors.Join(o.fits(), o.as.fits(t)); err != nil {
		return err
	}
	if o.as.coordinator || o.as.witness {
		return o.joinCoordinators(ctx, t, steps)
	}
	if err := preflight(); err != nil {
		return err
	}
	m, err := o.machine()
	if err != nil {
		return err
	}
	joined, err := m.joined(t)
	if err != nil {
		return err
	}
	if joined {
		if o.encryption != nil && *o.encryption != m.cfg.Encryption {
			return fmt.Errorf("this machine is a node of that cluster already: write `encryption: %t` into %s and restart the agent",
				*o.encryption, m.file)
		}
		steps.done("this machine is node %s of that cluster already", m.name)
		return o.start(ctx, m, steps)
	}
	if err := m.free(); err != nil {
		return err
	}
	if err := o.enter(ctx, m, t, steps); err != nil {
		return err
	}
	return o.start(ctx, m, steps)
}

// machine is what this machine has of a node before and after.
type machine struct {
	file string // its configuration
	cfg  agentconfig.Config
	name string
	// changes are what the flags say of the configuration.
	changes map[string]any
}

func (o *joinOptions) machine() (*machine, error) {
	m := &machine{file: o.config, changes: map[string]any{}}
	if err := m.load(); err != nil {
		return nil, err
	}
	m.name = cmp.Or(o.nodeName, m.cfg.NodeName)
	if o.nodeIP != "" {
		m.changes["nodeIP"] = o.nodeIP
	}
	if o.encryption != nil {
		m.changes["encryption"] = *o.encryption
	}
	if m.name == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("--node-name: %w", err)
		}
		m.name = strings.ToLower(host)
	}
	if wrong := validation.IsDNS1123Subdomain(m.name); len(wrong) > 0 {
		return nil, fmt.Errorf("--node-name %q: %s", m.name, wrong[0])
	}
	m.changes["nodeName"] = m.name // as the certificate has it, whatever the host is called later
	var err error
	if o.config, err = filepath.Abs(o.config); err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	m.file = o.config
	return m, nil
}

// load reads the agent's configuration; none is that of a new machine.
func (m *machine) load() error {
	m.cfg = agentconfig.Default()
	err := m.cfg.LoadKnown(m.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (m *machine) path(name string) string { return filepath.Join(m.cfg.DataDir, name) }

// kubeconfig is where the node's is, or is to be.
func (m *machine) kubeconfig() string {
	if m.cfg.Kubeconfig != "" {
		return m.cfg.Kubeconfig
	}
	return m.path("kubeconfig")
}

// joined tells whether this machine is a node of the token's cluster; being one of
// another is an error.
func (m *machine) joined(t jointoken.Token) (bool, error) {
	data, err := os.ReadFile(m.kubeconfig())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	k, err := parseKubeconfig(data, m.kubeconfig())
	if err != nil {
		return false, fmt.Errorf("%w; move it away", err)
	}
	id, err := k.identity(m.kubeconfig())
	if err != nil {
		return false, err
	}
	if id, err = m.newest(id); err != nil {
		return false, fmt.Errorf("%s: client certificate: %w", m.kubeconfig(), err)
	}
	if !slices.ContainsFunc(certificates(id.ca), isCA(t)) {
		return false, fmt.Errorf("this machine is a node of another cluster, at %s: run `shoal leave` first",
			k.Clusters[0].Cluster.Server)
	}
	cert, err := certificate(id.cert)
	if err != nil {
		return false, fmt.Errorf("%s: client certificate: %w", m.kubeconfig(), err)
	}
	name := strings.TrimPrefix(cert.Subject.CommonName, "system:node:")
	if name != m.name {
		return false, fmt.Errorf("this machine is node %s of that cluster already, not %s: run `shoal leave` first",
			name, m.name)
	}
	return time.Now().Before(cert.NotAfter), nil // else its pods wait for another certificate
}

// free finds what else uses this machine as a node.
func (m *machine) free() error {
	o, err := load(defaultOptions().DataDir)
	if err == nil && o.agentDir() == m.cfg.DataDir && running(o.path("shoal.pid"), "shoal") != nil {
		return errors.New("a cluster of `shoal up` runs on this machine: end it with `shoal down` first")
	}
	return nil
}

// enter gets what the node needs of the cluster and writes it down.
func (o *joinOptions) enter(ctx context.Context, m *machine, t jointoken.Token, steps *steps) error {
	var ca []byte
	if o.caFile != "" {
		var err error
		if ca, err = os.ReadFile(o.caFile); err != nil {
			return fmt.Errorf("--ca-file: %w", err)
		}
	}
	cluster, err := discover(ctx, t, ca)
	if err != nil {
		return err
	}
	steps.done("coordinator at %s is of the token's cluster", cluster.server)
	if err := cluster.ask(ctx, t, m.name); err != nil {
		return err
	}
	if err := os.MkdirAll(m.cfg.DataDir, 0o700); err != nil {
		return err
	}
	key, keyPEM, err := joiningKey(m.path("joining.key"))
	if err != nil {
		return err
	}
	request, err := newSigningRequest(key, m.name, t.ID)
	if err != nil {
		return err
	}
	cert, err := sign(ctx, cluster.client, request)
	if errors.Is(err, errDenied) {
		_ = os.Remove(m.path("joining.key")) // the next try is another request
	}
	if err != nil {
		return err
	}
	steps.done("node %s has a certificate", m.name)
	id := identity{cert: cert, key: keyPEM, ca: cluster.ca}
	node, err := settings(ctx, cluster.server, id)
	if err != nil {
		return err
	}
	if err := m.write(node, cluster.server, id); err != nil {
		return err
	}
	steps.done("configuration in %s", m.file)
	return os.Remove(m.path("joining.key"))
}

// settings asks by the node's own certificate: the gossip's keys are for nodes.
func settings(ctx context.Context, server string, id identity) (node joinapi.Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	client, err := connectAs(server, apiName, id, "the node's certificate")
	if err == nil {
		err = client.read(ctx, joinapi.NodePath, &node)
	}
	if err != nil {
		return node, fmt.Errorf("ask for the node's settings: %w", err)
	}
	return node, nil
}

// knownFile is where the agent keeps the addresses of coordinators.
const knownFile = "coordinators.json"

// write makes the files of a node, the kubeconfig last.
func (m *machine) write(node joinapi.Node, server string, id identity) error {
	if len(node.GossipKeys) > 0 {
		if err := pki.WriteFile(m.path("gossip.key"), node.GossipKeys, 0o600); err != nil {
			return err
		}
	}
	// The agent has the other coordinators from its first start on.
	others, err := json.Marshal(node.Servers)
	if err != nil {
		return err
	}
	if err := pki.WriteFile(m.path(knownFile), others, 0o600); err != nil {
		return err
	}
	kubeconfig := m.kubeconfig()
	if err := m.configure(node, kubeconfig); err != nil {
		return err
	}
	data, err := newKubeconfig(server, apiName, "system:node:"+m.name, id)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(kubeconfig), 0o700); err != nil {
		return err
	}
	return pki.WriteFile(kubeconfig, data, 0o600)
}

// configure changes in the configuration what the cluster says, and nothing else.
func (m *machine) configure(node joinapi.Node, kubeconfig string) error {
	changes := m.changes
	changes["kubeconfig"] = kubeconfig
	if len(node.GossipKeys) > 0 {
		changes["gossipKeyFile"], changes["join"] = m.path("gossip.key"), node.Gossip
	}
	changes["clusterDomain"], changes["clusterDNS"] = node.ClusterDomain, node.ClusterDNS
	changes["clusterCIDR"], changes["serviceCIDR"] = node.ClusterCIDR, node.ServiceCIDR
	old, err := os.ReadFile(m.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	data, err := changeYAML(old, changes)
	if err != nil {
		return fmt.Errorf("%s: %w", m.file, err)
	}
	if bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(m.file), 0o755); err != nil {
		return err
	}
	if err := pki.WriteFile(m.file, data, 0o644); err != nil {
		return err
	}
	return m.load()
}
