package main

import (
	"encoding/json"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// kubeconfigCommand prints a kubeconfig, or writes a serving certificate, signed
// by the cluster's CA on this machine.
func kubeconfigCommand(load func(*cobra.Command) (config.Config, error)) *cobra.Command {
	var (
		spec    pki.Spec
		server  string
		out     string
		serving bool
		sans    []string
	)
	cmd := &cobra.Command{
		Use: "kubeconfig", Short: "Write a kubeconfig with a fresh client certificate, or a serving certificate",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
	}
	f := cmd.Flags()
	f.StringVar(&spec.User, "user", pki.AdminUser, "name in the certificate")
	f.StringSliceVar(&spec.Groups, "group", nil, "groups in the certificate ("+pki.AdminGroup+" for an administrator; system:masters cannot be revoked, give it a short --lifetime)")
	f.StringVar(&server, "server", "", "URL of the API server (default https://127.0.0.1:PORT)")
	f.StringVar(&out, "out", "", "file to write (default: standard output); with --serving a prefix for .crt and .key")
	f.DurationVar(&spec.Lifetime, "lifetime", pki.CertLifetime, "how long the certificate holds")
	f.BoolVar(&serving, "serving", false, "write a serving certificate to OUT.crt and OUT.key instead")
	f.StringSliceVar(&sans, "san", nil, "names and addresses in the serving certificate")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := load(cmd)
		if err != nil {
			return err
		}
		ca, err := keys(cfg).CA()
		if err != nil {
			return fmt.Errorf("%w (has the coordinator been started with --data-dir %s?)", err, cfg.DataDir)
		}
		if serving {
			return writeServing(ca, spec, sans, out)
		}
		if server == "" {
			server = fmt.Sprintf("https://127.0.0.1:%d", cfg.Port)
		}
		data, err := ca.Kubeconfig(server, spec, time.Now())
		if err != nil {
			return err
		}
		if out == "" {
			_, err = cmd.OutOrStdout().Write(data)
			return err
		}
		return pki.WriteFile(out, data, 0o600)
	}
	return cmd
}

// credential is one of what the credentials command writes, in JSON.
type credential struct {
	User   string   `json:"user"`
	Groups []string `json:"groups,omitempty"`
	Server string   `json:"server,omitempty"`
	// Admin asks for an administrator's kubeconfig, whatever User and Groups say.
	Admin bool   `json:"admin,omitempty"`
	Out   string `json:"out"`
}

// credentialsCommand is kubeconfigCommand for several files at once: starting
// this program takes longer than making them.
func credentialsCommand(load func(*cobra.Command) (config.Config, error)) *cobra.Command {
	return &cobra.Command{
		Use: "credentials", Short: "Write the kubeconfigs that standard input lists in JSON", Hidden: true,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(cmd)
			if err != nil {
				return err
			}
			ca, err := keys(cfg).CA()
			if err != nil {
				return err
			}
			var list []credential
			if err := json.NewDecoder(cmd.InOrStdin()).Decode(&list); err != nil {
				return fmt.Errorf("read the list of credentials: %w", err)
			}
			for _, c := range list {
				if err := c.write(ca, time.Duration(cfg.ClusterSigningDuration)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// write makes the kubeconfig. Who renews his certificate has it for lifetime, as if he had
// asked for it.
func (c credential) write(ca *pki.Authority, lifetime time.Duration) error {
	spec := pki.Spec{User: c.User, Groups: c.Groups, Lifetime: lifetime}
	if c.Admin {
		spec = pki.Spec{User: pki.AdminUser, Groups: []string{pki.AdminGroup}, Lifetime: pki.AdminLifetime}
	}
	data, err := ca.Kubeconfig(c.Server, spec, time.Now())
	if err != nil {
		return err
	}
	return pki.WriteFile(c.Out, data, 0o600)
}

func writeServing(ca *pki.Authority, spec pki.Spec, sans []string, out string) error {
	if out == "" {
		return fmt.Errorf("serving certificate: give --out PREFIX for PREFIX.crt and PREFIX.key")
	}
	spec.Server = true
	for _, san := range sans {
		if ip := net.ParseIP(san); ip != nil {
			spec.IPs = append(spec.IPs, ip)
		} else {
			spec.Names = append(spec.Names, san)
		}
	}
	cert, key, err := ca.Issue(spec, time.Now())
	if err != nil {
		return err
	}
	if err := pki.WriteFile(out+".key", key, 0o600); err != nil {
		return err
	}
	return pki.WriteFile(out+".crt", cert, 0o644)
}
