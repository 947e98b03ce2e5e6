package launch

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestDocShowsTheLists: who reads doc.go reads what is.
func TestDocShowsTheLists(t *testing.T) {
	data, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var told, are []string
	for _, m := range regexp.MustCompile(`(?m)^//\t(\w+) +(\w+\.go) `).FindAllStringSubmatch(string(data), -1) {
		told = append(told, m[1])
		if _, err := os.Stat(m[2]); err != nil {
			t.Error(err)
		}
	}
	for _, c := range containerContributors {
		are = append(are, c.name)
	}
	for _, c := range sandboxContributors {
		are = append(are, c.name)
	}
	if diff := cmp.Diff(told, are); diff != "" {
		t.Errorf("-doc.go, +launch.go:\n%s", diff)
	}
}

// TestContributorsOnlyAdd: a contributor that changed what another added would
// make their order a riddle.
func TestContributorsOnlyAdd(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, s := read(t, text(t, file))
		c := newContainer(f)
		for _, by := range containerContributors {
			before := fields(t, c.config)
			if by.add(c) != nil {
				break
			}
			onlyAdded(t, file+": "+by.name, before, fields(t, c.config))
		}
		b := newSandbox(s)
		for _, by := range sandboxContributors {
			before := fields(t, b.config)
			if by.add(b) != nil {
				break
			}
			onlyAdded(t, file+": "+by.name, before, fields(t, b.config))
		}
	}
}

func onlyAdded(t *testing.T, who string, before, after []string) {
	t.Helper()
	for _, line := range before {
		// Lists grow at their ends.
		grown := func(l string) bool { return l == line || strings.HasPrefix(l, line+" ") }
		if !slices.ContainsFunc(after, grown) {
			t.Errorf("%s took away %q", who, line)
		}
	}
}

// TestOneMoreContributor: what a device plugin gives needs nothing but its
// contributor. Its variables are the command's too, its mounts hide none.
func TestOneMoreContributor(t *testing.T) {
	devices := func(c *container) error {
		gpu := &criv1.Device{HostPath: "/dev/gpu3", ContainerPath: "/dev/gpu0"}
		c.config.Devices = append(c.config.Devices, gpu)
		c.config.Envs = append(c.config.Envs, &criv1.KeyValue{Key: "GPUS", Value: []byte("3")})
		c.config.Mounts = append(c.config.Mounts, &criv1.Mount{HostPath: "/opt/gpu", ContainerPath: "/usr"})
		return nil
	}
	f, _ := read(t, text(t, "testdata/volumes.txtar"))
	f.Container.Args = []string{"--gpus=$(GPUS)"}
	c := newContainer(f)
	list := slices.Clone(containerContributors)
	at := slices.IndexFunc(list, func(c contributor[*container]) bool { return c.name == "process" })
	list = slices.Insert(list, at, contributor[*container]{"devices", devices})
	if err := contribute(c, list); err != nil {
		t.Fatal(err)
	}
	c.sortMounts()
	var got []string
	for _, line := range fields(t, c.config) {
		switch name := key("  " + line); name {
		case "args", "envs", "mounts", "devices", "devices[/dev/gpu0].hostPath":
			got = append(got, line)
		}
	}
	if diff := cmp.Diff([]string{
		"args: --gpus=3",
		"devices[/dev/gpu0].hostPath: /dev/gpu3",
		"devices: /dev/gpu0",
		"envs: WHO GPUS",
		"mounts: /usr /data /conf /claim /tools /etc/hosts /dev/termination-log /data/deep/er",
	}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
