// Command gossipbench measures the gossip of many machines in this one process:
// agent/gossip as it is in the agent and the coordinator, with signed identities,
// grants, a shared key, real sockets on loopback addresses and production timing.
// It kills members and prints after how long the others know, and when they are
// back; and it counts who is called dead while it lives under full CPU load, with
// lost packets, with members that pause, with links that are cut one way or come
// and go. Nothing is asserted; docs/fleet.md has the targets and the figures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"
)

var silent = slog.New(slog.DiscardHandler)

func main() { os.Exit(command()) }

func command() int {
	size := flag.Int("members", 5, "how many machines")
	deaths := flag.Int("deaths", 20, "how many of them die, one after the other")
	minutes := flag.Float64("minutes", 2, "how long each of the other scenarios takes")
	what := flag.String("scenario", "deaths", "comma-separated: deaths, quiet, load, loss, pause, oneway, mute, flap")
	profile := flag.String("cpuprofile", "", "file that gets a profile of the processor's time, for go tool pprof")
	flag.Parse()
	if *profile != "" {
		stop, err := profileTo(*profile)
		if err != nil {
			fmt.Fprintln(os.Stderr, "gossipbench:", err)
			return 1
		}
		defer stop()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *size, *deaths, *minutes, strings.Split(*what, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "gossipbench:", err)
		return 1
	}
	return 0
}

// profileTo writes a profile of this process until stop is called.
func profileTo(path string) (stop func(), err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

func run(ctx context.Context, w io.Writer, size, deaths int, minutes float64, names []string) error {
	if size < coordinators+1 {
		return fmt.Errorf("-members %d: at least %d are needed", size, coordinators+1)
	}
	for _, name := range names {
		if scenarios[name] == nil {
			return fmt.Errorf("-scenario %q: there is no such scenario", name)
		}
	}
	f, err := newFleet(size)
	if err != nil {
		return err
	}
	return f.run(ctx, w, deaths, minutes, names)
}

// run starts all members, does to them what the scenarios say, and stops them.
func (f *fleet) run(ctx context.Context, w io.Writer, deaths int, minutes float64, names []string) error {
	defer f.close()
	began, used := time.Now(), processorTime()
	if err := f.startAll(ctx); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d members know each other after %.1f s and %.1f s of processor time\n", len(f.members),
		time.Since(began).Seconds(), (processorTime() - used).Seconds())
	for _, name := range names {
		if err := measure(ctx, w, f, name, deaths, minutes); err != nil {
			return err
		}
	}
	return nil
}

func measure(ctx context.Context, w io.Writer, f *fleet, name string, deaths int, minutes float64) error {
	b := &bench{fleet: f, deaths: deaths, minutes: minutes, out: newReport()}
	began, used := time.Now(), processorTime()
	err := scenarios[name](b, ctx)
	b.out.line("processor: %.2f %% of one, a member", 100*(processorTime()-used).Seconds()/
		time.Since(began).Seconds()/float64(len(f.members)))
	fmt.Fprintf(w, "\n%s, %d members\n", name, len(f.members))
	b.out.print(w)
	return err
}
