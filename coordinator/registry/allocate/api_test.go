package allocate_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/registry"
	"github.com/shoal-project/shoal/coordinator/registry/allocate"
)

var (
	ctx    = context.Background()
	create = metav1.CreateOptions{}
	get    = metav1.GetOptions{}
	update = metav1.UpdateOptions{}
)

// TestAPI runs a server once for all that needs storage.
func TestAPI(t *testing.T) {
	c := apitest.Start(t, apitest.Options{Kinds: registry.Kinds()}).Kubernetes(t)
	ensureSystem(t, c)
	for name, test := range map[string]func(*testing.T, kubernetes.Interface){
		"ServiceAddresses": serviceAddresses, "ExternalAddresses": externalAddresses, "OrphanedAddress": orphanedAddress,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

// ensureSystem makes the default range of cluster IPs, as the coordinator does.
func ensureSystem(t testing.TB, c kubernetes.Interface) {
	t.Helper()
	err := apiserver.EnsureSystem(ctx, c, apiserver.System{
		Port: 6443, ServiceIP: net.IPv4(10, 96, 0, 1), ServiceCIDRs: []string{"10.96.0.0/16"},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func aService(name string, change func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantError(t *testing.T, err error, part string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("error %v lacks %q", err, part)
	}
}

// serviceAddresses: concurrent creates never share an address or a port.
func serviceAddresses(t *testing.T, c kubernetes.Interface) {
	services := c.CoreV1().Services("default")
	const n = 40
	made := make([]*corev1.Service, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			s, err := services.Create(ctx,
				aService(fmt.Sprintf("many-%d", i),
					func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort }), create)
			if err != nil {
				t.Error(err)
				return
			}
			made[i] = s
		})
	}
	wg.Wait()
	ips, ports := map[string]bool{}, map[int32]bool{}
	for _, s := range made {
		if s == nil {
			t.FailNow()
		}
		ips[s.Spec.ClusterIP], ports[s.Spec.Ports[0].NodePort] = true, true
	}
	if len(ips) != n || len(ports) != n {
		t.Fatalf("%d addresses, %d ports", len(ips), len(ports))
	}
	ip, port := made[0].Spec.ClusterIP, made[0].Spec.Ports[0].NodePort
	_, err := services.Create(ctx, aService("same-ip", func(s *corev1.ServiceSpec) { s.ClusterIP = ip }), create)
	wantError(t, err, "spec.clusterIPs: Invalid value: [\""+ip+"\"]: failed to allocate IP "+ip+": provided IP is already allocated")
	_, err = services.Create(ctx, aService("same-port", func(s *corev1.ServiceSpec) {
		s.Type, s.Ports[0].NodePort = corev1.ServiceTypeNodePort, port
	}), create)
	wantError(t, err, "spec.ports[0].nodePort: Invalid value: "+strconv.Itoa(int(port))+": provided port is already allocated")
	_, err = services.Create(ctx, aService("out", func(s *corev1.ServiceSpec) { s.ClusterIP = "10.97.0.1" }), create)
	wantError(t, err, "failed to allocate IP 10.97.0.1: the provided network does not match the current range")
	_, err = services.Create(ctx, aService("low", func(s *corev1.ServiceSpec) {
		s.Type, s.Ports[0].NodePort = corev1.ServiceTypeNodePort, 80
	}), create)
	wantError(t, err, "provided port is not in the valid range. The range of valid ports is 30000-32767")
	// Addresses below 10.96.1.0 are given only to who asks for them.
	if _, err := services.Create(ctx, aService("dry", func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.0.77" }),
		metav1.CreateOptions{DryRun: []string{"All"}}); err != nil {
		t.Error(err)
	}
	if _, err := c.NetworkingV1().IPAddresses().Get(ctx, "10.96.0.77", get); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run's address: %v", err)
	}
	must[*corev1.Service](t)(services.Create(ctx,
		aService("wet", func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.0.77" }), create))
	address := must[*networkingv1.IPAddress](t)(c.NetworkingV1().IPAddresses().Get(ctx, "10.96.0.77", get))
	if r := address.Spec.ParentRef; r == nil ||
		*r != (networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "wet"}) ||
		address.Labels["ipaddress.kubernetes.io/managed-by"] != "ipallocator.k8s.io" ||
		address.Labels["ipaddress.kubernetes.io/ip-family"] != "IPv4" {
		t.Errorf("address of a service: %+v", address)
	}
	// A dry run does not look whether an address is in use, as upstream's.
	if _, err := services.Create(ctx, aService("dry", func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.0.77" }),
		metav1.CreateOptions{DryRun: []string{"All"}}); err != nil {
		t.Error(err)
	}
	if err := services.Delete(ctx, "wet", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.NetworkingV1().IPAddresses().Get(ctx, "10.96.0.77", get); !apierrors.IsNotFound(err) {
		t.Errorf("address of a deleted service: %v", err)
	}
	must[*corev1.Service](t)(services.Create(ctx,
		aService("again", func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.0.77" }), create))
	_, err = services.Create(ctx,
		aService("noports", func(s *corev1.ServiceSpec) { s.Ports = nil; s.ClusterIP = "10.96.0.78" }), create)
	wantError(t, err, "spec.ports: Required value")
	must[*corev1.Service](t)(services.Create(ctx,
		aService("after-failure", func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.0.78" }), create))
}

// orphanedAddress: an address whose Service is gone for long does not stay taken;
// that of a Service, or of one that may be about to be written, does.
func orphanedAddress(t *testing.T, c kubernetes.Interface) {
	const ip = "10.96.0.55"
	services, addresses := c.CoreV1().Services("default"), c.NetworkingV1().IPAddresses()
	must[*networkingv1.IPAddress](t)(addresses.Create(ctx, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip,
			Labels: map[string]string{"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
				"ipaddress.kubernetes.io/ip-family": "IPv4"}},
		Spec: networkingv1.IPAddressSpec{
			ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "gone"}},
	}, create))
	wanted := func(name string) *corev1.Service {
		return aService(name, func(s *corev1.ServiceSpec) { s.ClusterIP = ip })
	}
	_, err := services.Create(ctx, wanted("next"), create)
	wantError(t, err, "provided IP is already allocated")
	defer allocate.SetAddressOrphaned(0)()
	must[*corev1.Service](t)(services.Create(ctx, wanted("next"), create))
	_, err = services.Create(ctx, wanted("third"), create)
	wantError(t, err, "provided IP is already allocated")
	if a := must[*networkingv1.IPAddress](t)(addresses.Get(ctx, ip, get)); a.Spec.ParentRef.Name != "next" {
		t.Errorf("the address is of %+v", a.Spec.ParentRef)
	}
}

// externalAddresses: nobody gets what the cluster has by spec.externalIPs.
func externalAddresses(t *testing.T, c kubernetes.Interface) {
	services := c.CoreV1().Services("default")
	early := must[*corev1.Service](t)(services.Create(ctx,
		aService("early", func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"192.0.2.8"} }), create))
	node := must[*corev1.Node](t)(c.CoreV1().Nodes().Create(ctx,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "addressed"}}, create))
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "addressed"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.8"},
		{Type: corev1.NodeExternalIP, Address: "203.0.113.8"},
	}
	must[*corev1.Node](t)(c.CoreV1().Nodes().UpdateStatus(ctx, node, update))
	for ip, want := range map[string]string{
		"10.96.0.10":      `spec.externalIPs[0]: Invalid value: "10.96.0.10": may not be in the cluster's range of services (10.96.0.0/16)`,
		"10.244.3.4":      `spec.externalIPs[0]: Invalid value: "10.244.3.4": may not be in the cluster's range of pods (10.244.0.0/16)`,
		"192.0.2.8":       `spec.externalIPs[0]: Invalid value: "192.0.2.8": may not be an address of a node; use a Service of type NodePort or LoadBalancer`,
		"203.0.113.8":     "may not be an address of a node",
		"127.0.0.1":       "may not be in the loopback range",
		"169.254.169.254": "may not be in the link-local range",
	} {
		_, err := services.Create(ctx,
			aService("external", func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{ip} }), create)
		wantError(t, err, want)
	}
	// What was there before the node can still be changed; the agents do not serve it.
	early.Spec.Selector = map[string]string{"app": "other"}
	must[*corev1.Service](t)(services.Update(ctx, early, update))
	// An address of nobody is what the field is for.
	s := must[*corev1.Service](t)(services.Create(ctx,
		aService("external", func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"192.0.2.7"} }), create))
	s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, "10.96.0.1")
	_, err := services.Update(ctx, s, update)
	wantError(t, err, "spec.externalIPs[1]")
}
