package plugins

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// Names of the built-in plugins, as a KubeSchedulerConfiguration writes them.
const (
	SchedulingGatesName    = "SchedulingGates"
	PrioritySortName       = "PrioritySort"
	NodeUnschedulableName  = "NodeUnschedulable"
	NodeNameName           = "NodeName"
	TaintTolerationName    = "TaintToleration"
	NodeAffinityName       = "NodeAffinity"
	NodePortsName          = "NodePorts"
	NodeResourcesFitName   = "NodeResourcesFit"
	VolumeRestrictionsName = "VolumeRestrictions"
	NodeVolumeLimitsName   = "NodeVolumeLimits"
	VolumeBindingName      = "VolumeBinding"
	VolumeZoneName         = "VolumeZone"
	PodTopologySpreadName  = "PodTopologySpread"
	InterPodAffinityName   = "InterPodAffinity"
	DynamicResourcesName   = "DynamicResources"
	DefaultPreemptionName  = "DefaultPreemption"
	BalancedAllocationName = "NodeResourcesBalancedAllocation"
	ImageLocalityName      = "ImageLocality"
	DefaultBinderName      = "DefaultBinder"

	NodeDeclaredFeaturesName = "NodeDeclaredFeatures"
)

// Deps is what plugins may use of the world. In a pure placement all of it may
// be nil.
type Deps struct {
	Client   kubernetes.Interface
	Recorder events.EventRecorder
	// OwnerSelector tells which pods belong with a pod: those of its Services
	// and of its controller. It is empty when nothing groups the pod.
	OwnerSelector func(pod *corev1.Pod) labels.Selector
	// Budgets lists all PodDisruptionBudgets.
	Budgets func() ([]*policyv1.PodDisruptionBudget, error)
	// Storage tells of claims, volumes and their classes.
	Storage Storage
	// Devices tells of resource claims and what they can get.
	Devices Devices
	// Pod returns the latest state of a pod.
	Pod func(namespace, name string) (*corev1.Pod, error)
	// Lower lists the pods of lower priority that are nominated to a node;
	// Denominate withdraws such a nomination.
	Lower      func(node string, priority int32) []*framework.PodInfo
	Denominate func(pod *corev1.Pod)
	// Allow lets a waiting pod pass a Permit plugin; Reject ends the wait of a
	// pod in favour of another, if it waits.
	Allow  func(uid types.UID, plugin string)
	Reject func(uid types.UID) bool
	// Review lets others look at the victims of preemption by node, and returns those
	// that are left; nil: nobody looks.
	Review Review
	// Preempts counts the attempts of preemption, Preempted the victims of those
	// that found some.
	Preempts  func()
	Preempted func(victims int)
}

// Review is asked by the pod that preempts; podsOf tells the pods of a node.
type Review func(ctx context.Context, pod *corev1.Pod, victims map[string]*extenderv1.Victims,
	podsOf func(node string) []*corev1.Pod) (map[string]*extenderv1.Victims, error)

// Factory makes a plugin from the args of its pluginConfig, which may be empty.
type Factory func(args []byte, d *Deps) (framework.Plugin, error)

// Default is a plugin of the default profile.
type Default struct {
	Name   string
	Weight int64 // of its score; 0 when it has none
}

// Defaults lists the plugins of the default profile in upstream's order, which
// is the order of filtering and so decides which reason is told.
var Defaults = []Default{
	{SchedulingGatesName, 0}, {PrioritySortName, 0}, {NodeUnschedulableName, 0}, {NodeNameName, 0},
	{TaintTolerationName, 3}, {NodeAffinityName, 2}, {NodePortsName, 0}, {NodeResourcesFitName, 1},
	{VolumeRestrictionsName, 0}, {NodeVolumeLimitsName, 0}, {VolumeBindingName, 0}, {VolumeZoneName, 0},
	{PodTopologySpreadName, 2}, {InterPodAffinityName, 2}, {DynamicResourcesName, 2},
	{DefaultPreemptionName, 0},
	{BalancedAllocationName, 1}, {ImageLocalityName, 1}, {DefaultBinderName, 0},
	{NodeDeclaredFeaturesName, 0},
}

