package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

type options struct {
	bin, out, only, focus string
	count                 int
	inside                bool
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory of shoal-csi-local and csi-sanity")
	flag.StringVar(&o.out, "out", "tests/csisanity/results.txt", "file of the results; - for none")
	flag.StringVar(&o.only, "only", "", "only this disk and kind of volume, as in xfs/block")
	flag.StringVar(&o.focus, "focus", "", "regular expression of the specs to run")
	flag.IntVar(&o.count, "count", 50, "volumes to measure with; 0 for no measurement")
	flag.BoolVar(&o.inside, "inside", false, "run in this mount namespace (internal)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "csisanity:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if os.Geteuid() != 0 {
		return errors.New("mounts and loop devices need root")
	}
	if !o.inside {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		// The terminal's signals reach the run itself.
		cmd := exec.Command("unshare", append([]string{"-m", "--propagation", "private", "--", self, "-inside"},
			os.Args[1:]...)...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		return cmd.Run()
	}
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return err
	}
	o.bin = bin
	dir, err := os.MkdirTemp("", "shoal-csi-sanity-")
	if err != nil {
		return err
	}
	err = runAll(ctx, o, dir)
	return errors.Join(err, os.RemoveAll(dir))
}

func runAll(ctx context.Context, o options, dir string) error {
	all := newResults()
	speeds := []string{speedHeader}
	var errs []error
	for _, disk := range disks {
		for _, kind := range kinds {
			name := disk.name + "/" + kind.name
			if o.only != "" && o.only != name {
				continue
			}
			if why := lacks(disk, kind); why != "" {
				fmt.Printf("%-12s not run: %s\n", name, why)
				continue
			}
			speed, err := runOne(ctx, o, filepath.Join(dir, disk.name+"-"+kind.name), disk, kind, name, all)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
				continue
			}
			speeds = append(speeds, speed...)
		}
	}
	if len(all.runs) == 0 {
		return errors.Join(append(errs, errors.New("nothing was run"))...)
	}
	if o.count > 0 {
		fmt.Println(strings.Join(speeds, "\n"))
	}
	if o.out != "-" {
		errs = append(errs, all.write(o.out))
	}
	return errors.Join(errs...)
}

// runOne has one disk judged with one kind of volumes, and measured.
func runOne(ctx context.Context, o options, dir string, disk disk, kind kind, name string, all *results) (
	speeds []string, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	at, err := disk.mount(ctx, dir, kind)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unmount(ctx, at)) }()
	d := &driver{socket: filepath.Join(dir, "csi.sock"), data: filepath.Join(at, "data")}
	if err := d.start(ctx, o.bin, kind); err != nil {
		return nil, err
	}
	report := filepath.Join(dir, "report.json")
	suiteErr := suite(ctx, o, dir, d.socket, report, kind)
	if err := all.add(name, report); err != nil {
		return nil, errors.Join(suiteErr, err, d.stop())
	}
	var speedErr error
	if suiteErr == nil && o.count > 0 {
		speeds, speedErr = measure(ctx, d, at, dir, name, kind, o.count)
	}
	return speeds, errors.Join(suiteErr, speedErr, d.stop(), d.leftNothing())
}

// suite runs csi-sanity, and shows what it says only when it fails.
func suite(ctx context.Context, o options, dir, socket, report string, k kind) error {
	args := []string{
		"-csi.endpoint", "unix://" + socket,
		"-csi.mountdir", filepath.Join(dir, "target"), "-csi.stagingdir", filepath.Join(dir, "staging"),
		"-csi.testvolumeaccesstype", k.access,
		"-csi.testvolumesize", fmt.Sprint(k.size), "-csi.testvolumeexpandsize", fmt.Sprint(2 * k.size),
		"-ginkgo.json-report", report, "-ginkgo.no-color", "-ginkgo.timeout", "10m",
	}
	if o.focus != "" {
		args = append(args, "-ginkgo.focus", o.focus)
	}
	out, err := exec.CommandContext(ctx, filepath.Join(o.bin, "csi-sanity"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("csi-sanity: %w\n%s", err, out)
	}
	return nil
}
