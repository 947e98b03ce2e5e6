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

// Ensure makes the Service unless there is one of its name, be it the user's.
// It fails with Invalid when another Service has the address.
func Ensure(ctx context.Context, client kubernetes.Interface, address string) error {
	services := client.CoreV1().Services(metav1.NamespaceSystem)
	_, err := services.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = services.Create(ctx, service(address), metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make service %s: %w", name, err)
	}
	return nil
}

func service(address string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name,
			Labels: map[string]string{appName: name}},
		Spec: corev1.ServiceSpec{
			Type:      corev1.ServiceTypeClusterIP,
			ClusterIP: address,
			Ports: []corev1.ServicePort{
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: port, TargetPort: intstr.FromInt32(port)},
				{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: port, TargetPort: intstr.FromInt32(port)},
			},
		},
	}
}

type reconciler struct {
	client   kubernetes.Interface
	services corelisters.ServiceLister
	address  string
	events   record.EventRecorder
	log      *slog.Logger
	told     types.UID // of the Service that was told last; the loop has one worker
}

// New builds the controller for the DNS's address; its only key is the address.
func New(env controller.Env, address string) (*controller.Loop, error) {
	services := env.Informers.Core().V1().Services()
	loop := controller.New("cluster-dns", 1, env.Log)
	loop.Reconciler = &reconciler{
		client: env.Client, services: services.Lister(), address: address,
		events: env.Recorder("cluster-dns-controller"), log: env.Log,
	}
	controller.Watch(loop, services.Informer(), func(old, s *corev1.Service) {
		for _, one := range []*corev1.Service{old, s} {
			if one != nil &&
				(one.Namespace == metav1.NamespaceSystem && one.Name == name ||
					slices.Contains(one.Spec.ClusterIPs, address)) {
				loop.Add(address)
			}
		}
	})
	loop.Add(address)
	return loop, nil
}

// Reconcile makes the Service again if somebody deleted it.
func (r *reconciler) Reconcile(ctx context.Context, address string) (time.Duration, error) {
	if _, err := r.services.Services(metav1.NamespaceSystem).Get(name); !apierrors.IsNotFound(err) {
		return 0, err
	}
	err := Ensure(ctx, r.client, address)
	if !apierrors.IsInvalid(err) {
		return 0, err
	}
	return 0, r.tellHolder(ctx, err)
}

// orphanAge is how old a claim without a Service has to be: the request that
// made a younger one may not have written its Service yet.
const orphanAge = 10 * time.Second

// freeAddress deletes the address's claim if it is of a Service of this name
// that is gone: a deletion that was interrupted leaves it. The next try takes it.
func (r *reconciler) freeAddress(ctx context.Context) error {
	claims := r.client.NetworkingV1().IPAddresses()
	claim, err := claims.Get(ctx, r.address, metav1.GetOptions{})
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
	return claims.Delete(ctx, r.address, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(claim.UID))})
}

// tellHolder tells whoever has the address that it leads to the DNS all the same.
// When that Service goes, its event brings the key back.
func (r *reconciler) tellHolder(ctx context.Context, refused error) error {
	all, err := r.services.List(labels.Everything())
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(s *corev1.Service) bool { return slices.Contains(s.Spec.ClusterIPs, r.address) })
	if i < 0 {
		return errors.Join(refused, r.freeAddress(ctx))
	}
	s := all[i]
	if s.UID == r.told {
		return nil
	}
	r.told = s.UID
	r.log.Warn("another Service has the cluster DNS's address; recreate it with another one", "address", r.address,
		"service", s.Namespace+"/"+s.Name)
	r.events.Eventf(s, corev1.EventTypeWarning, "ClusterDNSAddress",
		"%s is the address of the cluster's DNS, which answers there on every node instead of this Service; please recreate service with another clusterIP",
		r.address)
	return nil
}
