package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/discovery"

	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/encryption"
	"github.com/shoal-project/shoal/coordinator/members"
	"github.com/shoal-project/shoal/coordinator/snapshots"
	"github.com/shoal-project/shoal/coordinator/store"
)

// newKeeper keeps this coordinator's snapshots.
func (s *parts) newKeeper() (*snapshots.Keeper, error) {
	k := &snapshots.Keeper{
		Store: s.store,
		Dir:   s.cfg.SnapshotsDir(),
		Every: time.Duration(s.cfg.SnapshotInterval),
		Keep:  s.cfg.SnapshotKeep,
		Log:   s.log,
	}
	if b := bucket(s.cfg); b != nil {
		k.Remote = s.remote(*b)
	}
	if s.cfg.SnapshotPassphraseFile == "" {
		return k, nil
	}
	if _, err := passphrase(s.cfg.SnapshotPassphraseFile); err != nil {
		return nil, fmt.Errorf("snapshotPassphraseFile: %w", err)
	}
	k.Keys = func() ([]byte, error) {
		secret, err := passphrase(s.cfg.SnapshotPassphraseFile)
		if err != nil {
			return nil, err
		}
		b, err := s.bundle()
		if err != nil {
			return nil, err
		}
		locked, err := members.Lock(b, secret)
		if err != nil {
			return nil, err
		}
		return json.Marshal(locked)
	}
	return k, nil
}

// minPassphrase is the least that a passphrase may have.
const minPassphrase, maxPassphrase = 12, 4096

// passphrase is the first line of a file.
func passphrase(path string) (string, error) {
	data, err := readUpTo(path, maxPassphrase)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	if line = strings.TrimSpace(line); len(line) < minPassphrase {
		return "", fmt.Errorf("%s: its first line has less than %d characters", path, minPassphrase)
	}
	return line, nil
}

// snapshotCommand takes, lists and restores snapshots.
func snapshotCommand(load func(*cobra.Command) (config.Config, error)) *cobra.Command {
	cmd := &cobra.Command{Use: "snapshot", Short: "Take, list and restore copies of the store"}
	quiet := func(c *cobra.Command) *cobra.Command {
		c.SilenceUsage, c.SilenceErrors = true, true
		return c
	}
	var toS3 bool
	save := quiet(&cobra.Command{
		Use: "save [FILE]", Short: "Take a snapshot; with FILE, copy it there", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := load(cmd)
			if err != nil {
				return err
			}
			return saveSnapshot(cmd.Context(), cfg, args, toS3, cmd.OutOrStdout())
		},
	})
	save.Flags().BoolVar(&toS3, "s3", false, "copy it to the bucket of the configuration (snapshotS3Bucket), too")
	cmd.AddCommand(save, quiet(&cobra.Command{
		Use: "list", Short: "List the snapshots on this machine, and those in the bucket of the configuration",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(cmd)
			if err != nil {
				return err
			}
			return listSnapshots(cmd.Context(), cfg, cmd.OutOrStdout())
		},
	}), restoreCommand(load))
	return cmd
}

func saveSnapshot(ctx context.Context, cfg config.Config, to []string, toS3 bool, out io.Writer) error {
	c, err := operator(cfg, "")
	if err != nil {
		return err
	}
	d, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return fmt.Errorf("connect to the API: %w", err)
	}
	r := d.RESTClient().Post().AbsPath(snapshots.Path)
	if toS3 {
		r = r.Param(snapshots.CopyParameter, "s3")
	}
	data, err := r.DoRaw(ctx)
	if err != nil {
		return said("take a snapshot", data, err)
	}
	var s snapshots.Snapshot
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	if len(to) > 0 {
		if err := copySnapshot(&s, to[0]); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%s: %d KiB\n", s.File, s.Size>>10)
	if s.Copy != "" {
		fmt.Fprintf(out, "%s\n", s.Copy)
	}
	if !s.Keys {
		fmt.Fprintf(out, "Without the cluster's keys: keep %s elsewhere too, or name a snapshotPassphraseFile\n",
			cfg.KeysDir())
	}
	return nil
}

// copySnapshot puts a snapshot, with the keys beside it, where the operator wants it.
func copySnapshot(s *snapshots.Snapshot, to string) error {
	from := s.File
	if err := copyFile(from, to); err != nil {
		return err
	}
	if s.Keys {
		if err := copyFile(snapshots.KeysBeside(from), snapshots.KeysBeside(to)); err != nil {
			return err
		}
	}
	s.File = to
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy the snapshot: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("copy the snapshot: %w", err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
		return errors.Join(fmt.Errorf("copy the snapshot: %w", err), os.Remove(to))
	}
	return nil
}

// listTime bounds what a bucket may take to be listed.
const listTime = 2 * time.Minute

func listSnapshots(ctx context.Context, cfg config.Config, out io.Writer) error {
	list, err := snapshots.List(cfg.SnapshotsDir())
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "FILE\tTAKEN\tKIB\tKEYS")
	show := func(s snapshots.Snapshot) {
		with := "no"
		if s.Keys {
			with = "yes"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", s.File, s.Time.Format(time.RFC3339), s.Size>>10, with)
	}
	for _, s := range list {
		show(s)
	}
	var copies []snapshots.Copy
	if b := bucket(cfg); b != nil {
		ctx, cancel := context.WithTimeout(ctx, listTime)
		defer cancel()
		copies, err = b.List(ctx, "") // of all clusters: this machine may have none yet
	}
	for _, c := range copies {
		show(c.Snapshot)
	}
	return errors.Join(w.Flush(), err)
}

