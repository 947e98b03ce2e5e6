package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/agent/upgrade"
	coordinatorconfig "github.com/shoal-project/shoal/coordinator/config"
)

const (
	upgradeDir = upgrade.Dir("/var/lib/shoal/upgrade")
	// packagesDir keeps the packages of the version that runs, and of the one before.
	packagesDir = "/var/lib/shoal/packages"
)

// What an upgrade may take; a unit that does not start adds its own time, at most 15 s each.
const (
	newPatience = 30 * time.Second
	oldPatience = 15 * time.Second
	settleTime  = 5 * time.Second
)

// upgradeOptions are the flags of `shoal upgrade`.
type upgradeOptions struct {
	to, from string
	config   string
	// Of a whole cluster.
	all        bool
	nodes      []string
	kubeconfig string
	id         string // of the wish that it is for
}

func upgradeCommand() *cobra.Command {
	o := &upgradeOptions{}
	c := &cobra.Command{
		Use: "upgrade --to FILE|VERSION", Short: "Change this machine's programs for those of another package, and back if they are not well",
		Long: `Checks the package and has its programs look at this machine's configuration, stops the coordinator and
copies its store, installs the package, starts the services and watches them. When they do not get well, the old
package comes back, and with it the old store where the new coordinator never served. Containers run on. It goes
on when this command is ended; after a power cut the old version comes back.

With --all, on a coordinator's machine or with --kubeconfig: all machines do this, those with a coordinator first
and one by one, then those of one zone (topology.kubernetes.io/zone) together, or one by one. It stops at the first
that goes back, and when it is ended; run again, it goes on with those that have another version.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.all || len(o.nodes) > 0 {
				return o.runFleet(cmd.Context(), os.Stdout)
			}
			return o.run(cmd.Context(), os.Stdout)
		},
	}
	f := c.Flags()
	f.StringVar(&o.to, "to", "", "a deb or an rpm, or the version of one in "+packagesDir)
	f.StringVar(&o.from, "from", "", "the package of the present version, for the way back (default: that in "+
		packagesDir+"; a deb is made of the installed files)")
	f.StringVar(&o.config, "config", agentConfigFile, "the agent's configuration file")
	f.BoolVar(&o.all, "all", false, "upgrade all machines of the cluster that have a node")
	f.StringSliceVar(&o.nodes, "node", nil, "upgrade the machines of these nodes, as --all does")
	_ = c.MarkFlagRequired("to") // it is there
	c.PersistentFlags().StringVar(&o.kubeconfig, "kubeconfig", "",
		"with --all or --node: an administrator's kubeconfig (default: the keys on this machine)")
	fleet := false
	status := &cobra.Command{
		Use: "status", Short: "Tell how the last upgrade of this machine went, or with --all that of each",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if fleet {
				return o.showFleet(cmd.Context(), os.Stdout)
			}
			return showUpgrade(os.Stdout)
		},
	}
	status.Flags().BoolVar(&fleet, "all", false, "list all nodes, with what they were asked for and how it went")
	c.AddCommand(status, &cobra.Command{
		Use: "asked", Short: "Do what this machine's Node is asked for", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.asked(cmd.Context(), os.Stdout) },
	}, &cobra.Command{
		Use: "run", Short: "Go on with an upgrade, as its unit does", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return runUpgrade(cmd.Context()) },
	})
	return c
}

// run prepares the upgrade, has its unit do it, and tells what comes of it.
func (o *upgradeOptions) run(ctx context.Context, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("must run as root; try sudo")
	}
	if err := errors.Join(os.MkdirAll(string(upgradeDir), 0o700), os.MkdirAll(packagesDir, 0o700)); err != nil {
		return err
	}
	lock, err := process.Lock(string(upgradeDir))
	if err != nil {
		return fmt.Errorf("another upgrade of this machine is prepared: %w", err)
	}
	defer lock.Close()
	if old, err := upgradeDir.Load(); err == nil && old != nil && !old.Phase.Over() {
		fmt.Fprintf(out, "An upgrade to %s is under way already: this is what it says.\n", old.To)
		err := errors.Join(upgradeDir.Begin(ctx), follow(ctx, out))
		if old.ID != o.id {
			err = errors.Join(err, errors.New("that was another upgrade than the one asked for: ask again"))
		}
		return err
	}
	steps := &steps{out: out, start: time.Now()}
	record, err := o.prepare(ctx, steps)
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(upgradeDir.Path("log")), upgradeDir.Save(record)); err != nil {
		return err
	}
	if err := upgradeDir.Begin(ctx); err != nil {
		return err
	}
	return follow(ctx, out)
}

// prepare checks all that can be known before anything is touched, and puts what the
// way there and back needs onto the disk.
func (o *upgradeOptions) prepare(ctx context.Context, steps *steps) (*upgrade.Record, error) {
	installed, err := upgrade.Installed(ctx)
	if err != nil {
		return nil, err
	}
	file, err := packageFile(packagesDir, o.to, installed.Format)
	if err != nil {
		return nil, err
	}
	next, err := upgrade.Inspect(ctx, file)
	if err != nil {
		return nil, err
	}
	if err := upgrade.Check(installed, next); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	boot, err := upgrade.Boot()
	if err != nil {
		return nil, err
	}
	r := &upgrade.Record{
		Phase: upgrade.Prepared, ID: o.id, Boot: boot, Begun: time.Now(), From: installed.Program(),
		New: kept(next), Old: kept(installed), Units: upgrade.Running(ctx), Config: o.config,
	}
	if len(r.Units) == 0 {
		return nil, errors.New("no service of Shoal runs on this machine: install the package as any other")
	}
	// The copy is what is looked at, and what is installed.
	if file != r.New {
		if err := upgrade.Place(file, r.New); err != nil {
			return nil, err
		}
	}
	if err := upgrade.Rehearse(ctx, next.Format, r.New); err != nil {
		return nil, err
	}
	if err := o.test(ctx, r, next.Format); err != nil {
		return nil, err
	}
	steps.done("%s is for this machine, and takes its configuration", r.To)
	if err := o.wayBack(ctx, r, installed); err != nil {
		return nil, err
	}
	if err := o.before(ctx, r); err != nil {
		return nil, err
	}
	steps.done("the way back to %s is there", r.From)
	return r, nil
}

// kept is where a package of a version is kept.
func kept(p upgrade.Package) string {
	return keptAs(packagesDir, p.Program(), p.Format)
}

func keptAs(dir, version, format string) string {
	return filepath.Join(dir, "shoal_"+strings.TrimPrefix(version, "v")+"."+format)
}

// packageFile is the file that --to names, or that of a version among those kept.
func packageFile(dir, to string, formats ...string) (string, error) {
	if exists(to) {
		return filepath.Abs(to)
	}
	for _, format := range formats {
		if file := keptAs(dir, to, format); !strings.ContainsRune(to, '/') && exists(file) {
			return file, nil
		}
	}
	return "", fmt.Errorf("--to %s: there is no such file, and no package of such a version in %s", to, dir)
}

// test has the new programs look at this machine.
func (o *upgradeOptions) test(ctx context.Context, r *upgrade.Record, format string) error {
	ctx, cancel := context.WithTimeout(ctx, newPatience)
	defer cancel()
	root := upgradeDir.Path("new")
	if err := upgrade.Unpack(ctx, format, r.New, root); err != nil {
		return err
	}
	defer os.RemoveAll(root)
	var err error
	r.To, err = upgrade.SelfTest(ctx, root, r.Units, o.config, coordinatorconfig.DefaultFile)
	return err
}

// wayBack has the old package, and the program that goes back, on the disk.
func (o *upgradeOptions) wayBack(ctx context.Context, r *upgrade.Record, installed upgrade.Package) error {
	from := o.from
	if from == "" && exists(r.Old) {
		from = r.Old
	}
	if from == "" {
		if err := upgrade.Repack(ctx, installed, r.Old, upgradeDir.Path("stage")); err != nil {
			return err
		}
	} else if p, err := upgrade.Inspect(ctx, from); err != nil || p != installed {
		return errors.Join(fmt.Errorf("%s is not the package of version %s that is installed", from, installed.Version),
			err)
	} else if from != r.Old {
		if err := upgrade.Place(from, r.Old); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return upgrade.Place(self, upgradeDir.Path("shoal"))
}

// before notes how the machine is: it has to be well, and so again afterwards.
func (o *upgradeOptions) before(ctx context.Context, r *upgrade.Record) error {
	if slices.Contains(r.Units, upgrade.CoordinatorUnit) {
		cfg, err := coordinatorconfig.Load(coordinatorconfig.DefaultFile)
		if err != nil {
			return err
		}
		// A store with other members may not go back in time: it would forget what it has
		// told them.
		r.Alone = len(cfg.EtcdServers) == 0 && !exists(filepath.Join(cfg.StateDir(), "member.json"))
	}
	if !slices.Contains(r.Units, upgrade.AgentUnit) {
		return nil
	}
	h, err := newHealth(o.config)
	if err != nil {
		return err
	}
	return h.note(ctx, r)
}

// runUpgrade goes on with the record, in the unit.
func runUpgrade(ctx context.Context) error {
	manager, err := process.TakeServiceManager()
	if err != nil {
		return err
	}
	r, err := upgradeDir.Load()
	if err != nil || r == nil {
		manager.Ready()
		return errors.Join(err, upgradeDir.Clear(ctx))
	}
	boot, err := upgrade.Boot()
	if err != nil {
		return err
	}
	logs, err := os.OpenFile(upgradeDir.Path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logs.Close()
	steps := &steps{out: io.MultiWriter(os.Stderr, logs), start: r.Begun}
	cfg, err := coordinatorconfig.Load("")
	if err != nil {
		return err
	}
	host := &upgrade.Host{
		Dir: upgradeDir, Format: strings.TrimPrefix(filepath.Ext(r.New), "."), StateDir: cfg.StateDir(),
		Restore: []string{"/usr/bin/" + coordinatorBin, "snapshot", "restore"},
	}
	host.Healthy = func(ctx context.Context, version string) error {
		if r.Node == "" {
			return nil
		}
		h, err := newHealth(r.Config)
		if err != nil {
			return err
		}
		return h.wait(ctx, r, version)
	}
	u := &upgrade.Upgrade{
		Machine: host, Dir: upgradeDir, Record: r, Boot: boot,
		Patience: newPatience, Settle: settleTime, OldPatience: oldPatience,
		Files: manager.Ready, Say: steps.done,
	}
	err = u.Run(ctx)
	if ctx.Err() != nil || !r.Phase.Over() {
		return err // undone at the next start
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "shoal:", err) // who waits reads the record
	}
	forget(r)
	return upgradeDir.Clear(ctx)
}

// forget removes packages but the one that runs and the one that ran before.
func forget(r *upgrade.Record) {
	files, err := filepath.Glob(filepath.Join(packagesDir, "shoal_*"))
	if err != nil {
		return
	}
	for _, file := range files {
		if file != r.New && file != r.Old {
			_ = os.Remove(file)
		}
	}
}

// follow prints what the unit says until the upgrade is over.
func follow(ctx context.Context, out io.Writer) error {
	printed := int64(0)
	for {
		r, err := upgradeDir.Load() // first: what is said before the end is in the file then
		printed += printFrom(upgradeDir.Path("log"), printed, out)
		if err != nil {
			return err
		}
		if r.Phase.Over() {
			return ended(r)
		}
		select {
		case <-ctx.Done():
			return errors.New("the upgrade goes on without this command: see `shoal upgrade status`")
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// ended is how an upgrade that is over went.
func ended(r *upgrade.Record) error {
	switch r.Phase {
	case upgrade.Done:
		return nil
	case upgrade.Returned:
		return fmt.Errorf("%w, %s, after %.0f s: %s", upgrade.ErrReturned, r.From, r.Ended.Sub(r.Begun).Seconds(), r.Why)
	}
	return fmt.Errorf("this machine needs a hand: %s", r.Why)
}

func printFrom(file string, at int64, out io.Writer) int64 {
	f, err := os.Open(file)
	if err != nil {
		return 0
	}
	defer f.Close()
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return 0
	}
	n, _ := io.Copy(out, f)
	return n
}

func showUpgrade(out io.Writer) error {
	r, err := upgradeDir.Load()
	if err != nil {
		return err
	}
	if r == nil {
		fmt.Fprintln(out, "This machine was never upgraded by `shoal upgrade`.")
		return nil
	}
	fmt.Fprintf(out, "%s: from %s to %s, begun %s\n", r.Phase, r.From, r.To, r.Begun.Format(time.RFC3339))
	if r.Why != "" {
		fmt.Fprintf(out, "because: %s\n", r.Why)
	}
	if r.Store != "" {
		fmt.Fprintf(out, "the store: %s\n", r.Store)
	}
	return nil
}
