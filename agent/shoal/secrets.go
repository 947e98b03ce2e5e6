package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
)

// secretsCommand runs what the coordinator's program does about the keys of the
// store: they are on its machine.
func secretsCommand() *cobra.Command {
	o := defaultOptions()
	c := &cobra.Command{Use: "secrets", Short: "Show and change the keys that Secrets are stored under; on the coordinator's machine"}
	c.PersistentFlags().StringVar(&o.DataDir, "data-dir", o.DataDir, "the cluster's data directory")
	for use, short := range map[string]string{
		"status":  "Show the keys' names and what is stored under each",
		"rotate":  "Make a new key, rewrite what is stored with it, drop the old one; all while the cluster runs",
		"rewrite": "Rewrite what is stored with the keys that come first, after a change of your own configuration file",
	} {
		c.AddCommand(
			&cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
				return onCoordinator(cmd, o, "secrets", use)
			}})
	}
	return c
}

// gossipCommand does the same about the key of the gossip.
func gossipCommand() *cobra.Command {
	o := defaultOptions()
	c := &cobra.Command{
		Use: "gossip", Short: "Change the key that members of the gossip share; on the coordinator's machine",
	}
	c.PersistentFlags().StringVar(&o.DataDir, "data-dir", o.DataDir, "the cluster's data directory")
	c.AddCommand(&cobra.Command{
		Use: "rotate", Short: "Make a new key, have all members use it, drop the old one; all while the cluster runs",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return onCoordinator(cmd, o, "gossip", "rotate") },
	})
	return c
}

// keysCommand does the same about the keys that sign.
func keysCommand() *cobra.Command {
	o := defaultOptions()
	l := servicesFiles()
	var force bool
	c := &cobra.Command{
		Use: "keys", Short: "Show and change the cluster's CA and the key of service accounts; on a coordinator's machine",
	}
	c.PersistentFlags().StringVar(&o.DataDir, "data-dir", o.DataDir, "the cluster's data directory")
	c.AddCommand(&cobra.Command{
		Use: "status", Short: "Show how far rotations of all keys are, and who is behind", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return onCoordinator(cmd, o, "keys", "status") },
	})
	c.AddCommand(&cobra.Command{
		Use: "forget NAME", Short: "Have nobody wait for a coordinator that is gone for good; with an outside etcd",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return onCoordinator(cmd, o, "keys", "forget", args[0]) },
	})
	for use, short := range map[string]string{
		"rotate": "Make a new key and have all believe it; that of service accounts signs then",
		"sign":   "Have the new key sign; what the old one has signed stays good",
		"drop":   "End a rotation: what the old key has signed is good no more",
	} {
		step := &cobra.Command{
			Use: use + " ca|serviceaccount", Short: short, Args: cobra.ExactArgs(1),
			ValidArgs: []string{"ca", "serviceaccount"},
			RunE: func(cmd *cobra.Command, args []string) error {
				run := []string{"keys", use, args[0]}
				if force {
					run = append(run, "--force")
				}
				if err := onCoordinator(cmd, o, run...); err != nil || args[0] != "ca" {
					return err
				}
				if file := o.path("coordinator.yaml"); exists(file) { // of `shoal up`
					return o.renewKubeconfigs(cmd.Context(), file)
				}
				return l.write(cmd.Context())
			},
		}
		step.Flags().BoolVar(&force, "force", false, "go on without coordinators and nodes that are behind")
		c.AddCommand(step)
	}
	return c
}

func onCoordinator(cmd *cobra.Command, o *options, args ...string) error {
	if err := o.complete(); err != nil {
		return err
	}
	bin, err := program(coordinatorBin)
	if err != nil {
		return err
	}
	about := strings.Join(args, " ")
	if file := o.path("coordinator.yaml"); exists(file) { // written by `shoal up`; units have the default one
		args = append(args, "--config", file)
	} else if cmd.Flags().Changed("data-dir") {
		args = append(args, "--data-dir", o.DataDir)
	}
	run := exec.CommandContext(cmd.Context(), bin, args...)
	run.Stdout, run.Stderr = os.Stdout, os.Stderr
	err = run.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return errShown
	}
	if err != nil {
		return fmt.Errorf("%s: %w", about, err)
	}
	return nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
