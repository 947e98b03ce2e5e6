package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/upgrade"
)

// upgrader has this machine upgraded when its Node says so. It only starts the command
// that does it, in a unit of its own: the agent itself is replaced meanwhile.
type upgrader struct {
	start func(context.Context) error
	log   *slog.Logger
	seen  chan *corev1.Node // the newest
}

func newUpgrader(log *slog.Logger) *upgrader {
	return &upgrader{start: startUpgrade, log: log, seen: make(chan *corev1.Node, 1)}
}

// Heed takes every version of the Node, and does not block.
func (u *upgrader) Heed(n *corev1.Node) { keepNewest(u.seen, n) }

// Waits between tries of one wish.
const firstAgain, lastAgain = 5 * time.Second, 5 * time.Minute

// Run starts what is wanted until it is told of as over.
func (u *upgrader) Run(ctx context.Context) error {
	var node *corev1.Node
	var again <-chan time.Time
	id, wait := "", firstAgain // of the wish that was tried last, and how long until it is again
	for {
		select {
		case <-ctx.Done():
			return nil
		case node = <-u.seen:
		case <-again:
			again = nil
		}
		wish, err := wanted(node)
		switch {
		case err != nil && id != err.Error():
			id, again = err.Error(), nil
			u.log.Warn("what the Node says of an upgrade is not heeded",
				"annotation", upgrade.WishAnnotation, "err", err)
			continue
		case wish == nil:
			continue
		case wish.ID != id:
			id, wait, again = wish.ID, firstAgain, nil
			u.log.Info("the Node asks for an upgrade", "version", wish.Version, "id", wish.ID)
		case again != nil:
			continue // its time comes
		}
		if err := u.start(ctx); err != nil && wait == firstAgain {
			u.log.Warn("the upgrade cannot be started; it is tried again", "err", err)
		}
		again = time.After(wait)
		wait = min(2*wait, lastAgain)
	}
}

// wanted is what a Node says that its machine has not answered.
func wanted(n *corev1.Node) (*upgrade.Wish, error) {
	if n == nil {
		return nil, nil
	}
	wish, err := upgrade.ParseWish(n.Annotations[upgrade.WishAnnotation])
	if err != nil || wish == nil || upgrade.ParseResult(n.Annotations[upgrade.ResultAnnotation]).ID == wish.ID {
		return nil, err
	}
	return wish, nil
}

const askedUnit = "shoal-upgrade-asked"

// startUpgrade has systemd run the command beside the agent, unless it runs already.
func startUpgrade(ctx context.Context) error {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return fmt.Errorf("no systemd runs this machine: %w", err)
	}
	if exec.CommandContext(ctx, "systemctl", "-q", "is-active", askedUnit).Run() == nil {
		return nil
	}
	out, err := exec.CommandContext(ctx, "systemd-run", "--quiet", "--collect", "--unit="+askedUnit,
		"/usr/bin/shoal", "upgrade", "asked").CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemd-run: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
