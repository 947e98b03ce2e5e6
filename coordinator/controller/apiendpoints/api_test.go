package apiendpoints_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/controller/apiendpoints"
	"github.com/shoal-project/shoal/coordinator/registry"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.CheckOurs(m) }

// Publishers on one store that all start at once stay beside each other, in both
// objects, however their writes race.
func TestOneStore(t *testing.T) {
	s := apitest.Start(t, apitest.Options{Kinds: registry.Kinds()})
	c := s.Kubernetes(t)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := c.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var stops []func()
	var want []string
	for i := range 5 {
		server := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 6443)
		p := &apiendpoints.Publisher{
			Client: s.Client(),
			Leases: s.Storage.Leased("apiservers", apiendpoints.TTL),
			Server: server,
			Log:    slog.New(slog.DiscardHandler),
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		stops = append(stops, func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		want = append(want, server.Addr().String())
	}
	eventually(t, c, "all", want)
	stops[0]()
	stops[3]()
	eventually(t, c, "two have stopped", []string{want[1], want[2], want[4]})
	for _, i := range []int{1, 2, 4} {
		stops[i]()
	}
}

func eventually(t *testing.T, c kubernetes.Interface, when string, want []string) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = compare(t.Context(), c, want); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", when, err)
}

func compare(ctx context.Context, c kubernetes.Interface, want []string) error {
	e, err := c.CoreV1().Endpoints("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	slice, err := c.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	var inEndpoints, inSlice []string
	for _, s := range e.Subsets {
		for _, a := range s.Addresses {
			inEndpoints = append(inEndpoints, a.IP)
		}
	}
	for _, e := range slice.Endpoints {
		inSlice = append(inSlice, e.Addresses...)
	}
	if !slices.Equal(inEndpoints, want) || !slices.Equal(inSlice, want) {
		return fmt.Errorf("endpoints %v, slice %v, want %v", inEndpoints, inSlice, want)
	}
	return nil
}
