package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/encryption"
	"github.com/shoal-project/shoal/coordinator/members"
)

// invitation is what `shoal join --coordinator` has found out, in JSON.
type invitation struct {
	Servers []string `json:"servers"` // host:port of the cluster's API
	CA      []byte   `json:"ca"`      // its certificate, verified by the token's hash
	Token   string   `json:"token"`   // ID.SECRET
	Name    string   `json:"name,omitempty"`
	Replace bool     `json:"replace,omitempty"`
	Witness bool     `json:"witness,omitempty"`
}

// maxInvitation bounds standard input.
const maxInvitation = 64 << 10

// joinCommand makes this machine one of a cluster's coordinators, which it is once the
// service starts.
func joinCommand(load func(*cobra.Command) (config.Config, error)) *cobra.Command {
	return &cobra.Command{
		Use: "join", Short: "Join the cluster that an invitation on standard input names", Hidden: true,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(cmd)
			if err != nil {
				return err
			}
			var in invitation
			if err := json.NewDecoder(io.LimitReader(cmd.InOrStdin(), maxInvitation)).Decode(&in); err != nil {
				return fmt.Errorf("read the invitation: %w", err)
			}
			file := cmd.Flag("config").Value.String()
			return join(cmd.Context(), cfg, file, in)
		},
	}
}

func join(ctx context.Context, cfg config.Config, file string, in invitation) error {
	if len(cfg.EtcdServers) > 0 {
		return errors.New("etcdServers: the state is in an outside etcd: start this coordinator with the same one instead")
	}
	unlock, err := lockState(cfg)
	if err != nil {
		return err
	}
	defer unlock()
	if err := vacant(cfg); err != nil {
		return err
	}
	advertise, err := advertiseAddress(cfg)
	if err != nil {
		return err
	}
	if advertise.IsLoopback() && !in.loopback() {
		return errors.New("this machine has no address but loopback: give --advertise-address, by which the other coordinators reach it")
	}
	m := member{Name: in.Name, Witness: in.Witness}
	if m.Name == "" {
		m.Name = memberName(cfg)
	}
	client := members.Client{Servers: in.Servers, CA: in.CA, Token: in.Token}
	b, err := client.Ask(ctx, members.Request{
		Name: m.Name, PeerURL: peerURL(cfg, advertise), Replace: in.Replace, Witness: in.Witness,
	})
	if err != nil {
		return err
	}
	m.Join = b.Join
	if m.Witness {
		err = keys(cfg).InstallPeer(b.Files)
	} else {
		err = settle(cfg, file, b)
	}
	if err != nil {
		return err
	}
	// Written last: without it the next start begins a cluster of its own, and refuses.
	return errors.Join(m.write(cfg), giveToService(cfg.StateDir()))
}

// loopback holds for clusters of one machine: tests.
func (in invitation) loopback() bool {
	for _, server := range in.Servers {
		if a, err := netip.ParseAddrPort(server); err != nil || !a.Addr().IsLoopback() {
			return false
		}
	}
	return true
}

// vacant fails where a store is already.
func vacant(cfg config.Config) error {
	dir := filepath.Join(cfg.StateDir(), "etcd")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for a store: %w", err)
	}
	return fmt.Errorf(
		"there is a store in %s already: this machine is a coordinator, or was one. If nothing of it is needed, move %s away and join again",
		dir, cfg.StateDir())
}

// settle writes what the cluster has alike at all coordinators.
func settle(cfg config.Config, file string, b members.Bundle) error {
	if err := agree(cfg, file, b); err != nil {
		return err
	}
	if err := keys(cfg).Install(b.Files); err != nil {
		return err
	}
	return encryption.File(encryptionFile(cfg)).Install(b.Encryption)
}

// agree has the configuration file say what the cluster's other coordinators' do.
func agree(cfg config.Config, file string, b members.Bundle) error {
	want := map[string]any{}
	for field, values := range map[string][2]string{
		"serviceCIDR":   {cfg.ServiceCIDR, b.Settings.ServiceCIDR},
		"clusterCIDR":   {cfg.ClusterCIDR, b.Settings.ClusterCIDR},
		"clusterDNS":    {cfg.ClusterDNS, b.Settings.ClusterDNS},
		"clusterDomain": {cfg.ClusterDomain, b.Settings.ClusterDomain},
		"nodePortRange": {cfg.NodePortRange, b.Settings.NodePortRange},
	} {
		if values[0] != values[1] {
			want[field] = values[1]
		}
	}
	for field, values := range map[string][2]int{
		"nodeCIDRMaskSizeIPv4": {cfg.NodeCIDRMaskSizeIPv4, b.Settings.NodeCIDRMaskSizeIPv4},
		"nodeCIDRMaskSizeIPv6": {cfg.NodeCIDRMaskSizeIPv6, b.Settings.NodeCIDRMaskSizeIPv6},
	} {
		if values[0] != values[1] && values[1] != 0 {
			want[field] = values[1]
		}
	}
	if a := b.Settings.VirtualAddress; a != "" && a != cfg.VirtualAddress {
		want["virtualAddress"] = a
	}
	if len(cfg.GossipJoin) == 0 && len(b.Gossip) > 0 {
		want["gossipJoin"] = b.Gossip
	}
	if len(want) == 0 {
		return nil
	}
	if file == "" {
		file = config.DefaultFile
	}
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read configuration: %w", err)
	}
	has := map[string]any{}
	if err := yaml.Unmarshal(old, &has); err != nil {
		return fmt.Errorf("read configuration %s: %w", file, err)
	}
	for field, value := range want {
		if is, set := has[field]; set {
			return fmt.Errorf("%s of %s is %v, and %v in the cluster: all coordinators have the same; change it and join again",
				field, file, is, value)
		}
	}
	add, err := yaml.Marshal(want)
	if err != nil {
		return err
	}
	text, err := appended(old, add, len(has)+len(want))
	if err != nil {
		return fmt.Errorf("write configuration %s: %w", file, err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// appended is a file with further fields at its end, of which it has so many then. What
// follows a map in braces or the end of a document is read by nobody.
func appended(old, add []byte, fields int) ([]byte, error) {
	text := slices.Clone(old)
	if n := len(text); n > 0 && text[n-1] != '\n' {
		text = append(text, '\n')
	}
	text = append(append(text, "# As at the cluster's other coordinators.\n"...), add...)
	has := map[string]any{}
	if err := yaml.Unmarshal(text, &has); err != nil || len(has) != fields {
		return nil, fmt.Errorf("nothing can be added at its end; write these fields into it and join again:\n%s", add)
	}
	return text, nil
}

// giveToService gives what root has written to the user whose the directory is: the
// unit's.
func giveToService(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || os.Geteuid() != 0 {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return root.Lchown(path, int(st.Uid), int(st.Gid))
	})
}
