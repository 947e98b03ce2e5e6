package main

import (
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/shoal-project/shoal/tests/upstream"
)

// sidecarImages lists what specs of storage run. Drivers make file systems and
// loop devices, so that they have the programs of the suite's other images.
func sidecarImages(cache string) []image {
	rootfs := filepath.Join(cache, "rootfs.tar")
	images := []image{{registry + "busybox:1.36.1-1", rootfs, nil, v1.Config{Cmd: []string{"sh"}}}}
	for _, s := range upstream.Sidecars {
		images = append(images, image{"registry.k8s.io/sig-storage/" + s.Image, rootfs,
			[]file{{s.Name, filepath.Join(cache, "csi", s.Name), 0o755}}, v1.Config{Entrypoint: []string{"/" + s.Name}}})
	}
	// As docs/snapshots names them.
	for _, name := range []string{"snapshot-controller", "csi-snapshotter"} {
		images = append(images, image{"registry.k8s.io/sig-storage/" + name + ":v8.6.0", rootfs,
			[]file{{name, filepath.Join(cache, "csi", name), 0o755}}, v1.Config{Entrypoint: []string{"/" + name}}})
	}
	return images
}
