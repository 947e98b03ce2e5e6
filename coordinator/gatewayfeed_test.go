package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// clientsOf makes clients of users.
func clientsOf(t *testing.T, dir string, port int) func(user, group string) kubernetes.Interface {
	t.Helper()
	ca, err := keysOf(dir).CA()
	if err != nil {
		t.Fatal(err)
	}
	server := "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	return func(user, group string) kubernetes.Interface {
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
}

// Nodes hear of Ingresses once a class asks for it, and nobody else does; there is a
// Service for them then, and neither in the end.
func TestGatewayFeed(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	p := coordinator(t, dir, port)
	admin := client(t, p, dir, port)
	as := clientsOf(t, dir, port)
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

// TestGatewayFeedOfNodes: with parameters only the nodes that they select are told a certificate's
// key, whatever a node asks for; a label that nodes may not give themselves decides, in seconds.
func TestGatewayFeedOfNodes(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	p := coordinator(t, dir, port)
	admin := client(t, p, dir, port)
	as := clientsOf(t, dir, port)
	const label = "node-restriction.kubernetes.io/edge"
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	nodes := map[string]kubernetes.Interface{}
	for _, name := range []string{"edge", "inner"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
		if name == "edge" {
			node.Labels[label] = ""
		}
		must(admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}))
		nodes[name] = as("system:node:"+name, "system:nodes")
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(private, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"foo.example.com"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	must(der, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	must(pkcs8, err)
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	must(admin.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cert"},
		Type: corev1.SecretTypeTLS, Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key}},
		metav1.CreateOptions{}))
	class := "edge"
	must(admin.NetworkingV1().Ingresses("default").Create(t.Context(), &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: networkingv1.IngressSpec{IngressClassName: &class,
			TLS: []networkingv1.IngressTLS{{SecretName: "cert"}},
			DefaultBackend: &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
				Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}}}}, metav1.CreateOptions{}))
	must(admin.NetworkingV1().IngressClasses().Create(t.Context(), &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Spec: networkingv1.IngressClassSpec{
			Controller: "shoal-project.io/ingress", Parameters: &networkingv1.IngressClassParametersReference{
				Kind: "ConfigMap", Name: "edge", Namespace: new("kube-system"),
				Scope: new(networkingv1.IngressClassParametersReferenceScopeNamespace)}}}, metav1.CreateOptions{}))
	// heard is a stream of a node, of which the last line that it was told counts.
	type heard struct {
		mu   sync.Mutex
		line string
	}
	all := map[string]*heard{}
	for name, c := range nodes {
		h := &heard{}
		all[name] = h
		stream, err := c.Discovery().RESTClient().Get().AbsPath(gatewayfeed.Path).Stream(t.Context())
		must(stream, err)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for lines := bufio.NewScanner(stream); lines.Scan(); {
				if line := lines.Text(); line != "{}" {
					h.mu.Lock()
					h.line = line
					h.mu.Unlock()
				}
			}
		}()
		defer func() {
			_ = stream.Close()
			<-ended
		}()
	}
	// knows tells whether the last line of a node has the key; it was told no port without.
	knows := func(name string, want bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s knows the key: %t", name, want), func() string {
			all[name].mu.Lock()
			defer all[name].mu.Unlock()
			line := all[name].line
			u, err := gatewayfeed.Decode([]byte(line))
			if err != nil || u.Config == nil {
				return "it was told " + line
			}
			has := false
			for _, c := range u.Config.Certificates {
				has = has || c.Key == string(key)
			}
			if has != want || len(u.Config.Ports) > 0 != want {
				return "it was told " + line
			}
			return ""
		})
	}
	// Without its parameters nobody is told anything, and an event says why.
	knows("edge", false)
	knows("inner", false)
	eventually(t, "an event of the class", func() string {
		list, err := admin.CoreV1().Events("").List(t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.kind=IngressClass,reason=InvalidParameters"})
		if err != nil || len(list.Items) != 1 || !strings.Contains(list.Items[0].Message, "kube-system/edge") {
			return fmt.Sprint(list, err)
		}
		return ""
	})
	eventually(t, "an error of the Ingress", func() string {
		in, err := admin.NetworkingV1().Ingresses("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil || len(in.Status.LoadBalancer.Ingress) != 1 || len(in.Status.LoadBalancer.Ingress[0].Ports) != 1 {
			return fmt.Sprint(in, err)
		}
		return ""
	})
	must(admin.CoreV1().ConfigMaps("kube-system").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Data: map[string]string{"nodeSelector": label}},
		metav1.CreateOptions{}))
	knows("edge", true)
	knows("inner", false)
	for name, c := range nodes {
		_, err := c.CoreV1().Secrets("default").Get(t.Context(), "cert", metav1.GetOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s asks for the Secret: %v", name, err)
		}
		if _, err := c.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s asks for all Secrets: %v", name, err)
		}
	}
	set := func(c kubernetes.Interface, node, value string) error {
		_, err := c.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType,
			[]byte(fmt.Sprintf(`{"metadata": {"labels": {%q: %s}}}`, label, value)), metav1.PatchOptions{})
		return err
	}
	if err := set(nodes["inner"], "inner", `""`); !apierrors.IsForbidden(err) {
		t.Errorf("a node labels itself: %v", err)
	}
	must(nil, set(admin, "inner", `""`))
	knows("inner", true)
	must(nil, set(admin, "edge", "null"))
	knows("edge", false)
	knows("inner", true)
	stream, err := nodes["edge"].Discovery().RESTClient().Get().AbsPath(gatewayfeed.Path).Stream(t.Context())
	must(stream, err)
	defer stream.Close()
	if u, err := gatewayfeed.NewReader(stream).Read(); err != nil || u.Config == nil || len(u.Config.Certificates) > 0 {
		t.Errorf("a node that asks anew is told %+v: %v", u, err)
	}
}
