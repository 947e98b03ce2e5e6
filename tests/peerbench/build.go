package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	"os"

	"github.com/shoal-project/shoal/tests/upstream"
)

// What stands beside upstream's release.
const (
	containerdModule = "github.com/containerd/containerd/v2@v2.4.2"
	pluginsModule    = "github.com/containernetworking/plugins@v1.9.1"
	versionPackage   = "k8s.io/component-base/version"
)

const kubernetesFlags = "-X " + versionPackage + ".gitVersion=" + upstream.Version + " -X " + versionPackage +
	".gitMajor=1 -X " + versionPackage + ".gitMinor=36"

// builds are the programs by module.
var builds = []struct {
	module, name string
	programs     []upstream.Program
}{
	{upstream.Kubernetes, "kubernetes", []upstream.Program{
		{Name: "etcd", Package: "go.etcd.io/etcd/server/v3"},
		{Name: "kube-apiserver", Package: "./cmd/kube-apiserver", LDFlags: kubernetesFlags},
		{Name: "kube-controller-manager", Package: "./cmd/kube-controller-manager", LDFlags: kubernetesFlags},
		{Name: "kube-scheduler", Package: "./cmd/kube-scheduler", LDFlags: kubernetesFlags},
		{Name: "kubelet", Package: "./cmd/kubelet", LDFlags: kubernetesFlags},
		{Name: "kube-proxy", Package: "./cmd/kube-proxy", LDFlags: kubernetesFlags},
	}},
	{containerdModule, "containerd", []upstream.Program{
		{Name: "containerd", Package: "./cmd/containerd", Tags: "no_btrfs"},
		{Name: "containerd-shim-runc-v2", Package: "./cmd/containerd-shim-runc-v2", Tags: "no_btrfs"},
		{Name: "ctr", Package: "./cmd/ctr", Tags: "no_btrfs"},
	}},
	{pluginsModule, "cni-plugins", []upstream.Program{
		{Name: "cni/bridge", Package: "./plugins/main/bridge"},
		{Name: "cni/host-local", Package: "./plugins/ipam/host-local"},
		{Name: "cni/loopback", Package: "./plugins/main/loopback"},
		{Name: "cni/portmap", Package: "./plugins/meta/portmap"},
	}},
}

// build makes what is not in the cache directory yet.
func build(ctx context.Context, cache, bin string) error {
	if err := os.MkdirAll(filepath.Join(cache, "cni"), 0o755); err != nil {
		return err
	}
	for _, b := range builds {
		if err := upstream.Build(ctx, b.module, filepath.Join(cache, "src", b.name), cache, b.programs); err != nil {
			return err
		}
	}
	return buildPause(ctx, cache, bin)
}

// pauseImage is the sandbox's image of upstream's nodes.
const pauseImage = "localhost/pause:1"

// buildPause makes the image of upstream's pause program.
func buildPause(ctx context.Context, cache, bin string) error {
	archive := filepath.Join(cache, "pause.tar")
	if upstream.Have(archive) {
		return nil
	}
	fmt.Println("building pause")
	program := filepath.Join(cache, "pause")
	source := filepath.Join(cache, "src", "kubernetes", "build", "pause", "linux", "pause.c")
	if err := upstream.Source(ctx, upstream.Kubernetes, filepath.Join(cache, "src", "kubernetes")); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"gcc", "-Os", "-static", "-s", "-o", program, source},
		{upstream.GoProgram(), "run", "./hack/image", "-name", pauseImage, "-out", archive, "-entrypoint",
			"/pause", program + "=/pause"},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr, cmd.Dir = os.Stdout, os.Stderr, filepath.Dir(bin)
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build pause: %s: %w", args[0], err)
		}
	}
	return nil
}
