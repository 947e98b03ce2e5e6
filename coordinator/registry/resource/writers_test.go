package resource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// granted are rights as "verb resource/subresource namespace/name".
type granted []string

func (g granted) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if slices.Contains(g, "broken") {
		return authorizer.DecisionNoOpinion, "no reason", errors.New("broken")
	}
	asked := fmt.Sprintf("%s %s/%s %s/%s",
		a.GetVerb(), a.GetResource(), a.GetSubresource(), a.GetNamespace(), a.GetName())
	if slices.Contains(g, asked) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "denied", nil
}

// writing is the request of a user who writes the status of a claim.
func writing(ctx context.Context, u user.Info, verb string) context.Context {
	return request.WithRequestInfo(request.WithUser(ctx, u), &request.RequestInfo{
		IsResourceRequest: true, Verb: verb, APIGroup: "resource.k8s.io", APIVersion: "v1",
		Resource: "resourceclaims", Subresource: "status", Namespace: "default", Name: "claim",
	})
}

func on(nodes ...string) *resourcev1.AllocationResult {
	named := corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: nodes}
	return &resourcev1.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{MatchFields: []corev1.NodeSelectorRequirement{named}}}}}
}

func device(driver, name string) resourcev1.AllocatedDeviceStatus {
	return resourcev1.AllocatedDeviceStatus{Driver: driver, Pool: "p", Device: name}
}

func driverOn(nodes ...string) user.Info {
	return &user.DefaultInfo{Name: "system:serviceaccount:kube-system:dra-driver",
		Extra: map[string][]string{serviceaccount.NodeNameKey: nodes}}
}

// KEP-4817: the messages are v1.36's.
const (
	needsBinding = `status.allocation: Forbidden: changing status.allocation or status.reservedFor requires ` +
		`resource="resourceclaims/binding", verb="update" permission: resourceclaims.resource.k8s.io is forbidden: ` +
		`User "eve" cannot update resource "resourceclaims/binding" in API group "resource.k8s.io" ` +
		`at the cluster scope: denied`
	needsDriver = `status.devices: Forbidden: changing status.devices requires resource="resourceclaims/driver", ` +
		`verb="[arbitrary-node:update]" permission: resourceclaims.resource.k8s.io "d.io" is forbidden: ` +
		`User "eve" cannot arbitrary-node:update resource "resourceclaims/driver" in API group "resource.k8s.io" ` +
		`in the namespace "default": denied`
	needsEither = `verb="[associated-node:update arbitrary-node:update]" permission: ` +
		`resourceclaims.resource.k8s.io "d.io" is forbidden: User "system:serviceaccount:kube-system:dra-driver" ` +
		`cannot associated-node:update resource "resourceclaims/driver" in API group "resource.k8s.io" ` +
		`in the namespace "default": denied`
)

