package pod

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

// TestContainerFiles: what a container is to mount is there before it is made,
// readable or writable by whatever user it has, and its logs have a directory.
func TestContainerFiles(t *testing.T) {
	root, logs := t.TempDir(), t.TempDir()
	e := &edges{}
	m := &Manager{
		Host:     &launch.Host{RootDir: root, PodLogsDir: logs},
		Volumes:  e,
		Objects:  e,
		Services: noServices,
	}
	p := testPod(corev1.RestartPolicyAlways, "a")
	p.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
	w := &worker{m: m, rec: &record.Pod{IPs: []string{"10.0.0.1"}}}
	f := w.facts(p, &record.Observed{}, Action{Name: "a", Attempt: 2})
	config, err := m.containerConfig(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	if len(config.Mounts) != 2 {
		t.Fatalf("mounts %v", config.Mounts)
	}
	for i, mode := range []os.FileMode{0o644, 0o666} {
		st, err := os.Stat(config.Mounts[i].HostPath)
		if err != nil || st.Mode() != mode {
			t.Errorf("%s: %v, %v", config.Mounts[i].ContainerPath, st, err)
		}
	}
	if st, err := os.Stat(filepath.Join(logs, "ns_p_u", "a")); err != nil || !st.IsDir() {
		t.Errorf("directory of logs: %v", err)
	}
}

// TestTargetNotThere: an ephemeral container that is to see the processes of another one is
// not made while that one was not, without them.
func TestTargetNotThere(t *testing.T) {
	e := &edges{}
	m := &Manager{Host: &launch.Host{RootDir: t.TempDir(), PodLogsDir: t.TempDir()}, Volumes: e, Objects: e,
		Services: noServices}
	p := testPod(corev1.RestartPolicyAlways, "a")
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{TargetContainerName: "a",
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Image: "i:1"}}}
	w := &worker{m: m, rec: &record.Pod{}}
	_, err := m.containerConfig(t.Context(), w.facts(p, &record.Observed{}, Action{Name: "e"}))
	if err == nil || err.Error() != "unable to find target container a" {
		t.Errorf("without its target: %v", err)
	}
	config, err := m.containerConfig(t.Context(), w.facts(p, observed(p, "a=run"), Action{Name: "e"}))
	if err != nil || config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetTargetId() != "a0" {
		t.Errorf("%v, %v", config, err)
	}
}

// TestFilesAreWrittenInPlace: a container that runs has the very file mounted.
func TestFilesAreWrittenInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d", "hosts")
	write := func(data string) os.FileInfo {
		t.Helper()
		if err := makeFile(&launch.File{Path: path, Data: []byte(data), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != data {
			t.Fatalf("%q, %v", got, err)
		}
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	first := write("one two")
	for _, data := range []string{"one two", "other", ""} {
		if st := write(data); !os.SameFile(first, st) {
			t.Errorf("%q is another file", data)
		}
	}
}
