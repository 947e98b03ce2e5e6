package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// Keeper stops pods at the deadline whether the agent lives or not. It is a process of
// its own that allocates little and starts nothing.
type Keeper struct {
	Directory
	// Watchdog is a watchdog device that is written to as long as pods are as they should
	// be; nil: none.
	Watchdog io.Writer
	// Reset is called when pods could not be stopped in time; nil: nothing is.
	Reset func()
	// Say tells of what was done.
	Say func(string)
}

const (
	// idle is how long a keeper stays without pods.
	idle = time.Minute
	// lookAgain is how often the deadline is read at least, and pods are killed anew while
	// it is past.
	lookAgain = time.Second
)

// Run keeps until ctx ends or there has been no pod for a while. It returns at once when
// there is another keeper.
func (k *Keeper) Run(ctx context.Context) error {
	lock, ok, err := k.lock()
	if err != nil || !ok {
		return err
	}
	defer func() { _ = lock.Close() }() // nothing was written
	busy := Clock()
	for ctx.Err() == nil {
		if _, err := os.Stat(k.Path); errors.Is(err, fs.ErrNotExist) {
			return nil // the agent's files were removed, its pods with them
		}
		next, pods := k.look()
		if pods > 0 {
			busy = Clock()
		}
		if Clock()-busy > idle {
			// The agent registers a pod and then looks for the lock: one of the two sees the
			// other.
			if err := lock.Close(); err != nil {
				return err
			}
			if targets, err := k.Targets(); err == nil && len(targets) == 0 {
				return nil
			}
			if lock, ok, err = k.lock(); err != nil || !ok {
				return err
			}
			busy = Clock()
		}
		if err := SleepUntil(ctx, next, nil); err != nil {
			return err
		}
	}
	return nil
}

// look stops the pods if their time is over, and tells when to look again. What cannot be
// read counts as over.
func (k *Keeper) look() (next time.Duration, pods int) {
	deadline, err := k.Deadline()
	if err != nil {
		k.Say("cannot read the deadline, so it counts as past: " + err.Error())
		deadline = 0
	}
	targets, err := k.Targets()
	if err != nil {
		k.Say("cannot read the pods: " + err.Error())
		return Clock() + lookAgain, 1
	}
	now := Clock()
	if now < deadline || len(targets) == 0 {
		k.pet()
		if len(targets) == 0 {
			return now + lookAgain*5, 0
		}
		if k.Watchdog != nil {
			return min(deadline, now+lookAgain), len(targets)
		}
		return deadline, len(targets)
	}
	ran := running(targets)
	if err := Stop(targets); err != nil {
		k.Say(err.Error())
		if k.Reset != nil {
			k.Reset()
		}
		return now + lookAgain/10, len(targets)
	}
	k.pet()
	if ran > 0 {
		k.Say(fmt.Sprintf("the hold on the node's pods ended: %d processes of %d pods were killed", ran, len(targets)))
	}
	return now + lookAgain, len(targets)
}

func (k *Keeper) pet() {
	if k.Watchdog != nil {
		_, _ = k.Watchdog.Write([]byte{0}) // the device resets the machine when this fails for long
	}
}

func running(targets map[string]Target) (n int) {
	for _, t := range targets {
		for _, g := range t.Groups {
			pids, _ := members(g) // only counted
			n += len(pids)
		}
	}
	return n
}

// OpenWatchdog opens a watchdog device, nil for "".
func OpenWatchdog(path string) (io.Writer, error) {
	if path == "" {
		return nil, nil
	}
	return os.OpenFile(path, os.O_WRONLY, 0)
}
