package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/shoal-project/shoal/tests/upstream"
)

// programs of the suite and of the images that its specs ask for.
var programs = []upstream.Program{
	{Name: "agnhost", Package: "./test/images/agnhost"},
	{Name: "nnp", Package: "./test/images/nonewprivs"},
	{Name: "regression-issue-74839", Package: "./test/images/regression-issue-74839"},
	{Name: "consumer", Package: "./test/images/resource-consumer"},
	{Name: "consume-cpu", Package: "./test/images/resource-consumer/consume-cpu"},
	{Name: "sample-apiserver", Package: "k8s.io/sample-apiserver"},
	{Name: "etcd", Package: "go.etcd.io/etcd/server/v3"},
	{Name: "ginkgo", Package: "github.com/onsi/ginkgo/v2/ginkgo"},
}

// suiteProgram is the suite of clusters, which that of nodes does without.
var suiteProgram = upstream.Program{Name: "e2e.test", Package: "./test/e2e", Test: true}

// nodePrograms are further ones of the suite of nodes.
var nodePrograms = []upstream.Program{
	{Name: "sampledeviceplugin", Package: "./test/images/sample-device-plugin"},
	{Name: "e2e_node.test", Package: "./test/e2e_node", Test: true},
}

// coreDNS is part of agnhost's image. Of its plugins only those are built that the
// specs' configurations name: the others need the libraries of several clouds.
const (
	coreDNS        = "github.com/coredns/coredns@v1.12.4"
	coreDNSPlugins = `package plugin

import (
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/whoami"
)
`
)

// hostPathDriver is what specs of dynamic resource allocation pass connections
// on with, and some of storage test. Later versions are not on the module proxy.
const hostPathDriver = "github.com/kubernetes-csi/csi-driver-host-path@v1.7.2"

// build makes what is not in the cache directory yet.
func build(ctx context.Context, cache string, o options) error {
	all := append(slices.Clone(programs), suiteProgram)
	if o.node {
		all = append(slices.Clone(programs), nodePrograms...)
	}
	if err := upstream.Build(ctx, upstream.Kubernetes, filepath.Join(cache, "src"), cache, all); err != nil {
		return err
	}
	if err := buildPause(ctx, cache); err != nil {
		return err
	}
	switch {
	case o.outside():
		if err := upstream.BuildContainerd(ctx, containerdPrograms(o.bin)); err != nil {
			return err
		}
	case o.node:
	case o.storage():
		if err := upstream.BuildSidecars(ctx, cache, o.archives); err != nil {
			return err
		}
	case o.labels != "":
		if err := buildWide(ctx, cache); err != nil {
			return err
		}
	}
	if upstream.Have(filepath.Join(cache, "coredns")) {
		return nil
	}
	src := filepath.Join(cache, "coredns-src")
	if err := upstream.Source(ctx, coreDNS, src); err != nil {
		return err
	}
	plugins := filepath.Join(src, "core", "plugin", "zplugin.go")
	if err := os.WriteFile(plugins, []byte(coreDNSPlugins), 0o644); err != nil {
		return err
	}
	return upstream.Build(ctx, coreDNS, src, cache, []upstream.Program{{Name: "coredns", Package: "."}})
}

// buildPause builds the one program of the images that is not upstream's, from this repository.
func buildPause(ctx context.Context, cache string) error {
	out := filepath.Join(cache, "pause")
	if upstream.Have(out) {
		return nil
	}
	cmd := exec.CommandContext(ctx, upstream.GoProgram(), "build", "-o", out, "./tests/conformance/pause")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build pause: %w\n%s", err, text)
	}
	return nil
}

func buildWide(ctx context.Context, cache string) error {
	return upstream.Build(ctx, hostPathDriver, filepath.Join(cache, "hostpath-src"), cache,
		[]upstream.Program{{Name: "hostpathplugin", Package: "./cmd/hostpathplugin"}})
}
