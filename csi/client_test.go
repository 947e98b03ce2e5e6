package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/csi/csitest"
)

const (
	stages        = csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
	singleWriters = csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
	expands       = csipb.NodeServiceCapability_RPC_EXPAND_VOLUME
	measures      = csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS
	condition     = csipb.NodeServiceCapability_RPC_VOLUME_CONDITION
)

type capabilities = []csipb.NodeServiceCapability_RPC_Type

// TestCalls: what a driver hears of a volume's life.
func TestCalls(t *testing.T) {
	d := &csitest.Driver{
		Name:         "d",
		Capabilities: capabilities{stages, expands, measures, condition},
		Stats: &csipb.NodeGetVolumeStatsResponse{
			Usage: []*csipb.VolumeUsage{{Unit: csipb.VolumeUsage_BYTES, Total: 10, Used: 4, Available: 6},
				{Unit: csipb.VolumeUsage_INODES, Total: 3, Used: 1, Available: 2}},
			VolumeCondition: &csipb.VolumeCondition{Abnormal: true, Message: "worn out"},
		},
	}
	c := &Client{Driver: "d", Endpoint: d.Serve(t)}
	dir := t.TempDir()
	staged, published := filepath.Join(dir, "staged"), filepath.Join(dir, "pod", "mount")
	for _, made := range []string{staged, filepath.Dir(published)} {
		if err := os.Mkdir(made, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	use := Use{Access: corev1.ReadWriteOnce, FSType: "ext4", Flags: []string{"noatime"}, Group: ptr.To(int64(5))}
	texts := func(word string) map[string]string { return map[string]string{"k": word} }
	stage := Stage{Volume: "v", Path: staged, Use: use, PublishContext: texts("p"), VolumeContext: texts("v"),
		Secrets: texts("s")}
	publish := Publish{Volume: "v", StagingPath: staged, Path: published, Use: use, ReadOnly: true,
		PublishContext: texts("p"), VolumeContext: texts("v"), Secrets: texts("s")}
	expand := Expand{Volume: "v", StagingPath: staged, Path: published, Use: use, Bytes: 20, Secrets: texts("s")}
	for _, err := range []error{c.Stage(ctx, stage), c.Publish(ctx, publish), c.Expand(ctx, expand)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	capability := &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{
			FsType: "ext4", MountFlags: []string{"noatime"}, VolumeMountGroup: "5"}},
	}
	for method, want := range map[string]proto.Message{
		"NodeStageVolume": &csipb.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: staged,
			VolumeCapability: capability, PublishContext: texts("p"), VolumeContext: texts("v"), Secrets: texts("s")},
		"NodePublishVolume": &csipb.NodePublishVolumeRequest{VolumeId: "v", StagingTargetPath: staged,
			TargetPath: published, Readonly: true, VolumeCapability: capability, PublishContext: texts("p"),
			VolumeContext: texts("v"), Secrets: texts("s")},
		"NodeExpandVolume": &csipb.NodeExpandVolumeRequest{VolumeId: "v", StagingTargetPath: staged,
			VolumePath: published, VolumeCapability: capability, Secrets: texts("s"),
			CapacityRange: &csipb.CapacityRange{RequiredBytes: 20}},
	} {
		if got := d.Last(method).(proto.Message); !proto.Equal(got, want) {
			t.Errorf("%s: got\n%v\nwant\n%v", method, got, want)
		}
	}
	stats, err := c.Stats(ctx, "v", published)
	if got, want := fmt.Sprint(*stats.Bytes, *stats.Inodes, *stats.Condition, err),
		"{10 4 6} {3 1 2} {true worn out} <nil>"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := errors.Join(c.Unpublish(ctx, "v", published), c.Unstage(ctx, "v", staged)); err != nil {
		t.Error(err)
	}
	if left := d.String(); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestAccessModes: a driver that tells one writing pod from several is told which.
func TestAccessModes(t *testing.T) {
	for _, c := range []struct {
		mode            corev1.PersistentVolumeAccessMode
		usual, capacity csipb.VolumeCapability_AccessMode_Mode
	}{
		{corev1.ReadWriteOnce, csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
			csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		{corev1.ReadWriteOncePod, csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
			csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		{corev1.ReadOnlyMany, csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
			csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
		{corev1.ReadWriteMany, csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
			csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		{"Another", csipb.VolumeCapability_AccessMode_UNKNOWN, csipb.VolumeCapability_AccessMode_UNKNOWN},
	} {
		for can, want := range map[bool]csipb.VolumeCapability_AccessMode_Mode{false: c.usual, true: c.capacity} {
			d := &csitest.Driver{Name: "d"}
			if can {
				d.Capabilities = capabilities{singleWriters}
			}
			client := &Client{Driver: "d", Endpoint: d.Serve(t)}
			target := filepath.Join(t.TempDir(), "mount")
			if err := client.Publish(t.Context(), Publish{Volume: "v", Path: target,
				Use: Use{Access: c.mode, Block: true}}); err != nil {
				t.Fatal(err)
			}
			got := d.Last("NodePublishVolume").(*csipb.NodePublishVolumeRequest).VolumeCapability
			if got.AccessMode.Mode != want || got.GetBlock() == nil {
				t.Errorf("%s, with the capability %v: got %v, want %v", c.mode, can, got, want)
			}
		}
	}
}

// TestErrors tells final errors from those that leave a volume uncertain, and both
// from those that no second try mends.
func TestErrors(t *testing.T) {
	for code, want := range map[codes.Code]string{
		codes.Canceled: "uncertain", codes.DeadlineExceeded: "uncertain", codes.Unavailable: "uncertain",
		codes.ResourceExhausted: "uncertain", codes.Aborted: "uncertain",
		codes.Unknown: "final", codes.Internal: "final", codes.AlreadyExists: "final", codes.PermissionDenied: "final",
		codes.Unimplemented: "final", codes.Unauthenticated: "final", codes.DataLoss: "final",
		codes.InvalidArgument: "final infeasible", codes.OutOfRange: "final infeasible",
		codes.NotFound:           "final infeasible",
		codes.FailedPrecondition: "final in use",
	} {
		t.Run(code.String(), func(t *testing.T) {
			d := &csitest.Driver{Name: "d", Before: func(context.Context, string, string) error {
				return status.Error(code, strings.Repeat("x", 5000))
			}}
			err := (&Client{Driver: "d", Endpoint: d.Serve(t)}).Unpublish(t.Context(), "v", "/path")
			got := "uncertain"
			if Final(err) {
				got = "final"
			}
			if Infeasible(err) {
				got += " infeasible"
			}
			if InUse(err) {
				got += " in use"
			}
			if got != want || len(err.Error()) > 1200 {
				t.Errorf("got %s, want %s: %d bytes of text", got, want, len(err.Error()))
			}
			if !strings.HasSuffix(err.Error(), " (driver d, call NodeUnpublishVolume)") {
				t.Errorf("the error does not tell what failed: %v", err)
			}
		})
	}
	if Final(errors.New("before the call")) {
		t.Error("an error that is no answer is final")
	}
}

// TestNobodyListens: a driver whose socket nobody serves leaves the volume
// uncertain, at once.
func TestNobodyListens(t *testing.T) {
	err := (&Client{Driver: "d", Endpoint: filepath.Join(t.TempDir(), "none")}).Unpublish(t.Context(), "v", "/path")
	if status.Code(err) != codes.Unavailable || Final(err) {
		t.Errorf("got %v", err)
	}
}

// TestWedged: a call that hangs ends, and is told as such.
func TestWedged(t *testing.T) {
	d := &csitest.Driver{Name: "d", Before: func(ctx context.Context, _, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	var seen []string
	c := &Client{Driver: "d", Endpoint: d.Serve(t), timeout: 10 * time.Millisecond,
		Observe: func(driver, method string, code codes.Code, _ time.Duration) {
			seen = append(seen, driver+" "+method+" "+code.String())
		}}
	err := c.Unstage(t.Context(), "v", "/path")
	if status.Code(err) != codes.DeadlineExceeded || Final(err) {
		t.Errorf("got %v", err)
	}
	if got, want := fmt.Sprint(seen), "[d /csi.v1.Node/NodeUnstageVolume DeadlineExceeded]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestMissing: no call is sent without a volume and a path.
func TestMissing(t *testing.T) {
	c, ctx := &Client{}, t.Context()
	_, stats := c.Stats(ctx, "v", "")
	for want, errs := range map[string][]error{
		"missing volume id": {c.Stage(ctx, Stage{}), c.Unstage(ctx, "", "p"), c.Publish(ctx, Publish{}),
			c.Unpublish(ctx, "", "p"), c.Expand(ctx, Expand{})},
		"missing target path":         {c.Publish(ctx, Publish{Volume: "v"}), c.Unpublish(ctx, "v", ""), stats},
		"missing staging target path": {c.Stage(ctx, Stage{Volume: "v"}), c.Unstage(ctx, "v", "")},
		"missing volume path":         {c.Expand(ctx, Expand{Volume: "v"})},
	} {
		for i, err := range errs {
			if err == nil || err.Error() != want {
				t.Errorf("%d: got %v, want %s", i, err, want)
			}
		}
	}
}

// TestDrivers: versions, names that are taken, and a cluster that refuses.
func TestDrivers(t *testing.T) {
	d := &csitest.Driver{Name: "d", Info: &csipb.NodeGetInfoResponse{NodeId: "n", MaxVolumesPerNode: 3,
		AccessibleTopology: &csipb.Topology{Segments: map[string]string{"rack": "1"}}}}
	socket := d.Serve(t)
	var mu sync.Mutex
	var told []string
	tell := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, fmt.Sprintf(format, args...))
	}
	var refuse error
	all := &Drivers{
		Publish: func(_ context.Context, driver string, info NodeInfo) error {
			tell("publish %s %v", driver, info)
			return refuse
		},
		Withdraw: func(driver string) { tell("withdraw %s", driver) },
		Changed:  func() { tell("changed") },
	}
	const failed = "plugin validation failed with err: validation failed for CSI Driver d at endpoint "
	at := failed + socket + ": "
	for _, step := range []struct {
		do   func() error
		want string // error, and what was told
	}{
		{func() error { return all.Register(t.Context(), "d", socket, nil) },
			at + "plugin returned an empty list for supported versions []"},
		{func() error { return all.Register(t.Context(), "d", socket, []string{"2.0.0"}) },
			at + `none of the versions specified ["2.0.0"] are supported. err=` + unsupported(t) + " []"},
		{func() error { return all.Register(t.Context(), "d", socket, []string{"1.0.0", "2.0.0"}) },
			"<nil> [changed publish d {n 3 map[rack:1]}]"},
		{func() error { return all.Register(t.Context(), "d", "/other", []string{"1.0.0"}) },
			failed + `/other: another driver with the same name is already registered with a higher supported version: "1.0.0" []`},
		{func() error { all.Deregister("d", "/other"); return nil }, "<nil> []"},
		{func() error { return all.Refresh(t.Context(), "d") }, "<nil> [publish d {n 3 map[rack:1]}]"},
		{func() error { return all.Register(t.Context(), "d", socket, []string{"1.1.0"}) },
			"<nil> [changed publish d {n 3 map[rack:1]}]"},
		{func() error { all.Deregister("d", socket); return nil }, "<nil> [withdraw d changed]"},
		{func() error { return all.Refresh(t.Context(), "d") },
			"driver name d not found in the list of registered CSI drivers []"},
		{func() error {
			refuse = errors.New("no")
			return all.Register(t.Context(), "d", socket, []string{"1.0.0"})
		},
			"plugin registration failed with err: no [changed publish d {n 3 map[rack:1]} withdraw d changed]"},
	} {
		told = []string{}
		err := step.do()
		if got := fmt.Sprint(err, " ", told); got != step.want {
			t.Errorf("got\n%s\nwant\n%s", got, step.want)
		}
	}
}

// unsupported is what the library says of versions that are none of 1.
func unsupported(t *testing.T) string {
	t.Helper()
	_, err := highest([]string{"2.0.0"})
	_, text, _ := strings.Cut(err.Error(), "err=")
	return text
}
