package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const speedHeader = "\nvolumes a second, one after the other (mkdir: directories made and removed on the same disk)\n" +
	"disk/volumes    made  used and given back  removed    mkdir"

// measure makes volumes, uses each once, and removes them.
func measure(ctx context.Context, d *driver, at, dir, name string, k kind, count int) ([]string, error) {
	conn, err := grpc.NewClient("unix://"+d.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	controller, node := csipb.NewControllerClient(conn), csipb.NewNodeClient(conn)
	use := &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
	}
	if k.access == "block" {
		use.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
	}
	staged, target := filepath.Join(dir, "speed-staged"), filepath.Join(dir, "speed-target")
	if err := os.MkdirAll(staged, 0o700); err != nil {
		return nil, err
	}
	// No more than the disk has room for.
	volumes := make([]string, min(int64(count), diskSize/2/k.size))
	made, err := rate(len(volumes), func(i int) error {
		r, err := controller.CreateVolume(ctx, &csipb.CreateVolumeRequest{Name: fmt.Sprint("speed-", i),
			CapacityRange:      &csipb.CapacityRange{RequiredBytes: k.size},
			VolumeCapabilities: []*csipb.VolumeCapability{use}})
		volumes[i] = r.GetVolume().GetVolumeId()
		return err
	})
	if err != nil {
		return nil, err
	}
	used, err := rate(len(volumes), func(i int) error { return useOnce(ctx, node, volumes[i], staged, target, use) })
	if err != nil {
		return nil, err
	}
	removed, err := rate(len(volumes), func(i int) error {
		_, err := controller.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: volumes[i]})
		return err
	})
	if err != nil {
		return nil, err
	}
	mkdir, err := rate(1000, func(int) error {
		path := filepath.Join(at, "directory")
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		return os.Remove(path)
	})
	return []string{fmt.Sprintf("%-12s %7.0f %20.0f %8.0f %8.0f", name, made, used, removed, mkdir)}, err
}

// useOnce shows a volume to nobody.
func useOnce(ctx context.Context, node csipb.NodeClient, volume, staged, target string,
	use *csipb.VolumeCapability) error {
	if _, err := node.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{VolumeId: volume, StagingTargetPath: staged,
		VolumeCapability: use}); err != nil {
		return err
	}
	if _, err := node.NodePublishVolume(ctx, &csipb.NodePublishVolumeRequest{VolumeId: volume,
		StagingTargetPath: staged, TargetPath: target, VolumeCapability: use}); err != nil {
		return err
	}
	if _, err := node.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: volume,
		TargetPath: target}); err != nil {
		return err
	}
	_, err := node.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{VolumeId: volume, StagingTargetPath: staged})
	return err
}

// rate is how often a second do was done.
func rate(count int, do func(i int) error) (float64, error) {
	begin := time.Now()
	for i := range count {
		if err := do(i); err != nil {
			return 0, err
		}
	}
	return float64(count) / time.Since(begin).Seconds(), nil
}
