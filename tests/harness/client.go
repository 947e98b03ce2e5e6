package harness

import (
	"context"
	"fmt"
	"net"
	"runtime"

	"github.com/vishvananda/netns"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// RESTConfig returns the admin's client configuration for use by this process,
// which stands outside the cluster's network namespace: dialing steps inside.
func (c *Cluster) RESTConfig() (*rest.Config, error) { return RESTConfig(c.NetNS, c.Kubeconfig()) }

// RESTConfig is a kubeconfig's client configuration that dials from a network
// namespace and limits no rates.
func RESTConfig(netns, kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = -1, -1
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		var conn net.Conn
		err := Inside(netns, func() (err error) {
			conn, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
	return config, nil
}

// Inside runs f on a thread that is in a network namespace. Sockets that f
// opens stay there; goroutines that it starts do not.
func Inside(name string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		target, err := netns.GetFromName(name)
		if err == nil {
			defer target.Close()
			err = netns.Set(target)
		}
		if err != nil {
			done <- fmt.Errorf("enter network namespace %s: %w", name, err)
			return
		}
		done <- f()
	}()
	return <-done
}
