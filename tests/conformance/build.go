package main

import (
	"context"
	"path/filepath"

	"github.com/shoal-project/shoal/tests/upstream"
)

// programs of the suite and of the images that its specs ask for.
var programs = []upstream.Program{
	{Name: "agnhost", Package: "./test/images/agnhost"},
	{Name: "nnp", Package: "./test/images/nonewprivs"},
	{Name: "sample-apiserver", Package: "k8s.io/sample-apiserver"},
	{Name: "etcd", Package: "go.etcd.io/etcd/server/v3"},
	{Name: "ginkgo", Package: "github.com/onsi/ginkgo/v2/ginkgo"},
	{Name: "e2e.test", Package: "./test/e2e", Test: true},
}

// build makes what is not in the cache directory yet.
func build(ctx context.Context, cache string) error {
	return upstream.Build(ctx, upstream.Kubernetes, filepath.Join(cache, "src"), cache, programs)
}
