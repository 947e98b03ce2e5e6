package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/shoal-project/shoal/tests/harness"
)

const (
	provisionerImage = "docker.io/rancher/local-path-provisioner:" + provisionerVersion
	helperImage      = "docker.io/library/busybox:latest"
)

// provideVolumes makes a default StorageClass: specs of StatefulSets with claims
// are skipped without one. The volumes are directories of the cluster's.
func provideVolumes(c *harness.Cluster, cache string) error {
	manifest, err := os.ReadFile(filepath.Join(cache, "provisioner-src", "deploy", "local-path-storage.yaml"))
	if err != nil {
		return err
	}
	text, err := withVolumesIn(string(manifest), filepath.Join(c.Dir, "volumes"))
	if err != nil {
		return err
	}
	if _, err := c.Kubectl(text, "apply", "-f", "-"); err != nil {
		return err
	}
	_, err = c.Kubectl("", "-n", "local-path-storage", "rollout", "status", "deployment", "local-path-provisioner",
		"--timeout=60s")
	return err
}

// withVolumesIn makes the class of the provisioner's own manifest the default one
// and its volumes directories of dir.
func withVolumesIn(manifest, dir string) (string, error) {
	for _, change := range [][2]string{
		{`"/opt/local-path-provisioner"`, `"` + dir + `"`},
		{"metadata:\n  name: local-path\n",
			"metadata:\n  name: local-path\n  annotations: {storageclass.kubernetes.io/is-default-class: \"true\"}\n"},
	} {
		if strings.Count(manifest, change[0]) != 1 {
			return "", fmt.Errorf("the provisioner's manifest does not hold %q once", change[0])
		}
		manifest = strings.Replace(manifest, change[0], change[1], 1)
	}
	return manifest, nil
}
