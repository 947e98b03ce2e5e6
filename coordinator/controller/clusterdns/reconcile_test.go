package clusterdns

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

const address = "10.96.0.10"

// run starts the controller and returns its events.
func run(t *testing.T, client *fake.Clientset) <-chan string {
	t.Helper()
	events := record.NewFakeRecorder(10)
	factory := informers.NewSharedInformerFactory(client, 0)
	loop, err := New(controller.Env{
		Client: client, Informers: factory, Log: slog.New(slog.DiscardHandler),
		Recorder: func(string) record.EventRecorder { return events },
	}, []string{address})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	done := make(chan error, 1)
	go func() { done <- loop.Run(t.Context()) }()
	t.Cleanup(func() { <-done })
	return events.Events
}

// made waits until the Service is there.
func made(t *testing.T, client *fake.Clientset) *corev1.Service {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		s, err := client.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
		if err == nil {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestTheServiceIsKept(t *testing.T) {
	client := fake.NewClientset()
	run(t, client)
	s := made(t, client)
	if s.Spec.ClusterIP != address || len(s.Spec.Selector) != 0 || len(s.Spec.Ports) != 2 || s.Labels["k8s-app"] != "kube-dns" {
		t.Errorf("made %+v %+v", s.ObjectMeta, s.Spec)
	}
	if err := client.CoreV1().Services("kube-system").Delete(t.Context(),
		"kube-dns", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	made(t, client)
}

// A Service of an earlier version has the address: its owner is told, and once
// it is gone the address is taken.
func TestAnotherHasTheAddress(t *testing.T) {
	holder := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "squatter", UID: "u"}}
	holder.Spec.ClusterIP, holder.Spec.ClusterIPs = address, []string{address}
	client := fake.NewClientset(holder)
	client.PrependReactor("create", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		if _, err := client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("services"), "team",
			"squatter"); err != nil {
			return false, nil, nil
		}
		return true, nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(),
			"kube-dns", nil)
	})
	events := run(t, client)
	select {
	case e := <-events:
		if !strings.Contains(e, "ClusterDNSAddress") || !strings.Contains(e, address) {
			t.Errorf("event %q", e)
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody was told")
	}
	if err := client.CoreV1().Services("team").Delete(t.Context(), "squatter", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	made(t, client)
}

func TestEnsureTellsOtherErrors(t *testing.T) {
	client := fake.NewClientset()
	broken := errors.New("broken")
	client.PrependReactor("create", "services",
		func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, broken })
	if err := Ensure(t.Context(), client, []string{address}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}
