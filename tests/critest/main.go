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

// netns is the host that agent, registry and suite run on.
const netns = "shoal-critest"

type options struct {
	bin, out, focus string
	keep, inside    bool
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory of the product's programs; crictl and critest are built into it")
	flag.StringVar(&o.out, "out", "tests/critest/results.txt", "file of the results; - for none")
	flag.StringVar(&o.focus, "focus", "", "regular expression of the specs to run")
	flag.BoolVar(&o.keep, "keep", false, "keep the agent's directory and log")
	flag.BoolVar(&o.inside, "inside", false, "run in this network namespace (internal)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "critest:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return err
	}
	o.bin = bin
	if o.inside {
		return runInside(ctx, o)
	}
	if err := buildSuite(ctx, o.bin); err != nil {
		return err
	}
	if err := addHost(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err == nil {
		cmd := exec.Command("nsenter",
			append([]string{"--net=/run/netns/" + netns, "--", self, "-inside"}, os.Args[1:]...)...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		err = cmd.Run() // gets the terminal's signals itself
	}
	return errors.Join(err, ip("netns del "+netns))
}

// addHost makes a namespace that looks like a machine: one address on eth0
// and a default route. eth0's other end is in the same namespace.
func addHost() error {
	_ = exec.Command("ip", "netns", "del", netns).Run() // of a run that was killed
	return ip(
		"netns add "+netns,
		"-n "+netns+" link set lo up",
		"-n "+netns+" link add eth0 type veth peer name lan0",
		"-n "+netns+" addr add "+nodeIP+"/24 dev eth0",
		"-n "+netns+" link set lan0 up",
		"-n "+netns+" link set eth0 up",
		"-n "+netns+" route add default via 10.98.0.254",
	)
}

func ip(commands ...string) error {
	for _, c := range commands {
		if out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", c, err, out)
		}
	}
	return nil
}

func runInside(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp("", "shoal-critest-")
	if err != nil {
		return err
	}
	// Mapped users must come through to the containers' files.
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	if o.keep {
		fmt.Println("directory:", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	mirror, err := serveImages(o.bin, dir)
	if err != nil {
		return err
	}
	defer mirror.Close()
	a := &agent{bin: o.bin, dir: dir}
	if err := a.start(ctx); err != nil {
		return errors.Join(err, a.stop())
	}
	report := filepath.Join(dir, "report.json")
	suiteErr := runSuite(ctx, o, a.socket(), report)
	return errors.Join(writeResults(report, o.out), suiteErr, a.stop())
}

// runSuite runs critest; specs that fail are its error.
func runSuite(ctx context.Context, o options, socket, report string) error {
	args := []string{"-runtime-endpoint", "unix://" + socket, "-ginkgo.json-report", report, "-ginkgo.no-color",
		"-ginkgo.v=false", "-ginkgo.timeout", "40m"}
	if o.focus != "" {
		args = append(args, "-ginkgo.focus", o.focus)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(o.bin, "critest"), args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("critest: %w", err)
	}
	return nil
}
