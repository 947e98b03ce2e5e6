package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	bin, cache, only, gotool, accel string
	from                            string
	keep, quick                     bool
	chaosTime                       time.Duration
	seed                            uint64
	cuts, rotations                 int
}

// A scenario starts a machine of its own and reports steps on it.
type scenario struct {
	name string
	run  func(context.Context, *rig) error
}

var scenarios = []scenario{
	{"core", runCore},
	{"systemd", runSystemd},
	{"package", runPackage},
	{"upgrade", runUpgrade},
	{"upgrades", runUpgrades},
	{"join", runJoin},
	{"rotation", runRotation},
	{"coordinators", runCoordinators},
	{"blackout", runBlackout},
	{"reboots", runReboots},
	{"fencing", runFencing},
	{"clocks", runClocks},
	{"cgroup2", runCgroup2},
	{"selinux", runSELinux},
	{"quotas", runQuotas},
	{"firewalls", runFirewalls},
	{"sctp", runSCTP},
	{"jumps", runJumps},
	{"addresses", runAddresses},
	{"powercuts", runPowerCuts},
	{"skew", runSkew},
	{"chaos", runChaos},
}

// waiting scenarios wait most of the time. They run beside the others, in a process and a
// network of their own, so that all take less than forty minutes on two cores.
var waiting = []string{"rotation", "clocks"}

// long scenarios take as long as one likes, or want a flag: they are run only by name.
var long = []string{"powercuts", "skew", "chaos"}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory of the built programs and images")
	flag.StringVar(&o.cache, "cache", "bin/fleet", "directory that keeps the machines' root file system")
	flag.StringVar(&o.only, "only", "",
		"run only these scenarios, separated by commas: core, systemd, package, upgrade, upgrades, join, rotation, coordinators, blackout, reboots, "+
			"fencing, clocks, cgroup2, selinux, quotas, firewalls, sctp, jumps, addresses, powercuts, skew or chaos")
	flag.StringVar(&o.gotool, "go", "go", "the go program, which builds the tests that run in a machine")
	flag.StringVar(&o.accel, "accel", "tcg,thread=multi", "QEMU's accelerator: kvm where it works is nine times as fast")
	flag.BoolVar(&o.quick, "quick", false, "leave out the tests of packages and the default cgroup driver in the virtual machine")
	flag.DurationVar(&o.chaosTime, "chaos-time", 5*time.Minute, "how long bad things happen in the scenario chaos")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of the scenarios chaos and powercuts: what happens when")
	flag.IntVar(&o.cuts, "cuts", 5, "how often the machine of a database fails in the scenarios fencing and powercuts")
	flag.IntVar(&o.rotations, "rotations", 2, "how often each certificate is followed by another in the scenario rotation")
	flag.StringVar(&o.from, "from", "", "revision of git that the older version of the scenario skew is built of")
	flag.BoolVar(&o.keep, "keep", false, "keep the machines' files and logs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if os.Geteuid() != 0 {
		return errors.New("machines need root")
	}
	source, err := os.Getwd() // `make` starts it there
	if err != nil {
		return err
	}
	r := &rig{options: o, source: source}
	if r.bin, err = filepath.Abs(o.bin); err != nil {
		return err
	}
	if r.cache, err = filepath.Abs(o.cache); err != nil {
		return err
	}
	if err := makeRootfs(ctx, r.cache, packages); err != nil {
		return err
	}
	if r.dir, err = os.MkdirTemp("", "shoal-fleet-"); err != nil {
		return err
	}
	if o.keep {
		fmt.Println("directory:", r.dir)
	} else {
		defer os.RemoveAll(r.dir)
	}
	var only []string
	if o.only != "" {
		only = strings.Split(o.only, ",")
	}
	for _, name := range only {
		if !slices.ContainsFunc(scenarios, func(s scenario) bool { return s.name == name }) {
			return fmt.Errorf("-only: there is no scenario %q", name)
		}
	}
	var beside *besides
	if only == nil {
		if beside, err = startBeside(ctx, o); err != nil {
			return err
		}
	}
	var errs []error
	for _, s := range scenarios {
		if only != nil && !slices.Contains(only, s.name) ||
			only == nil && (slices.Contains(long, s.name) || slices.Contains(waiting, s.name)) {
			continue
		}
		r.name = s.name
		if err := s.run(ctx, r); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	if beside != nil {
		if err := beside.wait(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", strings.Join(waiting, ", "), err))
		}
		r.passed, r.failed = r.passed+beside.passed, r.failed+beside.failed
	}
	fmt.Printf("%d steps passed, %d failed\n", r.passed, r.failed)
	if r.failed > 0 {
		errs = append(errs, fmt.Errorf("%d steps failed", r.failed))
	}
	return errors.Join(errs...)
}

// rig is what scenarios share.
type rig struct {
	options
	source         string // of the product
	dir            string // of this run
	name           string // of the scenario
	buildFlags     []string
	shared         string // directory of this machine that all of the scenario's have at /shared; empty: none
	passed, failed int
}

// machine is a running machine.
type machine interface {
	// sh runs a script as root and returns its output, both streams
	// together, without white space at the ends. A failing script is an
	// error that holds the output.
	sh(ctx context.Context, script string) (string, error)
}

// stepTime bounds one step.
const stepTime = 9 * time.Minute

// step runs one check and prints how it went; what a check returns is printed
// as its finding.
func (r *rig) step(ctx context.Context, what string, check func(context.Context) (string, error)) bool {
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	began := time.Now()
	found, err := check(ctx)
	took := time.Since(began).Round(10 * time.Millisecond)
	if err != nil {
		r.failed++
		fmt.Printf("FAIL %-8s %-58s %8s\n     %s\n", r.name, what, took, strings.ReplaceAll(err.Error(), "\n", "\n     "))
		return false
	}
	r.passed++
	fmt.Printf("ok   %-8s %-58s %8s  %s\n", r.name, what, took, strings.ReplaceAll(found, "\n", "; "))
	return true
}

// script is a step that succeeds when the script does.
func (r *rig) script(ctx context.Context, m machine, what, script string) bool {
	return r.step(ctx, what, func(ctx context.Context) (string, error) { return m.sh(ctx, script) })
}

// prelude is put before every script.
const prelude = "set -eu\nexport PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root KUBECONFIG=/root/admin.kubeconfig\n" +
	// until SECONDS COMMAND… waits until the command succeeds.
	"until_() { n=$1; shift; e=$(($(date +%s)+n)); while ! \"$@\" >/tmp/until 2>&1; do [ $(date +%s) -lt $e ] || { echo \"not within $n s: $*\"; cat /tmp/until; return 1; }; sleep 0.2; done; }\n" +
	"field() { kubectl get \"$1\" -o jsonpath=\"{$2}\"; }\n" +
	"has() { [ \"$(field \"$1\" \"$2\")\" = \"$3\" ]; }\n"
