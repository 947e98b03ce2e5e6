// Command csidriver is the storage driver that peerbench gives both systems. Its
// volumes are directories that the drivers of all nodes share, so that a pod can move
// with its volume, and cost next to nothing: what is measured is what calls it. It
// refuses a second node, as a disk of a cloud does.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	var d driver
	var registry string
	flag.StringVar(&d.name, "name", "", "name of the driver")
	flag.StringVar(&d.node, "node", "", "name of this node")
	flag.StringVar(&d.volumes, "volumes", "", "directory of the volumes, the same on all nodes")
	flag.StringVar(&d.endpoint, "endpoint", "", "socket to serve at")
	flag.StringVar(&registry, "registry", "", "directory in which plugins of the node register")
	flag.Parse()
	if err := run(&d, registry); err != nil {
		fmt.Fprintln(os.Stderr, "csidriver:", err)
		os.Exit(1)
	}
}

func run(d *driver, registry string) error {
	for name, value := range map[string]string{"name": d.name, "node": d.node, "volumes": d.volumes,
		"endpoint": d.endpoint, "registry": registry} {
		if value == "" {
			return fmt.Errorf("--%s is empty: it has to be given", name)
		}
	}
	s := grpc.NewServer()
	csipb.RegisterIdentityServer(s, d)
	csipb.RegisterControllerServer(s, d)
	csipb.RegisterNodeServer(s, d)
	registrationv1.RegisterRegistrationServer(s, d)
	ended := make(chan error, 2)
	// The socket of registration comes last: who sees it calls the driver.
	for _, path := range []string{d.endpoint, filepath.Join(registry, d.name+"-reg.sock")} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.RemoveAll(path)); err != nil {
			return err
		}
		l, err := net.Listen("unix", path)
		if err != nil {
			return err
		}
		go func() { ended <- s.Serve(l) }()
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	select {
	case <-stop:
		s.Stop()
		return nil
	case err := <-ended:
		return err
	}
}
