package upstream

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Modules of the API of snapshots and of its controllers.
const (
	Snapshotter       = "github.com/kubernetes-csi/external-snapshotter/v8@v8.6.0"
	SnapshotterClient = "github.com/kubernetes-csi/external-snapshotter/client/v8@v8.6.0"
)

// SnapshotSources makes copies of both modules below a directory, where there are none.
func SnapshotSources(ctx context.Context, below string) (controller, client string, err error) {
	controller, client = filepath.Join(below, "external-snapshotter"), filepath.Join(below, "external-snapshotter-client")
	if err := Source(ctx, Snapshotter, controller); err != nil {
		return "", "", err
	}
	return controller, client, Source(ctx, SnapshotterClient, client)
}

// Snapshots writes docs/snapshots into a directory, with what it takes from upstream's
// repository taken from copies of its modules. kubelet is the directory of each node
// that drivers know. It returns what `kubectl apply -k` needs, and the file of the class.
func Snapshots(dir, controller, client, kubelet string) (kustomization, class string, err error) {
	kustomization = filepath.Join(dir, "snapshots")
	for from, to := range map[string]string{
		"docs/snapshots":                       kustomization,
		filepath.Join(client, "config", "crd"): filepath.Join(dir, "crd"),
		filepath.Join(controller, "deploy", "kubernetes", "snapshot-controller"): filepath.Join(dir, "controller"),
	} {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			return "", "", err
		}
	}
	const repository = "https://github.com/kubernetes-csi/external-snapshotter/"
	for _, change := range [][3]string{
		{"kustomization.yaml", repository + "client/config/crd?ref=v8.6.0", "../crd"},
		{"kustomization.yaml", repository + "deploy/kubernetes/snapshot-controller?ref=v8.6.0", "../controller"},
		{"snapshotter.yaml", "/var/lib/kubelet", kubelet},
	} {
		if err := replace(filepath.Join(kustomization, change[0]), change[1], change[2]); err != nil {
			return "", "", err
		}
	}
	return kustomization, filepath.Join(kustomization, "class.yaml"), nil
}

func replace(file, old, with string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !strings.Contains(string(text), old) {
		return fmt.Errorf("%s has no %q", file, old)
	}
	return os.WriteFile(file, []byte(strings.ReplaceAll(string(text), old, with)), 0o600)
}
