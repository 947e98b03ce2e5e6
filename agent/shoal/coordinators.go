package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-project/shoal/agent/jointoken"
	"github.com/shoal-project/shoal/coordinator/config"
)

const coordinatorUnit = "shoal-coordinator.service"

// coordinatorsCommand runs what the coordinator's program does about the others.
func coordinatorsCommand() *cobra.Command {
	o := defaultOptions()
	c := &cobra.Command{
		Use: "coordinators", Short: "List the coordinators that hold the cluster's state; on the machine of one",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return onCoordinator(cmd, o, "coordinators") },
	}
	c.PersistentFlags().StringVar(&o.DataDir, "data-dir", o.DataDir, "the cluster's data directory")
	c.AddCommand(&cobra.Command{
		Use: "remove NAME", Short: "Take a coordinator out of the cluster, for good", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onCoordinator(cmd, o, "coordinators", "remove", args[0])
		},
	})
	return c
}

// coordinatorOptions are the flags of `shoal join` for what is no node.
type coordinatorOptions struct {
	coordinator, witness, replace bool
	config, name                  string
}

func (o *coordinatorOptions) flags(f *pflag.FlagSet) {
	f.BoolVar(&o.coordinator, "coordinator", false, "make this machine one of the cluster's coordinators")
	f.BoolVar(&o.witness, "witness", false, "make this machine one that votes in the coordinators' store, and serves no API")
	f.BoolVar(&o.replace, "replace", false, "with --coordinator or --witness: take the place of one of this name that is dead")
	f.StringVar(&o.name, "name", "", "with --coordinator or --witness: what it is called (default: the host's name)")
	f.StringVar(&o.config, "coordinator-config", config.DefaultFile, "the coordinator's configuration file")
}

// fits tells what a token is not for.
func (o *coordinatorOptions) fits(t jointoken.Token) error {
	switch {
	case o.coordinator && o.witness:
		return errors.New("--coordinator or --witness, not both: a coordinator votes too")
	case (o.replace || o.name != "") && !o.coordinator && !o.witness:
		return errors.New("--replace and --name go with --coordinator or --witness; a node's name is --node-name")
	case o.coordinator && t.Role != jointoken.RoleCoordinator:
		return fmt.Errorf("the token is for a %s: make one with `shoal token create --coordinator`", t.Role)
	case o.witness && t.Role == jointoken.RoleNode:
		return errors.New("the token is for a node: make one with `shoal token create --witness`")
	case !o.coordinator && !o.witness && t.Role != jointoken.RoleNode:
		return fmt.Errorf("the token is for a %s: add --%s; a node's is made with `shoal token create`", t.Role, t.Role)
	}
	return nil
}

// coordinatorInvitation is what `shoal-coordinator join` reads.
type coordinatorInvitation struct {
	Servers []string `json:"servers"`
	CA      []byte   `json:"ca"`
	Token   string   `json:"token"`
	Name    string   `json:"name,omitempty"`
	Replace bool     `json:"replace,omitempty"`
	Witness bool     `json:"witness,omitempty"`
}

// joinCoordinators makes this machine one of those that hold the cluster's state.
func (o *joinOptions) joinCoordinators(ctx context.Context, t jointoken.Token, steps *steps) error {
	if os.Geteuid() != 0 {
		return errors.New("must run as root: it writes what the coordinator's service reads; try sudo")
	}
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
	first := strings.TrimPrefix(cluster.server, "https://")
	in := coordinatorInvitation{
		Servers: []string{first}, CA: cluster.ca, Token: t.Bearer(),
		Name: o.as.name, Replace: o.as.replace, Witness: o.as.witness,
	}
	for _, s := range t.Servers {
		if s != first {
			in.Servers = append(in.Servers, s)
		}
	}
	if err := o.as.invite(ctx, in); err != nil {
		return err
	}
	steps.done("the cluster knows this machine, and this machine what it needs of the cluster")
	return o.startCoordinator(ctx, steps)
}

// invite has the coordinator's program ask and write: the formats are its own.
func (o *coordinatorOptions) invite(ctx context.Context, in coordinatorInvitation) error {
	bin, err := program(coordinatorBin)
	if err != nil {
		return err
	}
	data, err := json.Marshal(in)
	if err != nil {
		return err
	}
	args := []string{"join"}
	if exists(o.config) || o.config != config.DefaultFile {
		args = append(args, "--config", o.config)
	}
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.CombinedOutput()
	if err != nil {
		text := strings.TrimPrefix(strings.TrimSpace(string(out)), "shoal-coordinator: ")
		if text == "" {
			text = err.Error()
		}
		return errors.New(text)
	}
	return nil
}

// startCoordinator has the unit run; it is ready when the machine has a vote.
func (o *joinOptions) startCoordinator(ctx context.Context, steps *steps) error {
	command := "shoal-coordinator --config " + o.as.config
	if o.noStart || !unitHere(ctx, coordinatorUnit) || o.as.config != config.DefaultFile {
		steps.done("start it with `systemctl enable --now shoal-coordinator`, or: %s", command)
		return nil
	}
	if err := systemctl(ctx, "enable", "--quiet", coordinatorUnit); err != nil {
		return err
	}
	steps.done("the service starts; it copies the store first")
	if err := systemctl(ctx, "restart", coordinatorUnit); err != nil {
		return err
	}
	if o.as.witness {
		steps.done("this machine votes")
		return nil
	}
	steps.done("this machine is a coordinator; `shoal coordinators` lists all")
	return nil
}
