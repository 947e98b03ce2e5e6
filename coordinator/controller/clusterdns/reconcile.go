package clusterdns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// Name of the Service, and the value of its label, that installers and
// dashboards look for.
const (
	name    = "kube-dns"
	appName = "k8s-app"
	port    = 53
)

// Ensure makes the Service unless there is one of its name, be it the user's. One of
// ours with the first of the addresses alone, from before the cluster had both families,
// gets the second. It fails with Invalid when another Service has an address.
func Ensure(ctx context.Context, client kubernetes.Interface, addresses []string) error {
	services := client.CoreV1().Services(metav1.NamespaceSystem)
	s, err := services.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = services.Create(ctx, service(addresses), metav1.CreateOptions{})
	case err == nil && lacksSecond(s, addresses):
		policy := corev1.IPFamilyPolicyPreferDualStack
		s.Spec.ClusterIPs, s.Spec.IPFamilyPolicy = addresses, &policy
		_, err = services.Update(ctx, s, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make service %s: %w", name, err)
	}
	return nil
}

// lacksSecond tells of a Service of ours that the second address was not given.
func lacksSecond(s *corev1.Service, addresses []string) bool {
	return len(addresses) > 1 && len(s.Spec.Selector) == 0 && s.Spec.ClusterIP == addresses[0] &&
		len(s.Spec.ClusterIPs) == 1 && s.DeletionTimestamp == nil
}

func service(addresses []string) *corev1.Service {
	policy := corev1.IPFamilyPolicySingleStack
	if len(addresses) > 1 {
		policy = corev1.IPFamilyPolicyPreferDualStack
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name,
			Labels: map[string]string{appName: name}},
		Spec: corev1.ServiceSpec{
			Type:           corev1.ServiceTypeClusterIP,
			ClusterIP:      addresses[0],
			ClusterIPs:     addresses,
			IPFamilyPolicy: &policy,
			Ports: []corev1.ServicePort{
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: port, TargetPort: intstr.FromInt32(port)},
				{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: port, TargetPort: intstr.FromInt32(port)},
			},
		},
	}
}

type reconciler struct {
	client    kubernetes.Interface
	services  corelisters.ServiceLister
	addresses []string // one, or one of each family
	events    record.EventRecorder
	log       *slog.Logger
	told      types.UID // of the Service that was told last; the loop has one worker
}

// New builds the controller for the DNS's addresses; its only key is the first.
func New(env controller.Env, addresses []string) (*controller.Loop, error) {
	has := func(s *corev1.Service) bool { return holds(s, addresses) }
	services := env.Informers.Core().V1().Services()
	loop := controller.New("cluster-dns", 1, env.Log)
	loop.Reconciler = &reconciler{
		client: env.Client, services: services.Lister(), addresses: addresses,
		events: env.Recorder("cluster-dns-controller"), log: env.Log,
	}
	controller.Watch(loop, services.Informer(), func(old, s *corev1.Service) {
		for _, one := range []*corev1.Service{old, s} {
			if one != nil &&
				(one.Namespace == metav1.NamespaceSystem && one.Name == name || has(one)) {
				loop.Add(addresses[0])
			}
		}
	})
	loop.Add(addresses[0])
	return loop, nil
}

// holds tells whether a Service has one of the addresses.
func holds(s *corev1.Service, addresses []string) bool {
	return slices.ContainsFunc(addresses, func(a string) bool { return slices.Contains(s.Spec.ClusterIPs, a) })
}

// Reconcile makes the Service again if somebody deleted it.
func (r *reconciler) Reconcile(ctx context.Context, _ string) (time.Duration, error) {
	s, err := r.services.Services(metav1.NamespaceSystem).Get(name)
	if err != nil && !apierrors.IsNotFound(err) || err == nil && !lacksSecond(s, r.addresses) {
		return 0, err
	}
	err = Ensure(ctx, r.client, r.addresses)
	if !apierrors.IsInvalid(err) {
		return 0, err
	}
	return 0, r.tellHolder(ctx, err)
}

// orphanAge is how old a claim without a Service has to be: the request that
// made a younger one may not have written its Service yet.
const orphanAge = 10 * time.Second

// freeAddresses deletes the addresses' claims if they are of a Service of this name
// that is gone: a deletion that was interrupted leaves them. The next try takes them.
func (r *reconciler) freeAddresses(ctx context.Context) error {
	var errs []error
	for _, a := range r.addresses {
		errs = append(errs, r.freeAddress(ctx, a))
	}
	return errors.Join(errs...)
}

func (r *reconciler) freeAddress(ctx context.Context, address string) error {
	claims := r.client.NetworkingV1().IPAddresses()
	claim, err := claims.Get(ctx, address, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	parent := claim.Spec.ParentRef
	if parent == nil || parent.Resource != "services" || parent.Namespace != metav1.NamespaceSystem ||
		parent.Name != name || time.Since(claim.CreationTimestamp.Time) < orphanAge {
		return nil
	}
	return claims.Delete(ctx, address, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(claim.UID))})
}

// tellHolder tells whoever has the address that it leads to the DNS all the same.
// When that Service goes, its event brings the key back.
func (r *reconciler) tellHolder(ctx context.Context, refused error) error {
	all, err := r.services.List(labels.Everything())
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(s *corev1.Service) bool { return s.Name != name && holds(s, r.addresses) })
	if i < 0 {
		return errors.Join(refused, r.freeAddresses(ctx))
	}
	s := all[i]
	if s.UID == r.told {
		return nil
	}
	r.told = s.UID
	r.log.Warn("another Service has the cluster DNS's address; recreate it with another one",
		"address", s.Spec.ClusterIPs, "service", s.Namespace+"/"+s.Name)
	r.events.Eventf(s, corev1.EventTypeWarning, "ClusterDNSAddress",
		"%s is the address of the cluster's DNS, which answers there on every node instead of this Service; please recreate service with another clusterIP",
		s.Spec.ClusterIP)
	return nil
}
