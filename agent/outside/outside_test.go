package outside

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// service is a runtime and its images, which says its name.
type service struct {
	criv1.UnimplementedRuntimeServiceServer
	criv1.UnimplementedImageServiceServer
	name string
}

func (s *service) Version(context.Context, *criv1.VersionRequest) (*criv1.VersionResponse, error) {
	return &criv1.VersionResponse{
		Version: "0.1.0", RuntimeApiVersion: "v1", RuntimeName: s.name, RuntimeVersion: "1",
	}, nil
}

func (s *service) ImageFsInfo(context.Context, *criv1.ImageFsInfoRequest) (*criv1.ImageFsInfoResponse, error) {
	return &criv1.ImageFsInfoResponse{}, nil
}

func (s *service) PullImage(context.Context, *criv1.PullImageRequest) (*criv1.PullImageResponse, error) {
	return &criv1.PullImageResponse{ImageRef: "of-" + s.name}, nil
}

// serve answers at a socket until the test ends.
func serve(t *testing.T, path, name string, runtime bool) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Error(err)
		return
	}
	g, s := grpc.NewServer(), &service{name: name}
	if runtime {
		criv1.RegisterRuntimeServiceServer(g, s)
	}
	criv1.RegisterImageServiceServer(g, s)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-done })
}

// TestEndpoints: CRI-2. Images are asked for at their own socket where there is one, which
// may answer later than the runtime. The CRI client leaves a connection behind that was not
// answered, so leaks are not looked for here.
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
