package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	memory "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/tests/harness"
)

// alwaysPulled are the images that specs pull although the nodes have them
// (imagePullPolicy Always).
var alwaysPulled = []string{registry + "kitten:1.8", registry + "agnhost:2.63.0"}

// alwaysPulledByDrivers are those of drivers that specs of storage deploy.
var alwaysPulledByDrivers = []string{"registry.k8s.io/sig-storage/csi-snapshotter:v8.5.0"}

// registryPort is where the first machine serves them.
// Specs of pulls serve theirs on port 5000 of a node.
const registryPort = "5001"

// serveRegistry serves the images that are always pulled on the first machine,
// as long as this process lives, and returns the directory that makes it the
// mirror of registry.k8s.io.
func serveRegistry(c *harness.Cluster, archive string, o options) (string, error) {
	handler := memory.New(memory.Logger(log.New(io.Discard, "", 0)))
	refs := alwaysPulled
	if o.node { // the node deletes unused ones when it is short of disk
		refs = nil
		for _, i := range append(images(filepath.Dir(archive), o.bin), nodeImages(filepath.Dir(archive))...) {
			refs = append(refs, i.ref)
		}
	}
	if o.storage() {
		refs = slices.Concat(refs, alwaysPulledByDrivers)
	}
	for _, ref := range refs {
		if err := push(handler, archive, ref); err != nil {
			return "", err
		}
	}
	address := net.JoinHostPort(c.Address, registryPort)
	var listener net.Listener
	err := nstest.In(filepath.Join("/run/netns", c.NetNS), func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	dir := filepath.Join(c.Dir, "certs.d")
	if err := os.MkdirAll(filepath.Join(dir, "registry.k8s.io"), 0o755); err != nil {
		return "", err
	}
	hosts := fmt.Sprintf("server = \"http://%s\"\n\n[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n",
		address, address)
	return dir, os.WriteFile(filepath.Join(dir, "registry.k8s.io", "hosts.toml"), []byte(hosts), 0o644)
}

// push puts an image of the archive into the registry.
func push(handler http.Handler, archive, ref string) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	img, err := tarball.ImageFromPath(archive, &tag)
	if err != nil {
		return err
	}
	return remote.Write(tag, img, remote.WithTransport(inProcess{handler}))
}

// inProcess hands requests to a handler, without a network.
type inProcess struct{ handler http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	p.handler.ServeHTTP(w, r)
	out := w.Result()
	out.Request = r
	return out, nil
}
