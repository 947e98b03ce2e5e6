package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/registry/scheduling"
)

// System is what the API's own objects say.
type System struct {
	// Port is where this API server listens, ServiceIP the address of its Service.
	Port      int
	ServiceIP net.IP
	// ServiceCIDRs are the ranges of cluster IPs, the primary family's first.
	ServiceCIDRs []string
	// ClientCA and FrontProxyCA are PEM bundles that aggregated API servers
	// verify requests with, FrontProxyNames the names that this server has there.
	ClientCA, FrontProxyCA []byte
	FrontProxyNames        []string
	// LocalStorage: there are the objects of the storage driver that ships with Shoal.
	LocalStorage bool
}

// SystemNamespaces are those that exist in every cluster.
func SystemNamespaces() []string {
	return []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, metav1.NamespaceDefault}
}

const (
	apiService     = "kubernetes"
	apiServicePort = 443
)

// Steps make the system namespaces and priority classes, what others authenticate
// by, and the Service "kubernetes". Its endpoints are published elsewhere:
// coordinators share them. They can be repeated.
func (s System) Steps(client kubernetes.Interface) []Step {
	return []Step{
		{"start-system-namespaces-controller", func(ctx context.Context) error {
			for _, name := range SystemNamespaces() {
				if err := ensureNamespace(ctx, client, name); err != nil {
					return err
				}
			}
			return nil
		}},
		{"scheduling/bootstrap-system-priority-classes", func(ctx context.Context) error {
			for _, class := range scheduling.SystemClasses() {
				if err := ensureClass(ctx, client, class); err != nil {
					return err
				}
			}
			return nil
		}},
		{"start-cluster-authentication-info-controller", func(ctx context.Context) error {
			return ensureAuthenticationConfig(ctx, client, s)
		}},
		{"start-legacy-token-tracking-controller", func(ctx context.Context) error {
			return ensureTokenTracking(ctx, client, time.Now())
		}},
		{"start-kubernetes-service-cidr-controller", func(ctx context.Context) error {
			return ensureServiceCIDR(ctx, client, s.ServiceCIDRs)
		}},
		{"start-service-ip-repair-controllers", func(ctx context.Context) error {
			// What repairs them runs where the leader does.
			_, err := client.NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{Limit: 1})
			if err != nil {
				return fmt.Errorf("read the addresses of Services: %w", err)
			}
			return nil
		}},
		{"local-storage", func(ctx context.Context) error {
			if !s.LocalStorage {
				return nil
			}
			return ensureLocalStorage(ctx, client)
		}},
		{"bootstrap-controller", func(ctx context.Context) error { return ensureService(ctx, client, s) }},
	}
}

// EnsureSystem takes all of s's steps.
func EnsureSystem(ctx context.Context, client kubernetes.Interface, s System) error {
	for _, step := range s.Steps(client) {
		if err := step.Run(ctx); err != nil {
			return err
		}
	}
	return nil
}

func ensureNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	namespaces := client.CoreV1().Namespaces()
	if _, err := namespaces.Get(ctx, name, metav1.GetOptions{}); err == nil {
		return nil
	}
	_, err := namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make namespace %s: %w", name, err)
	}
	return nil
}

func ensureClass(ctx context.Context, client kubernetes.Interface, class *schedulingv1.PriorityClass) error {
	classes := client.SchedulingV1().PriorityClasses()
	if _, err := classes.Get(ctx, class.Name, metav1.GetOptions{}); err == nil {
		return nil
	}
	_, err := classes.Create(ctx, class, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make priority class %s: %w", class.Name, err)
	}
	return nil
}

// PublishAuthentication tells aggregated API servers of CAs that have changed.
func (s System) PublishAuthentication(ctx context.Context, client kubernetes.Interface) error {
	return ensureAuthenticationConfig(ctx, client, s)
}

// PublishService makes the API's own Service, if somebody has deleted it.
func (s System) PublishService(ctx context.Context, client kubernetes.Interface) error {
	return ensureService(ctx, client, s)
}

