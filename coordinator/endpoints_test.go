package main

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

// Two coordinators on one etcd elsewhere, on machines of one name, are both endpoints
// of the API's Service, whoever started last; one that stops is none from then on.
// The first leads, as long as it lives.
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
	second := coordinator(t, other, port, "--etcd-servers", servers, "--advertise-address", "192.0.2.2",
		"--bind-address", "127.0.0.2")
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
	holder := leads(t, clientOfSecond, "")
	rotatesOutside(t, one, other, port)
	terminate(t, first)
	soon(t, "the first is published no more", published(clientOfSecond, "192.0.2.2"))
	if next := leads(t, clientOfSecond, holder); !strings.HasPrefix(next, hostName()+"_") {
		t.Errorf("%s leads after %s", next, holder)
	}
	terminate(t, second)
}

// rotatesOutside has coordinators that have only an outside etcd in common use another
// key; one that is gone for good is waited for until it is forgotten.
func rotatesOutside(t *testing.T, one, other string, port int) {
	t.Helper()
	keys := func(args ...string) (string, error) {
		var out bytes.Buffer
		cmd := command()
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"keys", "--data-dir", one, "--port", fmt.Sprint(port)}, args...))
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	soon(t, "both have told their keys", func() error {
		out, err := keys("status")
		if err == nil && (!strings.Contains(out, "192.0.2.1") || !strings.Contains(out, "192.0.2.2")) {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	if out, err := keys("rotate", "serviceaccount"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if readFile(t, keysOf(one).Path("sa.key")) != readFile(t, keysOf(other).Path("sa.key")) {
		t.Error("they have different keys")
	}
	name := fmt.Sprintf("%s/192.0.2.2:%d", hostName(), port)
	if out, err := keys("forget", name); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	soon(t, "it tells again, for it lives", func() error {
		out, err := keys("status")
		if err == nil && !strings.Contains(out, name) {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
}

// terminate stops a coordinator, which has to end well.
func terminate(t *testing.T, p *child) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err, ended := p.wait(time.Minute); !ended || err != nil {
		t.Fatalf("SIGTERM: ended %v, %v\n%s", ended, err, p.out)
	}
}

// leads returns the identity of who leads, once that is not the one from before.
func leads(t *testing.T, c kubernetes.Interface, before string) (holder string) {
	t.Helper()
	soon(t, "another leads than "+before, func() error {
		leases := c.CoordinationV1().Leases("kube-system")
		lease, err := leases.Get(t.Context(), "shoal-coordinator", metav1.GetOptions{})
		if err != nil {
			return err
		}
		holder = ptr.Deref(lease.Spec.HolderIdentity, "")
		if holder == "" || holder == before {
			return fmt.Errorf("holder %q", holder)
		}
		return nil
	})
	return holder
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
