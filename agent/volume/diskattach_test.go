package volume

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestDiskIsAttached: the disk of a PersistentVolume is touched when the Node lists it, as
// upstream calls it, and the Node says before that it is in use, until nothing is left of it.
// What was mounted since the machine started is not waited for.
func TestDiskIsAttached(t *testing.T) {
	const name = "kubernetes.io/fc/[3600508b4 x]"
	n, w := fcNet(t, false), newCSIWorld(t)
	pv := fcDisk("pv", corev1.FCVolumeSource{WWIDs: []string{"3600508b4 x"}})
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	told := make(chan []corev1.UniqueVolumeName, 16)
	agent := func(boot string) *Manager {
		m := diskAgent(n, w.world, w.world, pv)
		m.Storage, m.NodeName, m.Boot = w, "n", boot
		m.InUseChanged = func() { told <- m.VolumesInUse() }
		return m
	}
	inUse := []corev1.UniqueVolumeName{name}
	node := &corev1.Node{}
	node.Status.VolumesInUse = inUse
	listed := node.DeepCopy()
	listed.Status.VolumesAttached = []corev1.AttachedVolume{{Name: name}}
	p := csiPod("p", claimed("pv"))

	// waits has a pod's volumes made, and proves that the disk is not touched before the
	// Node lists it.
	waits := func(m *Manager) {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- m.Ensure(t.Context(), p) }()
		if got := <-told; !slices.Equal(got, inUse) {
			t.Errorf("in use: %q", got)
		}
		m.HeedNode(node)
		m.HeedNode(&corev1.Node{Status: corev1.NodeStatus{VolumesAttached: listed.Status.VolumesAttached}})
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		select {
		case err := <-done:
			t.Errorf("the disk was not the node's: %v", err)
			return
		case <-short.Done():
		}
		if got := globalMounts(w.world); len(got) > 0 {
			t.Errorf("mounted: %q", got)
		}
		m.HeedNode(listed)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := globalMounts(w.world); len(got) != 1 {
			t.Errorf("mounted: %q", got)
		}
	}
	m := agent("b")
	waits(m)

	m = agent("b") // the API is away
	if err := m.Restore(nil); err != nil {
		t.Fatal(err)
	}
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Error(err)
	}

	m = agent("b2") // the machine started anew: another node may have the disk
	clear(w.mounts)
	if err := m.Restore(nil); err != nil {
		t.Fatal(err)
	}
	for len(told) > 0 {
		<-told
	}
	waits(m)
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
	if got := <-told; len(got) > 0 {
		t.Errorf("in use: %q", got)
	}

	ctx, cancel := context.WithCancel(t.Context()) // the pod goes while it waits
	m.HeedNode(node)
	done := make(chan error, 1)
	go func() { done <- m.Ensure(ctx, p) }()
	if got := <-told; !slices.Equal(got, inUse) {
		t.Errorf("in use: %q", got)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
	if got := <-told; len(got) > 0 || len(globalMounts(w.world)) > 0 {
		t.Errorf("in use: %q, mounted: %q", got, globalMounts(w.world))
	}
}
