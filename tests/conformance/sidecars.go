package main

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"regexp"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/shoal-project/shoal/tests/upstream"
)

// sidecar is a program of kubernetes-csi that specs of storage deploy: a module of
// the proxy, or the name of an archive of sources where the proxy has none.
type sidecar struct {
	module, archive string
	pkg             string
	name            string // of the program
	image           string // that manifests of the suite name
}

var sidecars = []sidecar{
	{module: "github.com/kubernetes-csi/external-provisioner/v6@v6.3.0", pkg: "./cmd/csi-provisioner",
		name: "csi-provisioner", image: "csi-provisioner:v6.1.1"},
	{module: "github.com/kubernetes-csi/external-attacher/v4@v4.12.0", pkg: "./cmd/csi-attacher",
		name: "csi-attacher", image: "csi-attacher:v4.11.0"},
	{module: "github.com/kubernetes-csi/external-resizer/v2@v2.2.0", pkg: "./cmd/csi-resizer",
		name: "csi-resizer", image: "csi-resizer:v2.1.0"},
	{module: "github.com/kubernetes-csi/external-snapshotter/v8@v8.6.0", pkg: "./cmd/csi-snapshotter",
		name: "csi-snapshotter", image: "csi-snapshotter:v8.5.0"},
	{module: "github.com/kubernetes-csi/external-snapshotter/v8@v8.6.0", pkg: "./cmd/snapshot-controller",
		name: "snapshot-controller", image: "snapshot-controller:v8.5.0"},
	{archive: "node-driver-registrar", pkg: "./cmd/csi-node-driver-registrar",
		name: "csi-node-driver-registrar", image: "csi-node-driver-registrar:v2.16.0"},
	{archive: "livenessprobe", pkg: "./cmd/livenessprobe", name: "livenessprobe", image: "livenessprobe:v2.18.0"},
	{archive: "csi-driver-host-path", pkg: "./cmd/hostpathplugin", name: "hostpathplugin",
		image: "hostpathplugin:v1.17.1"},
}

// clientPin is the client of snapshots that goes with its controllers: they name an
// older one, in whose place their repository has a directory.
var clientPin = regexp.MustCompile(`(external-snapshotter/client/v8) v8\.4\.0`)

// buildSidecars makes those that are not in the cache directory's csi yet.
// archives is the directory of the source archives.
func buildSidecars(ctx context.Context, cache, archives string) error {
	for _, s := range sidecars {
		out := filepath.Join(cache, "csi")
		if upstream.Have(filepath.Join(out, s.name)) {
			continue
		}
		module, src := s.module, filepath.Join(cache, "csi-src", path.Base(path.Dir(s.module)))
		if s.archive != "" {
			module, src = s.archive, filepath.Join(cache, "csi-src", s.archive)
			if err := upstream.Unpack(ctx, archives, s.archive, src); err != nil {
				return err
			}
		} else if err := pinned(ctx, module, src); err != nil {
			return err
		}
		program := upstream.Program{Name: s.name, Package: s.pkg, LDFlags: "-X main.version=" + s.version()}
		if err := upstream.Build(ctx, module, src, out, []upstream.Program{program}); err != nil {
			return err
		}
	}
	return nil
}

// pinned makes src of a module, with clientPin.
func pinned(ctx context.Context, module, src string) error {
	if err := upstream.Source(ctx, module, src); err != nil {
		return err
	}
	file := filepath.Join(src, "go.mod")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, clientPin.ReplaceAll(text, []byte("$1 v8.6.0")), 0o644)
}

// version is what the program is to call itself: drivers have to give one.
func (s sidecar) version() string { return s.image[len(s.name)+1:] }

// sidecarImages lists what specs of storage run. Drivers make file systems and
// loop devices, so that they have the programs of the suite's other images.
func sidecarImages(cache string) []image {
	rootfs := filepath.Join(cache, "rootfs.tar")
	images := []image{{registry + "busybox:1.36.1-1", rootfs, nil, v1.Config{Cmd: []string{"sh"}}}}
	for _, s := range sidecars {
		images = append(images, image{"registry.k8s.io/sig-storage/" + s.image, rootfs,
			[]file{{s.name, filepath.Join(cache, "csi", s.name), 0o755}}, v1.Config{Entrypoint: []string{"/" + s.name}}})
	}
	return images
}
