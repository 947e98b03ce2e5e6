package upstream

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
)

// Sidecar is a program of kubernetes-csi: a module of the proxy, or the name of an
// archive of sources where the proxy has none.
type Sidecar struct {
	module, archive string
	pkg             string
	Name            string // of the program
	Image           string // that manifests of upstream's suite name
}

// Sidecars are those that upstream's specs of storage deploy.
var Sidecars = []Sidecar{
	{module: "github.com/kubernetes-csi/external-provisioner/v6@v6.3.0", pkg: "./cmd/csi-provisioner",
		Name: "csi-provisioner", Image: "csi-provisioner:v6.1.1"},
	{module: "github.com/kubernetes-csi/external-attacher/v4@v4.12.0", pkg: "./cmd/csi-attacher",
		Name: "csi-attacher", Image: "csi-attacher:v4.11.0"},
	{module: "github.com/kubernetes-csi/external-resizer/v2@v2.2.0", pkg: "./cmd/csi-resizer",
		Name: "csi-resizer", Image: "csi-resizer:v2.1.0"},
	{module: Snapshotter, pkg: "./cmd/csi-snapshotter",
		Name: "csi-snapshotter", Image: "csi-snapshotter:v8.5.0"},
	{module: Snapshotter, pkg: "./cmd/snapshot-controller",
		Name: "snapshot-controller", Image: "snapshot-controller:v8.5.0"},
	{archive: "node-driver-registrar", pkg: "./cmd/csi-node-driver-registrar",
		Name: "csi-node-driver-registrar", Image: "csi-node-driver-registrar:v2.16.0"},
	{archive: "livenessprobe", pkg: "./cmd/livenessprobe", Name: "livenessprobe", Image: "livenessprobe:v2.18.0"},
	{archive: "csi-driver-host-path", pkg: "./cmd/hostpathplugin", Name: "hostpathplugin",
		Image: "hostpathplugin:v1.17.1"},
}

// clientPin is the client of snapshots that goes with its controllers: they name an
// older one, in whose place their repository has a directory.
var clientPin = regexp.MustCompile(`(external-snapshotter/client/v8) v8\.4\.0`)

// BuildSidecars makes some of the Sidecars, or all, that are not in the cache
// directory's csi yet. archives is the directory of the source archives.
func BuildSidecars(ctx context.Context, cache, archives string, only ...string) error {
	for _, s := range Sidecars {
		out := filepath.Join(cache, "csi")
		if Have(filepath.Join(out, s.Name)) || only != nil && !slices.Contains(only, s.Name) {
			continue
		}
		module, src := s.module, filepath.Join(cache, "csi-src", path.Base(path.Dir(s.module)))
		if s.archive != "" {
			module, src = s.archive, filepath.Join(cache, "csi-src", s.archive)
			if err := Unpack(ctx, archives, s.archive, src); err != nil {
				return err
			}
		} else if err := pinned(ctx, module, src); err != nil {
			return err
		}
		program := Program{Name: s.Name, Package: s.pkg, LDFlags: "-X main.version=" + s.version()}
		if err := Build(ctx, module, src, out, []Program{program}); err != nil {
			return err
		}
	}
	return nil
}

// pinned makes src of a module, with clientPin.
func pinned(ctx context.Context, module, src string) error {
	if err := Source(ctx, module, src); err != nil {
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
func (s Sidecar) version() string { return s.Image[len(s.Name)+1:] }
