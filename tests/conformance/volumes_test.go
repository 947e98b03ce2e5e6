package main

import (
	"strings"
	"testing"
)

func TestWithVolumesIn(t *testing.T) {
	const manifest = "kind: StorageClass\nmetadata:\n  name: local-path\nprovisioner: rancher.io/local-path\n---\n" +
		"kind: ConfigMap\nmetadata:\n  name: local-path-config\ndata:\n  config.json: |-\n" +
		"    {\"paths\":[\"/opt/local-path-provisioner\"]}\n"
	text, err := withVolumesIn(manifest, "/volumes")
	if err != nil {
		t.Fatal(err)
	}
	const class = "  name: local-path\n  annotations: {storageclass.kubernetes.io/is-default-class: \"true\"}\nprovisioner"
	for _, want := range []string{class, `{"paths":["/volumes"]}`, "  name: local-path-config\ndata"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if _, err := withVolumesIn("kind: List\n", "/volumes"); err == nil {
		t.Error("a manifest without the class and the path is taken")
	}
}
