package main

import "github.com/spf13/cobra"

// snapshotCommand runs what the coordinator's program does about copies of the store.
func snapshotCommand() *cobra.Command {
	o := defaultOptions()
	c := &cobra.Command{
		Use: "snapshot", Short: "Take, list and restore copies of the cluster's state; on a coordinator's machine",
	}
	c.PersistentFlags().StringVar(&o.DataDir, "data-dir", o.DataDir, "the cluster's data directory")
	var secretFile string
	var force bool
	restore := &cobra.Command{
		Use: "restore FILE|s3://BUCKET/NAME", Short: "Make the state out of a snapshot; the coordinator must not run",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if secretFile != "" {
				args = append(args, "--passphrase-file", secretFile)
			}
			if force {
				args = append(args, "--force")
			}
			return onCoordinator(cmd, o, append([]string{"snapshot", "restore"}, args...)...)
		},
	}
	restore.Flags().StringVar(&secretFile, "passphrase-file", "", "passphrase of the keys beside the snapshot")
	restore.Flags().BoolVar(&force, "force", false,
		"also while other coordinators run, which set their newer state aside then")
	var s3 bool
	save := &cobra.Command{
		Use: "save [FILE]", Short: "Take a snapshot; with FILE, copy it there", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if s3 {
				args = append(args, "--s3")
			}
			return onCoordinator(cmd, o, append([]string{"snapshot", "save"}, args...)...)
		},
	}
	save.Flags().BoolVar(&s3, "s3", false, "copy it to the bucket of the configuration, too")
	c.AddCommand(save, &cobra.Command{
		Use: "list", Short: "List the snapshots on this machine, and those in the bucket of the configuration",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return onCoordinator(cmd, o, "snapshot", "list") },
	}, restore)
	return c
}
