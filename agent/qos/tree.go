package qos

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/cgroup"
)

// Tree names the groups.
type Tree struct {
	// Driver is who makes control groups: the runtime and the agent must agree.
	Driver cgroup.Driver
	// Root is the parent of kubepods, as cgroupRoot of the configuration has it.
	Root string
}

// Top is the parent of kubepods.
func (t Tree) Top() string {
	return t.Driver.Child("", strings.FieldsFunc(t.Root, func(r rune) bool { return r == '/' })...)
}

// Kubepods is the group of all pods.
func (t Tree) Kubepods() string { return t.Driver.Child(t.Top(), "kubepods") }

// Class is the parent of the pods of a class.
func (t Tree) Class(c corev1.PodQOSClass) string {
	switch c {
	case corev1.PodQOSBurstable:
		return t.Driver.Child(t.Kubepods(), "burstable")
	case corev1.PodQOSBestEffort:
		return t.Driver.Child(t.Kubepods(), "besteffort")
	}
	return t.Kubepods()
}

// Pod is the group of a pod.
func (t Tree) Pod(c corev1.PodQOSClass, uid types.UID) string {
	return t.Driver.Child(t.Class(c), "pod"+string(uid))
}