func TestWritersOfStatus(t *testing.T) {
	type status = resourcev1.ResourceClaimStatus
	type devices = []resourcev1.AllocatedDeviceStatus
	reserved := []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "x", UID: "u"}}
	free, bound, told := status{}, status{Allocation: on("n")},
		status{Allocation: on("n"), Devices: devices{device("d.io", "a")}}
	twice := status{Allocation: on("n"), Devices: devices{device("d.io", "a"), device("d.io", "b")}}
	other := status{Allocation: on("n"), Devices: devices{device("d.io", "b"), device("d.io", "a")}}
	three := status{Allocation: on("n"),
		Devices: devices{device("d.io", "a"), device("c.io", "a"), device("b.io", "a")}}
	used := status{Allocation: on("n"), ReservedFor: reserved}
	wide, wideTold := status{Allocation: on("n", "m")}, status{Allocation: on("n", "m"), Devices: told.Devices}
	all := status{Allocation: &resourcev1.AllocationResult{}}
	allTold := status{Allocation: all.Allocation, Devices: told.Devices}
	moved := status{Allocation: on("m"), Devices: told.Devices}
	const (
		binding      = "update resourceclaims/binding /"
		anywhere     = "arbitrary-node:update resourceclaims/driver default/d.io"
		itsNode      = "associated-node:update resourceclaims/driver default/d.io"
		isNoNode     = "cannot arbitrary-node:update"
		patchBinding = "patch resourceclaims/binding /"
		patchItsNode = "associated-node:patch resourceclaims/driver default/d.io"
	)
	eve, driver := &user.DefaultInfo{Name: "eve"}, driverOn("n")
	for name, c := range map[string]struct {
		who      user.Info
		verb     string
		rights   granted
		old, now status
		want     []string // parts of the refusals, in order
	}{
		"nothing":              {eve, "update", nil, told, told, nil},
		"order":                {eve, "update", nil, twice, other, nil},
		"bind":                 {eve, "update", granted{binding}, free, bound, nil},
		"release":              {eve, "update", granted{binding}, bound, free, nil},
		"reserve":              {eve, "update", granted{binding}, bound, used, nil},
		"bind_not":             {eve, "update", granted{anywhere, itsNode}, free, bound, []string{needsBinding}},
		"release_not":          {eve, "update", granted{anywhere}, bound, free, []string{needsBinding}},
		"reserve_not":          {eve, "update", nil, bound, used, []string{needsBinding}},
		"bind_one_namespace":   {eve, "update", granted{binding + "default"}, free, bound, []string{needsBinding}},
		"bind_patch":           {eve, "patch", granted{patchBinding}, free, bound, nil},
		"bind_patch_not":       {eve, "patch", granted{binding}, free, bound, []string{"cannot patch resource"}},
		"release_with_devices": {eve, "update", granted{binding}, told, free, nil},
		"tell":                 {eve, "update", granted{anywhere}, bound, told, nil},
		"tell_not":             {eve, "update", granted{binding}, bound, told, []string{needsDriver}},
		"tell_other_driver":    {eve, "update", granted{anywhere + ".e"}, bound, told, []string{needsDriver}},
		"forget_not":           {eve, "update", nil, told, bound, []string{needsDriver}},
		"person_on_no_node":    {eve, "update", granted{itsNode}, bound, told, []string{needsDriver}},
		"on_node":              {driver, "update", granted{itsNode}, bound, told, nil},
		"on_node_anywhere":     {driver, "update", granted{anywhere}, bound, told, nil},
		"on_node_not":          {driver, "update", nil, bound, told, []string{needsEither}},
		"on_node_patch":        {driver, "patch", granted{patchItsNode}, bound, told, nil},
		"on_other_node":        {driverOn("m"), "update", granted{itsNode}, bound, told, []string{isNoNode}},
		"of_more_nodes":        {driver, "update", granted{itsNode}, wide, wideTold, []string{isNoNode}},
		"of_all_nodes":         {driver, "update", granted{itsNode}, all, allTold, []string{isNoNode}},
		"each_driver": {eve, "update", granted{"arbitrary-node:update resourceclaims/driver default/c.io"},
			bound, three, []string{`"b.io" is forbidden`, `"d.io" is forbidden`}},
		"both":  {eve, "update", nil, bound, moved, []string{needsBinding, needsDriver}},
		"error": {eve, "update", granted{"broken"}, free, bound, []string{"at the cluster scope: broken: no reason"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &writers{env: &kind.Env{Authorizer: c.rights}}
			errs := w.check(writing(t.Context(), c.who, c.verb), &resourcev1.ResourceClaim{Status: c.now},
				&resourcev1.ResourceClaim{Status: c.old})
			if len(errs) != len(c.want) {
				t.Fatalf("%v, want %q", errs, c.want)
			}
			for i, want := range c.want {
				if !strings.Contains(errs[i].Error(), want) {
					t.Errorf("%v, want %q", errs[i], want)
				}
			}
		})
	}
}

// A request of which nothing is known, or a server without an authorizer, writes nothing.
func TestNobodyWritesStatus(t *testing.T) {
	now, old := &resourcev1.ResourceClaim{}, &resourcev1.ResourceClaim{}
	now.Status.Allocation = on("n")
	now.Status.Devices = []resourcev1.AllocatedDeviceStatus{device("d.io", "a")}
	unknown := (&writers{env: &kind.Env{Authorizer: granted{}}}).check(t.Context(), now, old)
	undecided := (&writers{}).check(writing(t.Context(), driverOn("n"), "update"), now, old)
	if len(unknown) != 2 || len(undecided) != 2 {
		t.Errorf("%v, %v", unknown, undecided)
	}
	expect(t, "unknown", unknown, "cannot build authorizer attributes")
	expect(t, "undecided", undecided, "no authorizer available")
}

