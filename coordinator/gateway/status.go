package gateway

import (
	"cmp"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// verdict is a condition's status with its reason.
type verdict struct {
	ok      bool
	reason  string
	message string
}

func yes[T ~string](reason T) verdict { return verdict{true, string(reason), ""} }

func no[T ~string](reason T, message string) verdict { return verdict{false, string(reason), message} }

// set makes a condition say what holds now; its time changes only with its status.
func (c *compiler) set(list *[]metav1.Condition, generation int64, name string, v verdict) {
	next := metav1.Condition{
		Type:               name,
		Status:             metav1.ConditionFalse,
		Reason:             v.reason,
		Message:            v.message,
		ObservedGeneration: generation,
		LastTransitionTime: c.now,
	}
	if v.ok {
		next.Status = metav1.ConditionTrue
	}
	i := slices.IndexFunc(*list, func(old metav1.Condition) bool { return old.Type == name })
	if i < 0 {
		*list = append(*list, next)
		return
	}
	if (*list)[i].Status == next.Status {
		next.LastTransitionTime = (*list)[i].LastTransitionTime
	}
	(*list)[i] = next
}

func unset(list *[]metav1.Condition, name string) {
	*list = slices.DeleteFunc(*list, func(c metav1.Condition) bool { return c.Type == name })
}

// statuses are those of gateways and sets.
func (c *compiler) statuses() {
	for _, g := range c.order {
		c.gatewayStatus(g)
		c.plan.Gateways = append(c.plan.Gateways, g.obj)
	}
	for _, s := range slices.SortedFunc(maps.Values(c.sets), func(a, b *set) int {
		return cmp.Compare(nameOf(a.obj).String(), nameOf(b.obj).String())
	}) {
		c.setStatus(s)
		c.plan.Sets = append(c.plan.Sets, s.obj)
	}
}

func (g *gateway) valid(list []*listener) int {
	n := 0
	for _, l := range list {
		if l.usable {
			n++
		}
	}
	return n
}

func (c *compiler) gatewayStatus(g *gateway) {
	st := &g.obj.Status
	own := slices.DeleteFunc(slices.Clone(g.listeners), func(l *listener) bool { return l.set != nil })
	accepted := g.accepted
	valid := g.valid(g.listeners)
	if accepted.ok && valid < len(own) && valid == 0 {
		accepted = no(gatewayv1.GatewayReasonListenersNotValid, "no listener is valid")
	} else if accepted.ok && g.valid(own) < len(own) {
		accepted = verdict{true, string(gatewayv1.GatewayReasonListenersNotValid), "some listeners are not valid"}
	}
	st.Addresses = g.addrs
	programmed := yes(gatewayv1.GatewayReasonProgrammed)
	switch {
	case !accepted.ok:
		programmed = no(gatewayv1.GatewayReasonInvalid, "the Gateway is not accepted")
	case !g.usable.ok:
		programmed = g.usable
	}
	c.set(&st.Conditions, g.obj.Generation, string(gatewayv1.GatewayConditionAccepted), accepted)
	c.set(&st.Conditions, g.obj.Generation, string(gatewayv1.GatewayConditionProgrammed), programmed)
	if g.resolved != nil {
		c.set(&st.Conditions, g.obj.Generation, string(gatewayv1.GatewayConditionResolvedRefs), *g.resolved)
	} else {
		unset(&st.Conditions, string(gatewayv1.GatewayConditionResolvedRefs))
	}
	insecure := slices.ContainsFunc(own, func(l *listener) bool {
		return l.feed.Clients != nil &&
			l.feed.Clients.Insecure
	})
	if insecure {
		c.set(&st.Conditions, g.obj.Generation, string(gatewayv1.GatewayConditionInsecureFrontendValidationMode),
			verdict{true, string(gatewayv1.GatewayReasonConfigurationChanged), "clients need no valid certificate"})
	} else {
		unset(&st.Conditions, string(gatewayv1.GatewayConditionInsecureFrontendValidationMode))
	}
	attached := int32(0)
	for _, s := range g.sets {
		if s.valid() > 0 {
			attached++
		}
	}
	st.AttachedListenerSets = &attached
	old := st.Listeners
	st.Listeners = nil
	for _, l := range own {
		ls := gatewayv1.ListenerStatus{Name: l.Name, SupportedKinds: l.kinds, AttachedRoutes: l.attached}
		for i := range old {
			if old[i].Name == l.Name {
				ls.Conditions = old[i].Conditions
			}
		}
		c.listenerConditions(l, &ls.Conditions)
		st.Listeners = append(st.Listeners, ls)
	}
}

func (c *compiler) listenerConditions(l *listener, list *[]metav1.Condition) {
	programmed := yes(gatewayv1.ListenerReasonProgrammed)
	switch {
	case l.conflicted.ok:
		programmed = no(l.conflicted.reason, l.conflicted.message)
	case !l.usable || !l.resolvedTLS() || !l.resolved.ok:
		programmed = no(gatewayv1.ListenerReasonInvalid, cmp.Or(l.accepted.message, l.resolved.message))
	case c.number(l.gw, l) == 0:
		programmed = no(gatewayv1.ListenerReasonPending, "the Gateway's Service is being made")
	}
	accepted := l.accepted
	c.set(list, l.generation, string(gatewayv1.ListenerConditionAccepted), accepted)
	c.set(list, l.generation, string(gatewayv1.ListenerConditionProgrammed), programmed)
	c.set(list, l.generation, string(gatewayv1.ListenerConditionResolvedRefs), l.resolved)
	c.set(list, l.generation, string(gatewayv1.ListenerConditionConflicted), l.conflicted)
}

// valid counts the listeners that answer; one without its certificate does not.
func (s *set) valid() (n int) {
	for _, l := range s.listeners {
		if l.usable && l.resolvedTLS() {
			n++
		}
	}
	return n
}

func (c *compiler) setStatus(s *set) {
	st, generation := &s.obj.Status, s.obj.Generation
	accepted, programmed := yes(gatewayv1.ListenerSetReasonAccepted), yes(gatewayv1.ListenerSetReasonProgrammed)
	switch {
	case s.gw == nil:
		accepted = no(gatewayv1.ListenerSetReasonNotAllowed, "the Gateway does not let the namespace's listeners in")
		programmed = accepted
		st.Listeners = nil
	case !s.gw.accepted.ok:
		accepted = no(gatewayv1.ListenerSetReasonParentNotAccepted, "the Gateway is not accepted")
		programmed = accepted
	case s.valid() == 0:
		accepted = no(gatewayv1.ListenerSetReasonListenersNotValid, "no listener is valid")
		programmed = accepted
	case s.valid() < len(s.listeners):
		accepted.reason, accepted.message = string(gatewayv1.ListenerSetReasonListenersNotValid),
			"some listeners are not valid"
	}
	c.set(&st.Conditions, generation, string(gatewayv1.ListenerSetConditionAccepted), accepted)
	c.set(&st.Conditions, generation, string(gatewayv1.ListenerSetConditionProgrammed), programmed)
	old := st.Listeners
	st.Listeners = nil
	for _, l := range s.listeners {
		ls := gatewayv1.ListenerEntryStatus{Name: l.Name, SupportedKinds: l.kinds, AttachedRoutes: l.attached}
		for i := range old {
			if old[i].Name == l.Name {
				ls.Conditions = old[i].Conditions
			}
		}
		c.listenerConditions(l, &ls.Conditions)
		st.Listeners = append(st.Listeners, ls)
	}
}
