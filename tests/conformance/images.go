package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// image is one of those in upstream's test/utils/image/manifest.go of the
// suite's release. Each has the layers of its base and one with its files.
type image struct {
	ref    string
	base   string // image made before, archive of one, tar of files, none, or "A+B": B on A
	files  []file
	config v1.Config
}

type file struct {
	path, source string
	mode         int64
}

const registry = "registry.k8s.io/e2e-test-images/"

// images lists what the specs run. cache is the cache directory,
// bin that of the product with the packed busybox and nginx.
func images(cache, bin string) []image {
	in := func(name string) string { return filepath.Join(cache, name) }
	src := func(name string) string { return filepath.Join(cache, "src", "test", "images", name) }
	rootfs, busybox, nginx := in("rootfs.tar"), filepath.Join(bin, "test-images", "busybox.tar"), filepath.Join(bin,
		"test-images", "nginx.tar")
	agnhost := []file{
		{"agnhost", in("agnhost"), 0o755},
		{"coredns", in("coredns"), 0o755},
		{"localhost.crt", src("agnhost/porter/localhost.crt"), 0o644},
		{"localhost.key", src("agnhost/porter/localhost.key"), 0o600},
	}
	serve := v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"},
		ExposedPorts: map[string]struct{}{"80/tcp": {}, "8080/tcp": {}, "8081/tcp": {}, "9376/tcp": {}, "5000/tcp": {}}}
	animal := func(name string) image {
		files := []file{{name + ".jpg", src(name + "/html/" + name + ".jpg"), 0o644},
			{"data.json", src(name + "/html/data.json"), 0o644}}
		return image{registry + name + ":1.8", registry + "agnhost:2.63.0", files,
			v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}}}
	}
	web := v1.Config{Cmd: []string{"nginx", "-g", "daemon off;"}, ExposedPorts: map[string]struct{}{"80/tcp": {}}}
	return []image{
		{registry + "agnhost:2.63.0", rootfs + "+" + in(servedFile), agnhost, serve},
		{registry + "agnhost:2.55", registry + "agnhost:2.63.0", nil, serve},
		{registry + "agnhost:2.45", registry + "agnhost:2.63.0", nil, serve}, // of network-policy-api
		animal("kitten"),
		animal("nautilus"),
		{registry + "glibc-dns-testing:2.0.0", rootfs, nil, v1.Config{Cmd: []string{"bash"}}},
		{registry + "busybox:1.37.0-1", rootfs, []file{{"etc/group", rootfs + ".group", 0o644}},
			v1.Config{Cmd: []string{"sh"}}},
		{registry + "ipc-utils:1.4", rootfs, nil, v1.Config{Cmd: []string{"sh"}}},
		{"registry.k8s.io/build-image/distroless-iptables:v0.9.6", rootfs, nil, v1.Config{}},
		{registry + "resource-consumer:1.14", rootfs,
			[]file{{"consumer", in("consumer"), 0o755}, {"consume-cpu", in("consume-cpu"), 0o755}},
			v1.Config{Entrypoint: []string{"/consumer"}, ExposedPorts: map[string]struct{}{"8080/tcp": {}}}},
		{registry + "regression-issue-74839:1.4", "",
			[]file{{"regression-issue-74839", in("regression-issue-74839"), 0o755}},
			v1.Config{Entrypoint: []string{"/regression-issue-74839"}}},
		{registry + "nonroot:1.5", busybox, nil, v1.Config{Cmd: []string{"sh"}, User: "1234"}},
		{registry + "nonewprivs:1.4", busybox, []file{{"usr/local/bin/nnp", in("nnp"), 0o6755}},
			v1.Config{Cmd: []string{"nnp"}}},
		{registry + "nginx:1.15-4", rootfs + "+" + nginx, nil, web}, // with a shell, as upstream's
		{registry + "nginx:1.27-0", rootfs + "+" + nginx, nil, web},
		pauseImage(cache),
		{registry + "sample-apiserver:1.29.2", "", []file{{"sample-apiserver", in("sample-apiserver"), 0o755}},
			v1.Config{Entrypoint: []string{"/sample-apiserver"}}},
		{"registry.k8s.io/etcd:3.6.8-0", "", []file{{"usr/local/bin/etcd", in("etcd"), 0o755}}, v1.Config{}},
	}
}

