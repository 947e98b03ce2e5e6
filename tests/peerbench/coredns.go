package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/shoal-project/shoal/tests/upstream"
)

// coreDNS is what answers names in upstream's clusters. Of its plugins those are built
// that kubeadm's configuration names and that need nothing of a cloud, and autopath.
const (
	coreDNS        = "github.com/coredns/coredns@v1.15.0"
	coreDNSPlugins = `package plugin

import (
	_ "github.com/coredns/coredns/plugin/autopath"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/metrics"
)
`
)

// buildCoreDNS makes CoreDNS if it is not in the cache directory yet.
func buildCoreDNS(ctx context.Context, cache string) error {
	if upstream.Have(filepath.Join(cache, "coredns")) {
		return nil
	}
	src := filepath.Join(cache, "src", "coredns")
	if err := upstream.Source(ctx, coreDNS, src); err != nil {
		return err
	}
	plugins := filepath.Join(src, "core", "plugin", "zplugin.go")
	if err := os.WriteFile(plugins, []byte(coreDNSPlugins), 0o644); err != nil {
		return err
	}
	return upstream.Build(ctx, coreDNS, src, cache, []upstream.Program{{Name: "coredns", Package: "."}})
}
