package main

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// Nodes hear of Ingresses once a class asks for it, and nobody else does; there is a
// Service for them then, and neither in the end.
func TestGatewayFeed(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	p := coordinator(t, dir, port)
	admin := client(t, p, dir, port)
	ca, err := keysOf(dir).CA()
	if err != nil {
		t.Fatal(err)
	}
	server := "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	as := func(user, group string) kubernetes.Interface {
		t.Helper()
		data, err := ca.Kubeconfig(server, pki.Spec{User: user, Groups: []string{group}, Lifetime: time.Hour},
			time.Now())
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(data)
		if err != nil {
			t.Fatal(err)
		}
		c, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	node, user := as("system:node:one", "system:nodes"), as("somebody", "people")
	get := user.Discovery().RESTClient().Get().AbsPath(gatewayfeed.Path).Do(t.Context())
	var code int
	if get.StatusCode(&code); code != http.StatusForbidden {
		t.Errorf("a user gets %d: %v", code, get.Error())
	}
	stream, err := node.Discovery().RESTClient().Get().AbsPath(gatewayfeed.Path).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	lines := gatewayfeed.NewReader(stream)
	until := func(what string, ok func(*gatewayfeed.Config) bool) {
		t.Helper()
		late := time.AfterFunc(20*time.Second, func() { _ = stream.Close() })
		defer late.Stop()
		for {
			u, err := lines.Read()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if u.Config != nil && ok(u.Config) {
				return
			}
		}
	}
	nodes := admin.CoreV1().Nodes()
	for name, serves := range map[string]string{"one": "true", "without": "false"} {
		if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
			Annotations: map[string]string{gatewayfeed.ProxyAnnotation: serves}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	until("nothing at first", func(c *gatewayfeed.Config) bool { return len(c.Ports) == 0 })
	services := admin.CoreV1().Services(metav1.NamespaceSystem)
	if _, err := services.Get(t.Context(), "shoal-ingress", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a Service that nobody asked for: %v", err)
	}
	_, err = admin.CoreV1().Services("default").Create(t.Context(),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	class := "ours"
	ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: networkingv1.IngressSpec{
		IngressClassName: &class,
		DefaultBackend: &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
			Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}}}}
	if _, err := admin.NetworkingV1().Ingresses("default").Create(t.Context(), ingress,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = admin.NetworkingV1().IngressClasses().Create(t.Context(), &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: class},
		Spec:       networkingv1.IngressClassSpec{Controller: "shoal-project.io/ingress"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// On the nodes' port, and, once there is the Service, on one of its own.
	until("an Ingress", func(c *gatewayfeed.Config) bool {
		return len(c.Ports) == 2 && strings.HasSuffix(c.Ports[0].Listeners[0].Routes[0].Name, "default/web")
	})
	// Nobody else has use for certificates' keys.
	for who, c := range map[string]kubernetes.Interface{
		"a node without a proxy":  as("system:node:without", "system:nodes"),
		"a node that is not here": as("system:node:gone", "system:nodes"),
		"an administrator":        admin,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		other, err := c.Discovery().RESTClient().Get().AbsPath(gatewayfeed.Path).Stream(ctx)
		if err != nil {
			t.Fatal(who, err)
		}
		for told := gatewayfeed.NewReader(other); ; {
			u, err := told.Read()
			if err != nil {
				break
			}
			if u.Config != nil {
				t.Errorf("%s is told %+v", who, u.Config)
			}
		}
		_ = other.Close()
		cancel()
	}
	if err := admin.NetworkingV1().IngressClasses().Delete(t.Context(), class, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("nothing in the end", func(c *gatewayfeed.Config) bool { return len(c.Ports) == 0 })
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := services.Get(t.Context(), "shoal-ingress", metav1.GetOptions{}); apierrors.IsNotFound(err) {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the Service stays: %v", err)
		}
	}
}
