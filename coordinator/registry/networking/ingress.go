package networking

import (
	"context"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// classAnnotation named the class before spec.ingressClassName did.
const classAnnotation = "kubernetes.io/ingress.class"

func ingress() kind.Kind {
	type T = networkingv1.Ingress
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "ingresses", Singular: "ingress", ShortNames: []string{"ing"},
			List: &networkingv1.IngressList{},
		},
		Create:         func(_ context.Context, i *T) { i.Status = networkingv1.IngressStatus{} },
		Validate:       func(_ context.Context, i *T) field.ErrorList { return validateNewIngress(i) },
		ValidateUpdate: func(_ context.Context, i, old *T) field.ErrorList { return validateIngress(&i.Spec, &old.Spec) },
		Warnings:       ingressWarnings,
		Spec:           func(i *T) any { return &i.Spec },
		Status: &kind.StatusOf[T]{
			Copy: func(to, from *T) { to.Status = from.Status },
			Validate: func(_ context.Context, i, old *T) field.ErrorList {
				return validateBalancer(i.Status.LoadBalancer.Ingress, old.Status.LoadBalancer.Ingress)
			},
			Warnings: func(i *T) (out []string) {
				for k, point := range i.Status.LoadBalancer.Ingress {
					if point.IP != "" {
						at := field.NewPath("status", "loadBalancer", "ingress").Index(k)
						out = append(out, validation.GetWarningsForIP(at, point.IP)...)
					}
				}
				return out
			},
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Class", "string", "The name of the IngressClass resource that should be used for additional configuration"),
			kind.Column("Hosts", "string", "Hosts that incoming requests are matched against before the ingress rule"),
			kind.Column("Address", "string", "Address is a list containing ingress points for the load-balancer"),
			kind.Column("Ports", "string", "Ports of TLS configurations that open"),
			kind.AgeColumn(),
		},
		Row: func(i *T) []any {
			class, ports := "<none>", "80"
			if i.Spec.IngressClassName != nil {
				class = *i.Spec.IngressClassName
			}
			if len(i.Spec.TLS) > 0 {
				ports = "80, 443"
			}
			return []any{i.Name, class, hostsCell(i.Spec.Rules), addressCell(i.Status.LoadBalancer.Ingress), ports,
				kind.Age(i.CreationTimestamp)}
		},
	}.Kind()
}

func ingressWarnings(_ context.Context, i, old *networkingv1.Ingress) []string {
	if _, ok := i.Annotations[classAnnotation]; old != nil || !ok || i.Spec.IngressClassName != nil {
		return nil
	}
	return []string{
		fmt.Sprintf("annotation %q is deprecated, please use 'spec.ingressClassName' instead", classAnnotation)}
}

// hostsCell prints the first three hosts, and how many rules follow.
func hostsCell(rules []networkingv1.IngressRule) string {
	const most = 3
	var hosts []string
	for i := range rules {
		if len(hosts) == most {
			return fmt.Sprintf("%s + %d more...", strings.Join(hosts, ","), len(rules)-most)
		}
		if rules[i].Host != "" {
			hosts = append(hosts, rules[i].Host)
		}
	}
	if len(hosts) == 0 {
		return "*"
	}
	return strings.Join(hosts, ",")
}

func addressCell(points []networkingv1.IngressLoadBalancerIngress) string {
	var list []string
	for _, p := range points {
		if p.IP != "" {
			list = append(list, p.IP)
		} else if p.Hostname != "" {
			list = append(list, p.Hostname)
		}
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ",")
}
