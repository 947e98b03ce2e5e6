package resource

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// writers decides who may write which part of a claim's status (KEP-4817): who may
// write it at all needs one more right for the allocation and the reservations,
// and one for each driver whose devices' status changes. Neither right is of a
// resource that is served.
type writers struct{ env *kind.Env }

// check returns a refusal for each part that the request's user changes and may not.
func (w *writers) check(ctx context.Context, c, old *resourcev1.ResourceClaim) field.ErrorList {
	errs := w.binding(ctx, &c.Status, &old.Status)
	if c.Status.Allocation == nil { // what drivers said is dropped with the allocation
		return errs
	}
	return append(errs, w.devices(ctx, &c.Status, &old.Status)...)
}

// binding asks for the right to give devices to claims, of all namespaces.
func (w *writers) binding(ctx context.Context, now, old *resourcev1.ResourceClaimStatus) field.ErrorList {
	if equality.Semantic.DeepEqual(now.Allocation, old.Allocation) &&
		equality.Semantic.DeepEqual(now.ReservedFor, old.ReservedFor) {
		return nil
	}
	p := field.NewPath("status", "allocation")
	asked, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return field.ErrorList{field.InternalError(p, fmt.Errorf("cannot build authorizer attributes: %w", err))}
	}
	a := partOf{Attributes: asked, verb: asked.GetVerb(), subresource: resourcev1.SubresourceBinding}
	if err := w.may(ctx, a); err != nil {
		return field.ErrorList{field.Forbidden(p, fmt.Sprintf("changing status.allocation or status.reservedFor "+
			`requires resource="resourceclaims/binding", verb=%q permission: %s`, a.verb, err))}
	}
	return nil
}

// devices asks for the right to speak for each driver whose devices change. One on
// the node that the claim is for may have it for claims of its node only.
func (w *writers) devices(ctx context.Context, now, old *resourcev1.ResourceClaimStatus) (errs field.ErrorList) {
	drivers := changedDrivers(now.Devices, old.Devices)
	if len(drivers) == 0 {
		return nil
	}
	p := field.NewPath("status", "devices")
	asked, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return field.ErrorList{field.InternalError(p, fmt.Errorf("cannot build authorizer attributes: %w", err))}
	}
	verbs := []string{resourcev1.VerbPrefixArbitraryNode + asked.GetVerb()}
	if runsOn(asked.GetUser(), onlyNode(now.Allocation)) {
		verbs = []string{resourcev1.VerbPrefixAssociatedNode + asked.GetVerb(), verbs[0]}
	}
	for _, driver := range drivers {
		if err := w.mayAny(ctx, asked, verbs, driver); err != nil {
			errs = append(errs, field.Forbidden(p, fmt.Sprintf("changing status.devices "+
				`requires resource="resourceclaims/driver", verb="%s" permission: %s`, verbs, err)))
		}
	}
	return errs
}

// mayAny returns the refusal of the first verb, if none is allowed.
func (w *writers) mayAny(ctx context.Context, asked authorizer.Attributes, verbs []string, driver string) error {
	var first error
	for _, verb := range verbs {
		err := w.may(ctx, partOf{Attributes: asked, verb: verb, subresource: resourcev1.SubresourceDriver,
			namespace: asked.GetNamespace(), name: driver})
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

func (w *writers) may(ctx context.Context, a partOf) error {
	if w.env == nil || w.env.Authorizer == nil {
		return errors.New("no authorizer available")
	}
	decision, reason, err := w.env.Authorizer.Authorize(ctx, a)
	switch {
	case decision == authorizer.DecisionAllow: // an error of one authorizer, of more that are asked
		return nil
	case err != nil && reason != "":
		reason = fmt.Sprintf("%v: %s", err, reason)
	case err != nil:
		reason = err.Error()
	}
	return responsewriters.ForbiddenStatusError(a, reason)
}

// partOf is what is asked of a request that writes a claim's status.
type partOf struct {
	authorizer.Attributes
	verb, subresource, namespace, name string
}

func (a partOf) GetVerb() string        { return a.verb }
func (a partOf) GetSubresource() string { return a.subresource }
func (a partOf) GetNamespace() string   { return a.namespace }
func (a partOf) GetName() string        { return a.name }

// changedDrivers names the drivers whose devices' status is new, gone or another, in order.
func changedDrivers(now, old []resourcev1.AllocatedDeviceStatus) []string {
	had := map[deviceID]*resourcev1.AllocatedDeviceStatus{}
	for i := range old {
		had[statusID(&old[i])] = &old[i]
	}
	changed := map[string]bool{}
	for i := range now {
		id := statusID(&now[i])
		if was := had[id]; was == nil || !equality.Semantic.DeepEqual(was, &now[i]) {
			changed[id.Driver] = true
		}
		delete(had, id)
	}
	for id := range had {
		changed[id.Driver] = true
	}
	return slices.Sorted(maps.Keys(changed))
}

// onlyNode names the node that an allocation is for, if the scheduler wrote that it
// is for no other.
func onlyNode(a *resourcev1.AllocationResult) string {
	if a == nil || a.NodeSelector == nil || len(a.NodeSelector.NodeSelectorTerms) != 1 {
		return ""
	}
	term := a.NodeSelector.NodeSelectorTerms[0]
	if len(term.MatchExpressions) != 0 || len(term.MatchFields) != 1 {
		return ""
	}
	f := term.MatchFields[0]
	if f.Key != "metadata.name" || f.Operator != corev1.NodeSelectorOpIn || len(f.Values) != 1 {
		return ""
	}
	return f.Values[0]
}

// runsOn tells whether a user is the service account of a pod that runs on the node.
func runsOn(u user.Info, node string) bool {
	if node == "" || u == nil {
		return false
	}
	if _, _, err := serviceaccount.SplitUsername(u.GetName()); err != nil {
		return false
	}
	names := u.GetExtra()[serviceaccount.NodeNameKey]
	return len(names) == 1 && names[0] == node && len(apivalidation.NameIsDNSSubdomain(node, false)) == 0
}
