package core

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	netutils "k8s.io/utils/net"

	"github.com/shoal-project/shoal/coordinator/registry/connect"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

func node() kind.Kind {
	info, status := corev1.NodeSystemInfo{}.SwaggerDoc(), corev1.NodeStatus{}.SwaggerDoc()
	return kind.Of[corev1.Node]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "nodes", Singular: "node", ShortNames: []string{"no"},
			ClusterScoped: true, List: &corev1.NodeList{},
		},
		Default: defaultNode,
		Create: func(_ context.Context, n *corev1.Node) {
			n.Spec.ConfigSource, n.Status.Config = nil, nil
		},
		Update: func(_ context.Context, n, old *corev1.Node) {
			if old.Spec.ConfigSource == nil {
				n.Spec.ConfigSource = nil
			}
		},
		Validate: func(_ context.Context, n *corev1.Node) field.ErrorList { return validateNode(n) },
		ValidateUpdate: func(_ context.Context, n, old *corev1.Node) field.ErrorList {
			return append(validateNode(n), validateNodeUpdate(n, old)...)
		},
		Warnings: func(_ context.Context, n, _ *corev1.Node) []string { return nodeWarnings(n) },
		Status: &kind.StatusOf[corev1.Node]{
			Copy: func(to, from *corev1.Node) { to.Status = from.Status },
			Update: func(_ context.Context, n, old *corev1.Node) {
				if old.Status.Config == nil {
					n.Status.Config = nil
				}
			},
			Validate: func(_ context.Context, n, old *corev1.Node) field.ErrorList { return validateNodeUpdate(n, old) },
		},
		Fields: func(n *corev1.Node) fields.Set {
			return fields.Set{"spec.unschedulable": strconv.FormatBool(n.Spec.Unschedulable)}
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Status", "string", "The status of the node"),
			kind.Column("Roles", "string", "The roles of the node"),
			kind.AgeColumn(),
			kind.Column("Version", "string", info["kubeletVersion"]),
			kind.Wide("Internal-IP", "string", status["addresses"]),
			kind.Wide("External-IP", "string", status["addresses"]),
			kind.Wide("OS-Image", "string", info["osImage"]),
			kind.Wide("Kernel-Version", "string", info["kernelVersion"]),
			kind.Wide("Container-Runtime", "string", info["containerRuntimeVersion"]),
		},
		Row: nodeRow,
		Subresources: func(env *kind.Env, stores kind.Stores) map[string]rest.Storage {
			return map[string]rest.Storage{"proxy": connect.NodeProxy(env, stores)}
		},
	}.Kind()
}

func defaultNode(n *corev1.Node) {
	if n.Status.Allocatable == nil && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	podspec.RoundResources(n.Status.Capacity)
	podspec.RoundResources(n.Status.Allocatable)
	// podCIDR is the first of podCIDRs; older clients write only the former.
	switch {
	case n.Spec.PodCIDR == "" && len(n.Spec.PodCIDRs) > 0:
		n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	case n.Spec.PodCIDR != "" && (len(n.Spec.PodCIDRs) == 0 || n.Spec.PodCIDRs[0] != n.Spec.PodCIDR):
		n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
	}
}

func nodeWarnings(n *corev1.Node) (out []string) {
	if n.Spec.ConfigSource != nil {
		out = append(out, "spec.configSource: the feature is removed")
	}
	if n.Spec.DoNotUseExternalID != "" {
		out = append(out, "spec.externalID: this field is deprecated, and is unused by Kubernetes")
	}
	for i, cidr := range n.Spec.PodCIDRs {
		out = append(out, validation.GetWarningsForCIDR(field.NewPath("spec", "podCIDRs").Index(i), cidr)...)
	}
	return out
}

func nodeRow(n *corev1.Node) []any {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			status = "Ready"
		} else if c.Type == corev1.NodeReady {
			status = "NotReady"
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	info := &n.Status.NodeInfo
	kernel := orUnknown(info.KernelVersion)
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	return []any{
		n.Name, status, orNone(strings.Join(nodeRoles(n), ",")), kind.Age(n.CreationTimestamp), info.KubeletVersion,
		orNone(addressOf(n, corev1.NodeInternalIP)), orNone(addressOf(n, corev1.NodeExternalIP)),
		orUnknown(info.OSImage), kernel, orUnknown(info.ContainerRuntimeVersion),
	}
}

// nodeRoles reads node-role.kubernetes.io/<role> and kubernetes.io/role labels.
func nodeRoles(n *corev1.Node) []string {
	roles := sets.New[string]()
	for key, value := range n.Labels {
		if role, ok := strings.CutPrefix(key, "node-role.kubernetes.io/"); ok && role != "" {
			roles.Insert(role)
		} else if key == "kubernetes.io/role" && value != "" {
			roles.Insert(value)
		}
	}
	return sets.List(roles)
}

func addressOf(n *corev1.Node, t corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == t {
			return a.Address
		}
	}
	return ""
}

func orUnknown(s string) string {
	if s == "" {
		return "<unknown>"
	}
	return s
}

