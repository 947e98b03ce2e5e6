package outside

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/cgroup"
)

// service is a runtime and its images, which says its name.
type service struct {
	criv1.UnimplementedRuntimeServiceServer
	criv1.UnimplementedImageServiceServer
	name    string
	streams bool // lists
}

func (s *service) Version(context.Context, *criv1.VersionRequest) (*criv1.VersionResponse, error) {
	return &criv1.VersionResponse{
		Version: "0.1.0", RuntimeApiVersion: "v1", RuntimeName: s.name, RuntimeVersion: "1",
	}, nil
}

func (s *service) ImageFsInfo(context.Context, *criv1.ImageFsInfoRequest) (*criv1.ImageFsInfoResponse, error) {
	return &criv1.ImageFsInfoResponse{}, nil
}

func (s *service) StreamContainers(
	_ *criv1.StreamContainersRequest, out criv1.RuntimeService_StreamContainersServer,
) error {
	if !s.streams {
		return status.Error(codes.Unimplemented, "not here")
	}
	for _, id := range []string{"1", "2"} {
		if err := out.Send(&criv1.StreamContainersResponse{Containers: []*criv1.Container{{Id: id}}}); err != nil {
			return err
		}
	}
	return nil
}

func (s *service) ListContainers(context.Context, *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	return &criv1.ListContainersResponse{Containers: []*criv1.Container{{Id: "whole"}}}, nil
}

func (s *service) ExecSync(context.Context, *criv1.ExecSyncRequest) (*criv1.ExecSyncResponse, error) {
	return nil, status.Error(codes.DeadlineExceeded, "too long")
}

func (s *service) PullImage(context.Context, *criv1.PullImageRequest) (*criv1.PullImageResponse, error) {
	return &criv1.PullImageResponse{ImageRef: "of-" + s.name}, nil
}

// serve answers at a socket until the test ends.
func serve(t *testing.T, path, name string, runtime bool) {
	t.Helper()
	serveAs(t, path, &service{name: name}, runtime)
}

func serveAs(t *testing.T, path string, s *service, runtime bool) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Error(err)
		return
	}
	g := grpc.NewServer()
	if runtime {
		criv1.RegisterRuntimeServiceServer(g, s)
	}
	criv1.RegisterImageServiceServer(g, s)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-done })
}

// TestEndpoints: CRI-2. Images are asked for at their own socket where there is one, which
// may answer later than the runtime.
func TestEndpoints(t *testing.T) {
	for name, c := range map[string]struct {
		images string
		late   bool
		want   string
	}{
		"one":  {"", false, "of-runtime"},
		"two":  {"images.sock", false, "of-images"},
		"late": {"images.sock", true, "of-images"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			serve(t, filepath.Join(dir, "runtime.sock"), "runtime", true)
			images := ""
			if c.images != "" {
				images = filepath.Join(dir, c.images)
				if c.late {
					timer := time.AfterFunc(300*time.Millisecond, func() { serve(t, images, "images", false) })
					defer timer.Stop()
				} else {
					serve(t, images, "images", false)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			endpoint := "unix://" + filepath.Join(dir, "runtime.sock")
			r, err := Connect(ctx, endpoint, images, time.Minute, nil, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close(ctx)
			defer r.Images.Close(ctx)
			if v, err := r.Version(ctx, "v1"); err != nil || v.RuntimeName != "runtime" {
				t.Errorf("%v, %v", v, err)
			}
			if ref, err := r.Images.PullImage(ctx, &criv1.ImageSpec{Image: "x"}, nil, nil); err != nil || ref != c.want {
				t.Errorf("%s, %v, want %s", ref, err, c.want)
			}
		})
	}
}

// configured is a runtime that answers requests for its configuration one after the other.
type configured struct {
	criapi.RuntimeService
	answers []any
}

func (c *configured) RuntimeConfig(context.Context) (*criv1.RuntimeConfigResponse, error) {
	a := c.answers[0]
	c.answers = c.answers[1:]
	if err, ok := a.(error); ok {
		return nil, err
	}
	return &criv1.RuntimeConfigResponse{Linux: a.(*criv1.LinuxRuntimeConfiguration)}, nil
}

// TestDriver: the runtime tells who makes control groups; one that is too old leaves what is
// configured, and a failure is none.
func TestDriver(t *testing.T) {
	systemd := &criv1.LinuxRuntimeConfiguration{CgroupDriver: criv1.CgroupDriver_SYSTEMD}
	files := &criv1.LinuxRuntimeConfiguration{CgroupDriver: criv1.CgroupDriver_CGROUPFS}
	failed, old := errors.New("not yet"), status.Error(codes.Unimplemented, "what?")
	for name, c := range map[string]struct {
		answers []any
		want    cgroup.Driver
		tells   bool
		fails   bool
	}{
		"systemd":  {[]any{systemd}, cgroup.Systemd, true, false},
		"cgroupfs": {[]any{files}, cgroup.Cgroupfs, true, false},
		"empty":    {[]any{(*criv1.LinuxRuntimeConfiguration)(nil)}, cgroup.Cgroupfs, true, false},
		"old":      {[]any{old}, cgroup.Cgroupfs, false, false},
		"starting": {[]any{failed, failed, systemd}, cgroup.Systemd, true, false},
		"broken":   {[]any{failed, failed, failed}, cgroup.Cgroupfs, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &Runtime{RuntimeService: &configured{answers: c.answers}, log: slog.New(slog.DiscardHandler)}
				got, tells, err := r.Driver(t.Context(), cgroup.Cgroupfs)
				if got != c.want || tells != c.tells || (err != nil) != c.fails {
					t.Errorf("%v, %v, %v", got, tells, err)
				}
			})
		})
	}
}

// TestLists: lists of any size come piece by piece, from a runtime that can do so.
func TestLists(t *testing.T) {
	for streams, want := range map[bool]string{true: "12", false: "whole"} {
		path := filepath.Join(t.TempDir(), "s")
		serveAs(t, path, &service{streams: streams}, true)
		r, err := Connect(t.Context(), path, "", time.Minute, nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		list, err := r.ListContainers(t.Context(), nil)
		got := ""
		for _, c := range list {
			got += c.Id
		}
		if err != nil || got != want {
			t.Errorf("streams: %v: %q, %v, want %q", streams, got, err, want)
		}
		_, _ = r.Close(t.Context()), r.Images.Close(t.Context())
	}
}

// TestCommandThatTakesTooLong: the error is that of the agent's own runtime, by which a probe has
// failed.
func TestCommandThatTakesTooLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	serve(t, path, "runtime", true)
	r, err := Connect(t.Context(), path, "", time.Minute, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = r.ExecSync(t.Context(), "c", []string{"sleep"}, time.Second)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	_, _ = r.Close(t.Context()), r.Images.Close(t.Context())
}
