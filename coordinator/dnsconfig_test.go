package main

import (
	"net"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/coordinator/pki"
)

// Nodes follow the ConfigMap that says whom the cluster's DNS asks, and no other.
func TestNodesReadTheConfigMapOfDNS(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	p := coordinator(t, dir, port)
	admin := client(t, p, dir, port)
	ca, err := keysOf(dir).CA()
	if err != nil {
		t.Fatal(err)
	}
	spec := pki.Spec{User: "system:node:one", Groups: []string{"system:nodes"}, Lifetime: time.Hour}
	data, err := ca.Kubeconfig("https://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), spec, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	node, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	maps := node.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	only := metav1.ListOptions{FieldSelector: "metadata.name=kube-dns"}
	if _, err := maps.List(t.Context(), only); err != nil {
		t.Errorf("a node lists the ConfigMap: %v", err)
	}
	w, err := maps.Watch(t.Context(), only)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, name := range []string{"another", "kube-dns"} {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"stubDomains": "{}"}}
		if _, err := admin.CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(t.Context(), m,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case e := <-w.ResultChan():
		if m, ok := e.Object.(*corev1.ConfigMap); !ok || m.Name != "kube-dns" {
			t.Errorf("a node hears %v", e)
		}
	case <-time.After(time.Minute):
		t.Error("a node hears nothing")
	}
	if _, err := maps.Get(t.Context(), "another", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node reads another ConfigMap: %v", err)
	}
	if _, err := maps.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node lists all ConfigMaps: %v", err)
	}
}
