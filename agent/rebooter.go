package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/agent/shutdown"
)

// rebooter reboots this machine when its Node says so, and tells when it has.
type rebooter struct {
	boot   string
	reboot func(context.Context) error
	tell   func(ctx context.Context, patch []byte) error
	log    *slog.Logger
	seen   chan *corev1.Node // the newest
}

func newRebooter(client kubernetes.Interface, name, boot string, log *slog.Logger) *rebooter {
	return &rebooter{boot: boot, reboot: rebootMachine, log: log, seen: make(chan *corev1.Node, 1),
		tell: func(ctx context.Context, patch []byte) error {
			_, err := client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		}}
}

// Heed takes every version of the Node, and does not block.
func (r *rebooter) Heed(n *corev1.Node) { keepNewest(r.seen, n) }

// keepNewest puts a Node into a channel of one in the place of an older one.
func keepNewest(into chan *corev1.Node, n *corev1.Node) {
	select {
	case <-into:
	default:
	}
	select {
	case into <- n:
	default: // one came in between, and is looked at
	}
}

// Run does what the Node asks for. What fails is tried again, each time later.
func (r *rebooter) Run(ctx context.Context) error {
	var node *corev1.Node
	var again <-chan time.Time
	last, wait := "", firstAgain // the annotation, and how long until it is tried again
	for {
		select {
		case <-ctx.Done():
			return nil
		case node = <-r.seen:
		case <-again:
			again = nil
		}
		text := node.Annotations[shutdown.RebootAnnotation]
		asked, err := shutdown.ParseReboot(text)
		if text != last {
			last, wait, again = text, firstAgain, nil
			if err != nil {
				r.log.Warn("what the Node says of a reboot is not heeded",
					"annotation", shutdown.RebootAnnotation, "err", err)
			}
		}
		step := asked.Decide(node, r.boot)
		if step == shutdown.Nothing || again != nil {
			continue
		}
		if err := r.do(ctx, step, asked); err != nil && wait == firstAgain {
			r.log.Warn("a reboot that is asked for does not go on; it is tried again", "err", err)
		}
		again = time.After(wait)
		wait = min(2*wait, lastAgain)
	}
}

func (r *rebooter) do(ctx context.Context, step shutdown.Step, asked *shutdown.Reboot) error {
	if step == shutdown.Now {
		r.log.Info("the Node asks for a reboot")
		return r.reboot(ctx)
	}
	patch := map[string]any{"metadata": map[string]any{"annotations": map[string]any{shutdown.RebootAnnotation: nil}}}
	if asked.Uncordon {
		patch["spec"] = map[string]any{"unschedulable": nil}
	}
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	return r.tell(ctx, data)
}

// rebootMachine lets pods end as at every shutdown: systemd asks logind's inhibitors.
func rebootMachine(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "systemctl", "--no-block", "reboot").CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl reboot: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
