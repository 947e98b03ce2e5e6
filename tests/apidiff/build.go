package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/shoal-project/shoal/tests/upstream"
)

const versionPackage = "k8s.io/component-base/version"

// programs are upstream's. The version is stamped in: the API's defaults and
// gates depend on it.
var programs = []upstream.Program{
	{Name: "etcd", Package: "go.etcd.io/etcd/server/v3"},
	{Name: "kube-apiserver", Package: "./cmd/kube-apiserver", LDFlags: "-X " + versionPackage + ".gitVersion=" +
		upstream.Version + " -X " + versionPackage + ".gitMajor=1 -X " + versionPackage + ".gitMinor=36"},
}

// build makes what is not in the cache directory yet.
func build(ctx context.Context, cache string) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	return upstream.Build(ctx, upstream.Kubernetes, filepath.Join(cache, "src", "kubernetes"), cache, programs)
}
