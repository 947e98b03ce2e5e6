// Command shoal-fence stops pods that must not outlive their node's hold on them when
// the agent is dead or hangs (package fence/keeper). The agent starts it before the first such
// pod; it ends by itself after the last.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/fence/keeper"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "shoal-fence:", err)
		os.Exit(1)
	}
}

func run() error {
	var k keeper.Keeper
	flag.StringVar(&k.Path, "directory", "", "shared with the agent")
	watchdog := flag.String("watchdog", "", "watchdog device, written to every second")
	reset := flag.Bool("reset", false, "reset the machine when pods cannot be stopped in time")
	flag.Parse()
	if k.Path == "" {
		return errors.New("-directory must be given")
	}
	k.Say = func(s string) { fmt.Fprintln(os.Stderr, "shoal-fence:", s) }
	k.OpenWatchdog = keeper.Watchdog(*watchdog)
	if *reset {
		k.Reset = func() {
			if err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); err != nil {
				k.Say("cannot reset the machine: " + err.Error())
			}
		}
	}
	prefer(k.Say)
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP) // a session that ends takes nobody with it
	// The machine shuts down, and waits for this process: its pods must not outlive it.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return k.Run(ctx)
}

// prefer has the process run when memory and processor are short. What is refused is
// said, and does not keep it from its work.
func prefer(say func(string)) {
	debug.SetMemoryLimit(16 << 20)
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -20); err != nil {
		say("cannot take a higher priority: " + err.Error())
	}
	if err := stayInMemory(); err != nil {
		say("cannot stay in memory: " + err.Error())
	}
}

// largest is the size of mappings from which on they are what the runtime sets aside: all
// of it locked would be 40 MB.
const largest = 4 << 20

// stayInMemory locks the program, its data and the heap that it has: it must not wait for
// the disk whose failure it is there for.
func stayInMemory() error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		var mode string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n != 3 || mode[0] != 'r' || to-from > largest {
			continue
		}
		_, _, errno := unix.Syscall(unix.SYS_MLOCK, from, to-from, 0)
		// The kernel's own pages are always there.
		if errno != 0 && !strings.Contains(line, "[v") {
			return fmt.Errorf("lock %s: %w", strings.TrimSpace(line), errno)
		}
	}
	return nil
}
