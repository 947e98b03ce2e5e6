package keeper

import (
	"cmp"
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
	// OpenWatchdog opens a watchdog device that is written to as long as pods are as they
	// should be; nil: there is none. Once open it resets the machine when nothing is written
	// for its timeout, unless it was told the end.
	OpenWatchdog func() (io.WriteCloser, error)
	// Reset is called when pods could not be stopped in time; nil: nothing is.
	Reset func()
	// Say tells of what was done.
	Say func(string)

	watchdog io.WriteCloser
	said     string        // of what goes wrong, so that it is said once
	idle     time.Duration // how long it stays without pods, 0: idle
}

const (
	// idle is how long a keeper stays without pods.
	idle = time.Minute
	// lookAgain is how often the deadline is read at least, pods are killed anew while it is
	// past, and a watchdog is written to.
	lookAgain = time.Second
)

// Run keeps until there has been no pod for a while, or ctx ends, with which it stops the
// pods. It returns at once when there is another keeper. A watchdog is left to reset the
// machine when pods may run that nobody stops now.
func (k *Keeper) Run(ctx context.Context) error {
	lock, ok, err := k.lock()
	if err != nil || !ok {
		return err
	}
	defer func() { _ = lock.Close() }() // nothing was written
	if err := k.arm(); err != nil {
		return err
	}
	busy := Clock()
	for ctx.Err() == nil {
		if _, err := os.Stat(k.Path); errors.Is(err, fs.ErrNotExist) {
			return k.disarm() // the agent's files were removed, its pods with them
		}
		next, pods := k.look()
		if pods > 0 {
			busy = Clock()
		}
		if Clock()-busy > cmp.Or(k.idle, idle) {
			// The agent registers a pod and then looks for the lock: one of the two sees the
			// other. Whoever takes the lock needs the watchdog.
			if err := errors.Join(k.disarm(), lock.Close()); err != nil {
				return err
			}
			if targets, err := k.Targets(); err == nil && len(targets) == 0 {
				return nil
			}
			if lock, ok, err = k.lock(); err != nil || !ok {
				return err
			}
			if err := k.arm(); err != nil {
				return err
			}
			busy = Clock()
		}
		if err := SleepUntil(ctx, next, nil); err != nil {
			return err
		}
	}
	if deadline, err := k.Deadline(); err == nil && Clock() < deadline {
		k.pet()
	}
	targets, err := k.Targets()
	if err := errors.Join(err, Stop(targets)); err != nil {
		return err
	}
	return k.disarm()
}

// arm opens the watchdog, which begins to count.
func (k *Keeper) arm() (err error) {
	if k.OpenWatchdog != nil {
		k.watchdog, err = k.OpenWatchdog()
	}
	return err
}

// disarm tells the watchdog by the letter V that its end is no failure, and closes it.
func (k *Keeper) disarm() error {
	if k.watchdog == nil {
		return nil
	}
	_, err := k.watchdog.Write([]byte("V"))
	err = errors.Join(err, k.watchdog.Close())
	k.watchdog = nil
	return err
}

// look stops the pods if their time is over, and tells when to look again. What cannot be
// read counts as over.
func (k *Keeper) look() (next time.Duration, pods int) {
	deadline, err := k.Deadline()
	if err != nil {
		k.complain("cannot read the deadline, so it counts as past: " + err.Error())
		deadline = 0
	}
	targets, err := k.Targets()
	if err != nil {
		k.complain("cannot read the pods: " + err.Error())
		return Clock() + lookAgain, 1
	}
	now := Clock()
	if now < deadline || len(targets) == 0 {
		k.pet()
		switch {
		case len(targets) == 0 && k.watchdog == nil:
			return now + lookAgain*5, 0
		case len(targets) == 0:
			return now + lookAgain, 0
		case k.watchdog != nil:
			return min(deadline, now+lookAgain), len(targets)
		}
		return deadline, len(targets)
	}
	ran := running(targets)
	if err := Stop(targets); err != nil {
		k.complain(err.Error())
		if k.Reset != nil {
			k.Reset()
		}
		return now + lookAgain/10, len(targets)
	}
	k.said = ""
	k.pet()
	if ran > 0 {
		k.Say(fmt.Sprintf("the hold on the node's pods ended: %d processes of %d pods were killed", ran, len(targets)))
	}
	return now + lookAgain, len(targets)
}

// complain says what goes wrong when it is not what was said last.
func (k *Keeper) complain(s string) {
	if s != k.said {
		k.said = s
		k.Say(s)
	}
}

func (k *Keeper) pet() {
	if k.watchdog != nil {
		_, _ = k.watchdog.Write([]byte{0}) // the device resets the machine when this fails for long
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

// Watchdog is what opens a watchdog device, nil for "".
func Watchdog(path string) func() (io.WriteCloser, error) {
	if path == "" {
		return nil
	}
	return func() (io.WriteCloser, error) { return os.OpenFile(path, os.O_WRONLY, 0) }
}