func validateNode(n *corev1.Node) field.ErrorList {
	errs := validateTaints(n.Spec.Taints, field.NewPath("metadata", "taints"))
	errs = append(errs, validateNodeResources(n)...)
	if swap := n.Status.NodeInfo.Swap; swap != nil && swap.Capacity != nil && *swap.Capacity <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "nodeSwapStatus", "capacity"), *swap.Capacity,
			"must be greater than zero"))
	}
	errs = append(errs, validateFeatures(n.Status.DeclaredFeatures, field.NewPath("status", "declaredFeatures"))...)
	at := field.NewPath("spec", "podCIDRs")
	for i, cidr := range n.Spec.PodCIDRs {
		errs = append(errs, validation.IsValidCIDRForLegacyField(at.Index(i), cidr, true, nil)...)
	}
	if len(n.Spec.PodCIDRs) < 2 {
		return errs
	}
	both, err := netutils.IsDualStackCIDRStrings(n.Spec.PodCIDRs)
	if err != nil {
		errs = append(errs, field.InternalError(at,
			fmt.Errorf("invalid PodCIDRs. failed to check with dual stack with error:%w", err)))
	}
	if !both || len(n.Spec.PodCIDRs) > 2 {
		errs = append(errs, field.Invalid(at, n.Spec.PodCIDRs, "may specify no more than one CIDR for each IP family"))
	}
	return errs
}

func validateNodeResources(n *corev1.Node) (errs field.ErrorList) {
	for name, q := range n.Status.Capacity {
		errs = append(errs, podspec.ValidateQuantity(name, q, field.NewPath("status", "capacity", string(name)))...)
	}
	for name, q := range n.Status.Allocatable {
		errs = append(errs, podspec.ValidateQuantity(name, q, field.NewPath("status", "allocatable", string(name)))...)
	}
	return errs
}

func validateTaints(taints []corev1.Taint, p *field.Path) (errs field.ErrorList) {
	type pair struct {
		key    string
		effect corev1.TaintEffect
	}
	seen := map[pair]bool{}
	for i, t := range taints {
		at := p.Index(i)
		errs = append(errs, metavalidation.ValidateLabelName(t.Key, at.Child("key"))...)
		if bad := validation.IsValidLabelValue(t.Value); len(bad) > 0 {
			errs = append(errs, field.Invalid(at.Child("value"), t.Value, strings.Join(bad, ";")))
		}
		errs = append(errs, podspec.ValidateTaintEffect(t.Effect, at.Child("effect"))...)
		if seen[pair{t.Key, t.Effect}] {
			// Upstream shows the Go fields of its inner type.
			e := field.Duplicate(at, struct {
				Key, Value string
				Effect     corev1.TaintEffect
				TimeAdded  *metav1.Time
			}{t.Key, t.Value, t.Effect, t.TimeAdded})
			e.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, e)
		}
		seen[pair{t.Key, t.Effect}] = true
	}
	return errs
}

var featureName = regexp.MustCompile(`^[A-Z][a-zA-Z0-9]*(/[a-zA-Z][a-zA-Z0-9]*)*$`)

// validateFeatures wants names of features in order, each once.
func validateFeatures(names []string, p *field.Path) (errs field.ErrorList) {
	for i, name := range names {
		switch { // an entry's place is told before its name
		case i == 0:
		case name == names[i-1]:
			errs = append(errs, field.Duplicate(p.Index(i), name))
		case name < names[i-1]:
			errs = append(errs, field.Invalid(p.Index(i), name, "list must be sorted alphabetically"))
		}
		const longest = validation.DNS1123SubdomainMaxLength
		fault := ""
		if len(name) > longest {
			fault = fmt.Sprintf("must be no more than %d characters", longest)
		} else if !featureName.MatchString(name) {
			fault = "must start with an UpperCamelCase segment, with subsequent segments separated by '/' " +
				"(e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
		}
		if fault != "" {
			errs = append(errs, field.Invalid(p.Index(i), name, fmt.Sprintf("invalid feature name %q: %s", name, fault)))
		}
	}
	return errs
}

// addsFamily tells that a Node gets a range of the family that it had none of, and keeps
// its own: its cluster has become one with both. Upstream refuses that too, and has
// each node made anew.
func addsFamily(n, old *corev1.Node) bool {
	if len(old.Spec.PodCIDRs) != 1 || len(n.Spec.PodCIDRs) != 2 || n.Spec.PodCIDRs[0] != old.Spec.PodCIDRs[0] {
		return false
	}
	both, err := netutils.IsDualStackCIDRStrings(n.Spec.PodCIDRs)
	return err == nil && both
}

func validateNodeUpdate(n, old *corev1.Node) field.ErrorList {
	errs := validateNodeResources(n)
	errs = append(errs, validateFeatures(n.Status.DeclaredFeatures, field.NewPath("status", "declaredFeatures"))...)
	seen := map[corev1.NodeAddress]bool{}
	for i, a := range n.Status.Addresses {
		if seen[a] {
			errs = append(errs, field.Duplicate(field.NewPath("status", "addresses").Index(i), struct {
				Type    corev1.NodeAddressType
				Address string
			}(a)))
		}
		seen[a] = true
	}
	if len(old.Spec.PodCIDRs) > 0 && !slices.Equal(old.Spec.PodCIDRs, n.Spec.PodCIDRs) && !addsFamily(n, old) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "podCIDRs"), "node updates may not change podCIDR except from \"\" to valid"))
	}
	if old.Spec.ProviderID != "" && old.Spec.ProviderID != n.Spec.ProviderID {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "providerID"), "node updates may not change providerID except from \"\" to valid"))
	}
	errs = append(errs, validateTaints(n.Spec.Taints, field.NewPath("metadata", "taints"))...)
	if n.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "externalID"), "may not be updated"))
	}
	return errs
}
