// Package outside uses a container runtime that is not the agent's own, such as
// containerd or CRI-O, by its CRI socket.
package outside

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"

	"github.com/shoal-project/shoal/agent/cgroup"
)

const (
	// again is how often a runtime that does not answer is tried: both start with
	// the machine.
	again = time.Second
	// A pull may take so long.
	imagePatience = 15 * time.Minute
	// streams: lists come piece by piece where the runtime can (KEP-5825), whatever their size; the
	// client asks for whole ones where it cannot.
	streams = true
	// attempts is how often a runtime is asked for its configuration that fails to tell.
	attempts = 3
)

// Runtime is a runtime behind a socket.
type Runtime struct {
	criapi.RuntimeService
	Images criapi.ImageManagerService
	log    *slog.Logger
}

// Connect waits for the runtime behind endpoint, a path or unix://PATH, whose requests may
// take as long as timeout, and for the images' one behind another endpoint if images is not
// empty. Requests have spans of tracer,
// if there is one, and tell the runtime of them.
func Connect(
	ctx context.Context, endpoint, images string, timeout time.Duration, tracer trace.TracerProvider, log *slog.Logger,
) (*Runtime, error) {
	if images == "" {
		images = endpoint
	}
	endpoint, images = address(endpoint), address(images)
	r := &Runtime{log: log}
	err := await(ctx, "the container runtime", endpoint, log, func() (err error) {
		r.RuntimeService, err = criclient.NewRemoteRuntimeService(ctx, endpoint, timeout, tracer, streams)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = await(ctx, "the image service", images, log, func() (err error) {
		r.Images, err = criclient.NewRemoteImageService(ctx, images, imagePatience, tracer, streams)
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func address(endpoint string) string {
	if strings.Contains(endpoint, "://") {
		return endpoint
	}
	return "unix://" + endpoint
}

// await connects until something answers.
func await(ctx context.Context, what, endpoint string, log *slog.Logger, connect func() error) error {
	for told := false; ; told = true {
		err := connect()
		if err == nil {
			return nil
		}
		if !told {
			log.Warn(what+" does not answer; trying on (is it running, with its CRI plugin?)",
				"endpoint", endpoint, "err", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(again):
		}
	}
}

// Driver is who makes control groups: the runtime does so for the groups that
// the agent names (KEP-4033). A runtime that does not say leaves configured; tells is false of
// one that cannot, as it is older than the request. One that fails to is asked again: groups
// at another's places would be no pod's.
func (r *Runtime) Driver(ctx context.Context, configured cgroup.Driver) (driver cgroup.Driver, tells bool, err error) {
	for range attempts {
		var c *criv1.RuntimeConfigResponse
		c, err = r.RuntimeConfig(ctx)
		switch {
		case status.Code(err) == codes.Unimplemented:
			return configured, false, nil
		case err == nil && c.GetLinux() == nil:
			return configured, true, nil
		case err == nil && c.GetLinux().GetCgroupDriver() == criv1.CgroupDriver_SYSTEMD:
			return cgroup.Systemd, true, nil
		case err == nil:
			return cgroup.Cgroupfs, true, nil
		}
		select {
		case <-ctx.Done():
			return configured, false, ctx.Err()
		case <-time.After(again):
		}
	}
	return configured, false, fmt.Errorf("the container runtime does not tell who makes control groups: %w", err)
}

// ExecSync is the runtime's. A command that took too long has context.DeadlineExceeded, as with
// the agent's own runtime: the client says so in words of its own, and a probe has failed then.
func (r *Runtime) ExecSync(
	ctx context.Context, id string, cmd []string, timeout time.Duration,
) (stdout, stderr []byte, err error) {
	stdout, stderr, err = r.RuntimeService.ExecSync(ctx, id, cmd, timeout)
	if errors.Is(err, criclient.ErrCommandTimedOut) {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return stdout, stderr, err
}

// TellPodCIDR lets the runtime fill its CNI template.
func (r *Runtime) TellPodCIDR(ctx context.Context, cidr string) {
	c := &criv1.RuntimeConfig{NetworkConfig: &criv1.NetworkConfig{PodCidr: cidr}}
	if err := r.UpdateRuntimeConfig(ctx, c); err != nil {
		r.log.Warn("the container runtime did not take the pod network", "err", err)
	}
}