// TrackTokens says since when the use of tokens in Secrets is recorded, if nothing does.
func (s System) TrackTokens(ctx context.Context, client kubernetes.Interface) error {
	return ensureTokenTracking(ctx, client, time.Now())
}

// ensureAuthenticationConfig publishes how aggregated API servers authenticate
// requests that this server sends on.
func ensureAuthenticationConfig(ctx context.Context, client kubernetes.Interface, s System) error {
	const name = "extension-apiserver-authentication"
	allowed, err := json.Marshal(s.FrontProxyNames)
	if err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	want := map[string]string{
		"client-ca-file":                     string(s.ClientCA),
		"requestheader-client-ca-file":       string(s.FrontProxyCA),
		"requestheader-allowed-names":        string(allowed),
		"requestheader-username-headers":     `["X-Remote-User"]`,
		"requestheader-uid-headers":          `["X-Remote-Uid"]`,
		"requestheader-group-headers":        `["X-Remote-Group"]`,
		"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	}
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	have, err := maps.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		if equality.Semantic.DeepEqual(have.Data, want) {
			return nil
		}
		have.Data = want
		_, err = maps.Update(ctx, have, metav1.UpdateOptions{})
	} else if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: want},
			metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	return nil
}

// ensureTokenTracking notes since when it is known which Secrets with service
// account tokens are in use. What somebody broke is begun again.
func ensureTokenTracking(ctx context.Context, client kubernetes.Interface, now time.Time) error {
	const name, key = "kube-apiserver-legacy-service-account-token-tracking", "since"
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	today := now.UTC().Format(time.DateOnly)
	have, err := maps.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name},
			Data: map[string]string{key: today}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
	case err == nil:
		if _, bad := time.Parse(time.DateOnly, have.Data[key]); bad == nil {
			return nil
		}
		if have.Data == nil {
			have.Data = map[string]string{}
		}
		have.Data[key] = today
		_, err = maps.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	return nil
}

// ensureServiceCIDR makes the range that the API's own Service is of. Its
// controller looks after it from then on.
func ensureServiceCIDR(ctx context.Context, client kubernetes.Interface, cidrs []string) error {
	ranges := client.NetworkingV1().ServiceCIDRs()
	have, err := ranges.Get(ctx, apiService, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		have, err = ranges.Create(ctx, &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: apiService}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
		}, metav1.CreateOptions{})
	}
	if err == nil && have.DeletionTimestamp == nil &&
		meta.FindStatusCondition(have.Status.Conditions, networkingv1.ServiceCIDRConditionReady) == nil {
		meta.SetStatusCondition(&have.Status.Conditions, metav1.Condition{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Message: "Kubernetes default Service CIDR is ready",
		})
		_, err = ranges.UpdateStatus(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("make service range %s: %w", apiService, err)
	}
	return nil
}

func apiLabels() map[string]string {
	return map[string]string{"component": "apiserver", "provider": "kubernetes"}
}

func ensureService(ctx context.Context, client kubernetes.Interface, s System) error {
	services := client.CoreV1().Services(metav1.NamespaceDefault)
	want := corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: s.ServiceIP.String(), ClusterIPs: []string{s.ServiceIP.String()},
		SessionAffinity: corev1.ServiceAffinityNone,
		Ports: []corev1.ServicePort{
			{Name: "https", Protocol: corev1.ProtocolTCP, Port: apiServicePort,
				TargetPort: intstr.FromInt32(int32(s.Port))}},
	}
	have, err := services.Get(ctx, apiService, metav1.GetOptions{})
	if err == nil {
		if equality.Semantic.DeepEqual(have.Spec.Ports, want.Ports) {
			return nil
		}
		have.Spec.Ports = want.Ports
		_, err = services.Update(ctx, have, metav1.UpdateOptions{})
	} else if apierrors.IsNotFound(err) {
		_, err = services.Create(ctx,
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: apiService, Labels: apiLabels()}, Spec: want},
			metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("make service %s: %w", apiService, err)
	}
	return nil
}