// Registry maps the names of all plugins to their factories.
var Registry = map[string]Factory{
	SchedulingGatesName:      plain(func(*Deps) framework.Plugin { return schedulingGates{} }),
	PrioritySortName:         plain(func(*Deps) framework.Plugin { return prioritySort{} }),
	NodeUnschedulableName:    plain(func(*Deps) framework.Plugin { return nodeUnschedulable{} }),
	NodeDeclaredFeaturesName: plain(func(*Deps) framework.Plugin { return nodeFeatures{} }),
	NodeNameName:             plain(func(*Deps) framework.Plugin { return nodeName{} }),
	TaintTolerationName:      plain(func(*Deps) framework.Plugin { return taintToleration{} }),
	NodeAffinityName:         newNodeAffinity,
	NodePortsName:            plain(func(*Deps) framework.Plugin { return nodePorts{} }),
	NodeResourcesFitName:     newFit,
	VolumeRestrictionsName:   plain(func(d *Deps) framework.Plugin { return &volumeRestrictions{d.Storage} }),
	NodeVolumeLimitsName:     plain(func(d *Deps) framework.Plugin { return &volumeLimits{d.Storage} }),
	VolumeBindingName:        newVolumeBinding,
	VolumeZoneName:           plain(func(d *Deps) framework.Plugin { return &volumeZone{d.Storage} }),
	PodTopologySpreadName:    newSpread,
	InterPodAffinityName:     newInterPodAffinity,
	DynamicResourcesName:     newDynamicResources,
	DefaultPreemptionName:    newPreemption,
	BalancedAllocationName:   newBalancedAllocation,
	ImageLocalityName:        plain(func(*Deps) framework.Plugin { return imageLocality{} }),
	DefaultBinderName:        plain(func(d *Deps) framework.Plugin { return &defaultBinder{client: d.Client} }),
}

// Names returns the known plugins, sorted.
func Names() []string { return slices.Sorted(maps.Keys(Registry)) }

func plain(f func(*Deps) framework.Plugin) Factory {
	return func(args []byte, d *Deps) (framework.Plugin, error) {
		var none metav1.TypeMeta
		return f(d), decodeArgs(args, &none)
	}
}

// decodeArgs reads args strictly; no args leave into as it is.
func decodeArgs(args []byte, into any) error {
	if len(bytes.TrimSpace(args)) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(args))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil && err != io.EOF {
		return fmt.Errorf("args: %w", err)
	}
	return nil
}

// The key of a class is a row of parts, each with its length before it, so that
// no two different rows read the same.

func signString(key []byte, s string) []byte {
	key = binary.AppendUvarint(key, uint64(len(s)))
	return append(key, s...)
}

func signInt(key []byte, n int64) []byte { return binary.AppendVarint(key, n) }

type marshaler interface{ Marshal() ([]byte, error) }

func signProto(key []byte, m marshaler) ([]byte, bool) {
	b, err := m.Marshal()
	if err != nil {
		return key, false
	}
	key = binary.AppendUvarint(key, uint64(len(b)))
	return append(key, b...), true
}

func signLabels(key []byte, m map[string]string) []byte {
	names := make([]string, 0, len(m))
	for k := range m {
		names = append(names, k)
	}
	slices.Sort(names)
	key = signInt(key, int64(len(names)))
	for _, k := range names {
		key = signString(signString(key, k), m[k])
	}
	return key
}

// normalize scales scores to 0..MaxScore by the highest of them; reverse makes
// the lowest the best.
func normalize(scores []int64, reverse bool) {
	var top int64
	for _, s := range scores {
		top = max(top, s)
	}
	for i, s := range scores {
		if s != 0 { // then top is above 0
			s = framework.MaxScore * s / top
		}
		if reverse {
			s = framework.MaxScore - s
		}
		scores[i] = s
	}
}

// samePod reports whether an update event is about the pod itself.
func samePod(pod *corev1.Pod, e framework.Event) bool {
	p, ok := e.New.(*corev1.Pod)
	return ok && p.UID == pod.UID
}

func podOf(obj any) *corev1.Pod {
	p, _ := obj.(*corev1.Pod)
	return p
}

func nodeOf(obj any) *corev1.Node {
	n, _ := obj.(*corev1.Node)
	return n
}

// grow makes room for an index in an array.
func grow[T any](a []T, index int, empty T) []T {
	for len(a) <= index {
		a = append(a, empty)
	}
	return a
}