func TestChangedDrivers(t *testing.T) {
	type list = []resourcev1.AllocatedDeviceStatus
	shared, named := device("d.io", "a"), device("d.io", "a")
	shared.ShareID = ptr.To("6f7f5a3c-16a1-4d5b-8f0d-0a3c2f0c1e77")
	named.NetworkData = &resourcev1.NetworkDeviceData{InterfaceName: "eth0"}
	for name, c := range map[string]struct {
		now, old list
		want     string
	}{
		"none":    {},
		"same":    {list{device("d.io", "a")}, list{device("d.io", "a")}, ""},
		"added":   {list{device("d.io", "a"), device("e.io", "a")}, list{device("d.io", "a")}, "e.io"},
		"more":    {list{device("d.io", "a"), device("d.io", "b")}, list{device("d.io", "a")}, "d.io"},
		"removed": {list{device("d.io", "a")}, list{device("d.io", "a"), device("e.io", "a")}, "e.io"},
		"changed": {list{named, device("e.io", "a")}, list{device("d.io", "a"), device("e.io", "a")}, "d.io"},
		"share":   {list{shared}, list{device("d.io", "a")}, "d.io"},
		"many": {list{named, device("b.io", "b"), device("c.io", "a")},
			list{device("d.io", "a"), device("b.io", "b"), device("a.io", "a")}, "a.io c.io d.io"},
	} {
		if got := strings.Join(changedDrivers(c.now, c.old), " "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestOnlyNode(t *testing.T) {
	term := func(change func(*corev1.NodeSelector)) *resourcev1.AllocationResult {
		a := on("n")
		change(a.NodeSelector)
		return a
	}
	for name, c := range map[string]struct {
		a    *resourcev1.AllocationResult
		want string
	}{
		"none":       {nil, ""},
		"everywhere": {&resourcev1.AllocationResult{}, ""},
		"one":        {on("n"), "n"},
		"two":        {on("n", "m"), ""},
		"terms": {term(func(s *corev1.NodeSelector) {
			s.NodeSelectorTerms = append(s.NodeSelectorTerms, s.NodeSelectorTerms[0])
		}), ""},
		"fields": {term(func(s *corev1.NodeSelector) {
			f := &s.NodeSelectorTerms[0].MatchFields
			*f = append(*f, (*f)[0])
		}), ""},
		"labels": {term(func(s *corev1.NodeSelector) {
			s.NodeSelectorTerms[0].MatchExpressions = s.NodeSelectorTerms[0].MatchFields
		}), ""},
		"key": {term(func(s *corev1.NodeSelector) {
			s.NodeSelectorTerms[0].MatchFields[0].Key = "kubernetes.io/hostname"
		}), ""},
		"operator": {term(func(s *corev1.NodeSelector) {
			s.NodeSelectorTerms[0].MatchFields[0].Operator = corev1.NodeSelectorOpNotIn
		}), ""},
	} {
		if got := onlyNode(c.a); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestRunsOn(t *testing.T) {
	for name, c := range map[string]struct {
		who  user.Info
		node string
		want bool
	}{
		"its node":    {driverOn("n"), "n", true},
		"another":     {driverOn("m"), "n", false},
		"of no node":  {driverOn("n"), "", false},
		"on none":     {driverOn(), "n", false},
		"on two":      {driverOn("n", "m"), "n", false},
		"a bad name":  {driverOn("N_1"), "N_1", false},
		"the kubelet": {&user.DefaultInfo{Name: "system:node:n", Extra: driverOn("n").GetExtra()}, "n", false},
		"a person":    {&user.DefaultInfo{Name: "eve", Extra: driverOn("n").GetExtra()}, "n", false},
		"nobody":      {nil, "n", false},
	} {
		if got := runsOn(c.who, c.node); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