func restoreCommand(load func(*cobra.Command) (config.Config, error)) *cobra.Command {
	var secretFile string
	cmd := &cobra.Command{
		Use: "restore FILE|s3://BUCKET/NAME", Short: "Make this machine's store out of a snapshot; its coordinator must not run",
		Args: cobra.ExactArgs(1), SilenceUsage: true, SilenceErrors: true,
	}
	cmd.Flags().StringVar(&secretFile, "passphrase-file", "",
		"passphrase of the keys beside the snapshot; needed where this machine has none of the cluster's")
	var force bool
	cmd.Flags().BoolVar(&force, "force", false,
		"also while other coordinators run, which set their newer state aside then")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := load(cmd)
		if err != nil {
			return err
		}
		unlock, err := lockState(cfg)
		if err != nil {
			return err
		}
		defer unlock()
		file, remove, err := localSnapshot(cmd.Context(), cfg, args[0])
		if err != nil {
			return err
		}
		defer remove()
		return restoreSnapshot(cmd.Context(), cfg, file, secretFile, force, cmd.OutOrStdout())
	}
	return cmd
}

func restoreSnapshot(
	ctx context.Context, cfg config.Config, file, secretFile string, force bool, out io.Writer,
) error {
	if len(cfg.EtcdServers) > 0 {
		return errors.New("etcdServers: the state is in an outside etcd: restore it there")
	}
	if err := store.VerifySnapshot(file); err != nil {
		return err
	}
	if err := restoreKeys(cfg, file, secretFile); err != nil {
		return err
	}
	before, err := readMember(cfg)
	if err != nil {
		return err
	}
	m := member{Name: memberName(cfg)}
	if before != nil {
		m.Name = before.Name
	}
	others, err := othersOf(cfg, file, m.Name)
	if err != nil {
		return err
	}
	var last *members.Restoration
	if before != nil {
		last = before.Restored
	}
	next := last.Next(time.Now(), m.Name, others)
	others = next.Expects
	if !force {
		if err := refuseWhileOthersRun(ctx, cfg, others); err != nil {
			return errors.Join(err, giveToService(cfg.StateDir())) // it may have made certificates
		}
	}
	kept, err := store.Restore(file, filepath.Join(cfg.StateDir(), "etcd"), next.Time)
	if err != nil {
		return err
	}
	// Other members keep the state of before: this one is alone with the restored one
	// until they join it.
	if len(others) > 0 {
		m.Restored = &next
		err = m.write(cfg)
	} else if err = os.Remove(memberFile(cfg)); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := giveToService(cfg.StateDir()); err != nil {
		return err
	}
	fmt.Fprintf(out, "the store is that of %s; start the coordinator\n", file)
	if kept != "" {
		fmt.Fprintf(out, "the one of before is in %s: delete it when all is well\n", kept)
	}
	for _, o := range others {
		fmt.Fprintf(out, "%s (%s) sets its store aside and joins this one, once it runs and finds it restored\n",
			strings.TrimPrefix(o.Name, members.WitnessPrefix), o.URL)
	}
	return nil
}

// localSnapshot is the file of a snapshot, which may have to be fetched first.
func localSnapshot(ctx context.Context, cfg config.Config, name string) (file string, remove func(), err error) {
	if !snapshots.IsS3(name) {
		return name, func() {}, nil
	}
	b := bucket(cfg)
	if b == nil {
		return "", nil, errors.New("snapshotS3Endpoint is not set: it says where the bucket is")
	}
	dir, err := os.MkdirTemp(cfg.StateDir(), "restore-")
	if err != nil {
		return "", nil, fmt.Errorf("fetch %s: %w", name, err)
	}
	remove = func() { _ = os.RemoveAll(dir) }
	if file, err = b.Download(ctx, name, dir); err != nil {
		remove()
		return "", nil, err
	}
	return file, remove, nil
}

// maxKeys is more than the keys of any cluster take, sealed.
const maxKeys = 1 << 20

func readUpTo(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// restoreKeys brings the cluster's keys, where this machine has none.
func restoreKeys(cfg config.Config, file, secretFile string) error {
	_, err := os.Stat(keys(cfg).Path("ca.key"))
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restore: %w", err)
	}
	data, err := readUpTo(snapshots.KeysBeside(file), maxKeys)
	if err != nil {
		return fmt.Errorf(
			"restore: this machine has none of the cluster's keys, without which no Secret can be read and no node is known: %w; put those of %s back from a backup",
			err, cfg.KeysDir())
	}
	if secretFile == "" {
		return fmt.Errorf("restore: the keys in %s are under a passphrase: give --passphrase-file",
			snapshots.KeysBeside(file))
	}
	secret, err := passphrase(secretFile)
	if err != nil {
		return fmt.Errorf("--passphrase-file: %w", err)
	}
	var locked members.Locked
	if err := json.Unmarshal(data, &locked); err != nil {
		return fmt.Errorf("restore: read %s: %w", snapshots.KeysBeside(file), err)
	}
	b, err := locked.Unlock(secret)
	if err != nil {
		return err
	}
	if err := keys(cfg).Install(b.Files); err != nil {
		return err
	}
	return encryption.File(encryptionFile(cfg)).Install(b.Encryption)
}
