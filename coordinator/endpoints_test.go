package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Two coordinators on one etcd elsewhere are both endpoints of the API's Service,
// whoever started last; one that stops is none from then on.
func TestTwoCoordinators(t *testing.T) {
	c := embed.NewConfig()
	c.Dir = t.TempDir()
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	c.ListenClientUrls, c.AdvertiseClientUrls = anyPort, anyPort
	c.ListenPeerUrls, c.EnableGRPCGateway = nil, false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	etcd, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()
	servers := "http://" + etcd.Clients[0].Addr().String()

	one, other, port := t.TempDir(), t.TempDir(), freePort(t)
	first := coordinator(t, one, port, "--etcd-servers", servers, "--advertise-address", "192.0.2.1")
	clientOfFirst := client(t, first, one, port)
	soon(t, "the first is published", published(clientOfFirst, "192.0.2.1"))

	if err := os.CopyFS(other+"/coordinator/pki", os.DirFS(one+"/coordinator/pki")); err != nil {
		t.Fatal(err)
	}
	second := coordinator(t, other, port, "--etcd-servers", servers, "--advertise-address", "192.0.2.2", "--bind-address", "127.0.0.2")
	soon(t, "both are published", published(clientOfFirst, "192.0.2.1", "192.0.2.2"))
	config, err := clientcmd.BuildConfigFromFlags(fmt.Sprintf("https://127.0.0.2:%d", port), one+"/admin.kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	clientOfSecond, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	soon(t, "the second is ready", func() error {
		_, err := clientOfSecond.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
		return err
	})
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err, ended := second.wait(10 * time.Second); !ended || err != nil {
		t.Fatalf("SIGTERM: ended %v, %v\n%s", ended, err, second.out)
	}
	soon(t, "the second is published no more", published(clientOfFirst, "192.0.2.1"))
}

// published compares the addresses of the API's Service, in both kinds of object.
func published(c kubernetes.Interface, want ...string) func() error {
	return func() error {
		ctx := context.Background()
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
}