func pauseImage(cache string) image {
	return image{"registry.k8s.io/pause:3.10.2", "", []file{{"pause", filepath.Join(cache, "pause"), 0o755}},
		v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"}}
}

// wideImages lists what only specs beyond conformance run.
func wideImages(cache string) []image {
	in := func(name string) string { return filepath.Join(cache, name) }
	return []image{
		{"registry.k8s.io/sig-storage/hostpathplugin:v1.17.1", in("rootfs.tar"),
			[]file{{"hostpathplugin", in("hostpathplugin"), 0o755}}, v1.Config{Entrypoint: []string{"/hostpathplugin"}}},
	}
}

// nodeImages lists what only the suite of nodes runs.
func nodeImages(cache string) []image {
	in := func(name string) string { return filepath.Join(cache, name) }
	return []image{
		{registry + "sample-device-plugin:1.7", in("rootfs.tar"),
			[]file{{"sampledeviceplugin", in("sampledeviceplugin"), 0o755}},
			v1.Config{Entrypoint: []string{"/sampledeviceplugin", "-alsologtostderr"}}},
	}
}

// pack writes all images into one archive, in which layers are kept once.
func pack(cache, bin string, o options) (string, error) {
	out, list := filepath.Join(cache, "suite.tar"), images(cache, bin)
	switch {
	case o.node:
		out, list = filepath.Join(cache, "suite-node.tar"), append(list, nodeImages(cache)...)
	case o.storage():
		out, list = filepath.Join(cache, "suite-storage.tar"), append(list, sidecarImages(cache)...)
	case o.labels != "":
		out, list = filepath.Join(cache, "suite-wide.tar"), append(list, wideImages(cache)...)
	}
	current, err := newer(out, "tests/conformance/images.go", "tests/conformance/sidecars.go", "tests/upstream/sidecars.go",
		"tests/conformance/served.go", "tests/conformance/rootfs.sh",
		filepath.Join(bin, "test-images", "busybox.tar"), filepath.Join(bin, "test-images", "nginx.tar"))
	if current || err != nil {
		return out, err
	}
	cmd := exec.Command("tests/conformance/rootfs.sh", filepath.Join(cache, "rootfs.tar"))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("pack the programs of agnhost: %w", err)
	}
	fmt.Println("packing the suite's images")
	if err := packServed(cache); err != nil {
		return "", fmt.Errorf("pack what agnhost's registry serves: %w", err)
	}
	bases := map[string]v1.Image{"": empty.Image}
	byTag := map[name.Tag]v1.Image{}
	for _, i := range list {
		img, err := i.make(bases)
		if err != nil {
			return "", fmt.Errorf("image %s: %w", i.ref, err)
		}
		tag, err := name.NewTag(i.ref)
		if err != nil {
			return "", err
		}
		byTag[tag], bases[i.ref] = img, img
	}
	if err := tarball.MultiWriteToFile(out+".part", byTag); err != nil {
		return "", fmt.Errorf("write images: %w", err)
	}
	return out, os.Rename(out+".part", out)
}

// newer tells whether a file is there and not older than any of others.
func newer(file string, others ...string) (bool, error) {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, o := range others {
		other, err := os.Stat(o)
		if err != nil {
			return false, err
		}
		if other.ModTime().After(info.ModTime()) {
			return false, nil
		}
	}
	return true, nil
}

func (i image) make(bases map[string]v1.Image) (v1.Image, error) {
	img, err := baseImage(bases, i.base)
	if err != nil {
		return nil, err
	}
	// The reference is in the layer, so that no two images are the same one.
	layer, err := fileLayer(i.ref, i.files)
	if err != nil {
		return nil, err
	}
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		return nil, err
	}
	old, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c := old.DeepCopy()
	c.OS, c.Architecture, c.Config = "linux", "amd64", i.config
	c.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return mutate.ConfigFile(img, c)
}

// baseImage reads an image's archive, or makes an image of a tar of files.
func baseImage(bases map[string]v1.Image, file string) (v1.Image, error) {
	if img, ok := bases[file]; ok {
		return img, nil
	}
	if below, above, ok := strings.Cut(file, "+"); ok {
		return stacked(bases, below, above)
	}
	img, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		layer, lerr := tarball.LayerFromFile(file)
		if lerr != nil {
			return nil, lerr
		}
		if img, err = mutate.AppendLayers(empty.Image, layer); err != nil {
			return nil, err
		}
	}
	bases[file] = img
	return img, nil
}

// stacked is one image's files on those of another.
func stacked(bases map[string]v1.Image, below, above string) (v1.Image, error) {
	base, err := baseImage(bases, below)
	if err != nil {
		return nil, err
	}
	top, err := baseImage(bases, above)
	if err != nil {
		return nil, err
	}
	layers, err := top.Layers()
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(base, layers...)
}

func fileLayer(ref string, files []file) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := writeFile(w, ".image", 0o644, []byte(ref)); err != nil {
		return nil, err
	}
	for _, f := range files {
		data, err := os.ReadFile(f.source)
		if err != nil {
			return nil, err
		}
		if err := writeFile(w, f.path, f.mode, data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	})
}

func writeFile(w *tar.Writer, path string, mode int64, data []byte) error {
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: mode, Size: int64(len(data)),
		Format: tar.FormatPAX})
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}
