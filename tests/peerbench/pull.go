package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/tests/bench/measure"
	"github.com/shoal-project/shoal/tests/harness"
)

// The step pull has a node pull an image of pullLayers layers, which has some 500 MB in the
// registry and twice as much on the disk, from a registry on the same machine.
const (
	pullLayers = 8
	pullFiles  = 250 // of a layer
	pullSize   = 512 << 10
)

// big is the registry's content, which all rounds share: it takes long to make.
var big = sync.OnceValues(func() (http.Handler, error) {
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	image, err := tarball.ImageFromPath(filepath.Join("bin", "images", "hello.tar"), nil)
	if err != nil {
		return nil, err
	}
	for i := range pullLayers {
		data, err := someFiles(uint64(i))
		if err != nil {
			return nil, err
		}
		open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
		l, err := tarball.LayerFromOpener(open)
		if err != nil {
			return nil, err
		}
		if image, err = mutate.AppendLayers(image, l); err != nil {
			return nil, err
		}
	}
	ref, err := name.ParseReference("127.0.0.1:5000/big:1", name.Insecure)
	if err != nil {
		return nil, err
	}
	return images, remote.Write(ref, image, remote.WithTransport(harness.InMemory{Handler: images}))
})

// someFiles is a layer of files that compress to half.
func someFiles(seed uint64) ([]byte, error) {
	source := rand.NewChaCha8([32]byte{byte(seed)})
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	body := make([]byte, pullSize)
	dir := &tar.Header{Name: fmt.Sprintf("layer%d/", seed), Typeflag: tar.TypeDir, Mode: 0o755}
	if err := w.WriteHeader(dir); err != nil {
		return nil, err
	}
	for i := range pullFiles {
		if _, err := source.Read(body[:pullSize/2]); err != nil {
			return nil, err
		}
		h := &tar.Header{Name: fmt.Sprintf("layer%d/%d", seed, i), Mode: 0o644, Size: pullSize}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(body); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

// pulled is what both kubelets say; the time is that without waiting for other pulls.
var pulled = regexp.MustCompile(`^Successfully pulled image .* in (\S+) \(`)

// pull measures how long a node takes for a large image, and what CPU.
func (b *bench) pull(ctx context.Context, c *cluster) error {
	images, err := big()
	if err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	var listener net.Listener
	if err := harness.Inside(c.netns, func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:5000")
		return err
	}); err != nil {
		return err
	}
	server := &http.Server{Handler: images}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	before, err := c.used()
	if err != nil {
		return err
	}
	pods := c.client.CoreV1().Pods(metav1.NamespaceDefault)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "big"}, Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: ptr.To(int64(0)),
		Containers:                    []corev1.Container{{Name: "c", Image: "127.0.0.1:5000/big:1"}}}}
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	took, err := b.untilPulled(ctx, c)
	if err != nil {
		return err
	}
	after, err := c.used()
	if err != nil {
		return err
	}
	b.record.cost("image of 500 MB, pulled", "s", took.Seconds())
	b.record.cost("image of 500 MB, pulled: CPU", "ms", measure.Ms(after-before))
	return pods.Delete(ctx, "big", metav1.DeleteOptions{})
}

func (b *bench) untilPulled(ctx context.Context, c *cluster) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		list, err := c.client.CoreV1().Events(metav1.NamespaceDefault).List(ctx,
			metav1.ListOptions{FieldSelector: "involvedObject.name=big"})
		if err != nil {
			return 0, err
		}
		var said []string
		for _, e := range list.Items {
			if m := pulled.FindStringSubmatch(e.Message); m != nil {
				return time.ParseDuration(m[1])
			}
			said = append(said, e.Message)
		}
		if err := sleep(ctx, 250*time.Millisecond); err != nil {
			return 0, fmt.Errorf("the image is not pulled: %w; events: %s", err, strings.Join(said, "; "))
		}
	}
}
