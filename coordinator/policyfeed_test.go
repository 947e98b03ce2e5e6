package main

import (
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/agent/policyfeed"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// Nodes hear of network policies, and of the pods that these are about; nobody else
// does, and no node may list them by the API. Who listens does not keep a coordinator
// from stopping.
func TestPolicyFeed(t *testing.T) {
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
		spec := pki.Spec{User: user, Groups: []string{group}, Lifetime: time.Hour}
		data, err := ca.Kubeconfig(server, spec, time.Now())
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
	get := user.Discovery().RESTClient().Get().AbsPath(policyfeed.Path).Do(t.Context())
	var code int
	if get.StatusCode(&code); code != http.StatusForbidden {
		t.Errorf("a user gets %d: %v", code, get.Error())
	}
	_, err = node.NetworkingV1().NetworkPolicies("").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("a node lists policies: %v", err)
	}
	stream, err := node.Discovery().RESTClient().Get().AbsPath(policyfeed.Path).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	lines := policyfeed.NewReader(stream)
	until := func(what string, ok func(*policyfeed.Update) bool) {
		t.Helper()
		for {
			u, err := lines.Read()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if ok(u) {
				return
			}
		}
	}
	until("nothing at first", func(u *policyfeed.Update) bool {
		return u.Reset && !u.More && len(u.Policies)+len(u.Namespaces)+len(u.Pods) == 0
	})
	deny := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny"}}
	_, err = admin.NetworkingV1().NetworkPolicies("default").Create(t.Context(), deny, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	until("a policy", func(u *policyfeed.Update) bool { return len(u.Policies) == 1 && len(u.Namespaces) > 0 })
	soon(t, "a namespace is made", func() error {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "later", Labels: map[string]string{"a": "b"}}}
		_, err := admin.CoreV1().Namespaces().Create(t.Context(), n, metav1.CreateOptions{})
		return err
	})
	until("a namespace", func(u *policyfeed.Update) bool {
		return len(u.Namespaces) == 1 && u.Namespaces[0].Labels["a"] == "b"
	})
	terminate(t, p)
}
