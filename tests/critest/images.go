package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// serveImages makes all images that the suite asks for and serves them. The
// agent reaches them under their public names by a mirror for all registries,
// which the directory certs.d in dir declares.
func serveImages(bin, dir string) (*httptest.Server, error) {
	all, err := suiteImages(bin)
	if err != nil {
		return nil, fmt.Errorf("make images: %w", err)
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	err = push(server.URL, all)
	if err == nil {
		err = writeMirror(filepath.Join(dir, "certs.d"), server.URL)
	}
	if err != nil {
		server.Close()
		return nil, err
	}
	return server, nil
}

func push(server string, all map[string]v1.Image) error {
	for n, img := range all {
		repository, tag, _ := strings.Cut(n, ":")
		if err := pushImage(server+"/v2/"+repository, tag, img); err != nil {
			return fmt.Errorf("push %s: %w", n, err)
		}
	}
	return nil
}

// pushImage speaks the registry's protocol itself: the library's client drags
// in Docker's configuration.
func pushImage(base, tag string, img v1.Image) error {
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	config, err := partial.ConfigLayer(img)
	if err != nil {
		return err
	}
	for _, l := range append(layers, config) {
		digest, err := l.Digest()
		if err != nil {
			return err
		}
		body, err := l.Compressed()
		if err != nil {
			return err
		}
		if err := send(http.MethodPost, base+"/blobs/uploads/?digest="+digest.String(),
			"application/octet-stream", body); err != nil {
			return err
		}
	}
	manifest, err := img.RawManifest()
	if err != nil {
		return err
	}
	kind, err := img.MediaType()
	if err != nil {
		return err
	}
	return send(http.MethodPut, base+"/manifests/"+tag, string(kind), bytes.NewReader(manifest))
}

func send(method, address, kind string, body io.Reader) error {
	req, err := http.NewRequest(method, address, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("%s %s: %s", method, address, resp.Status)
	}
	return nil
}

func writeMirror(dir, mirror string) error {
	dir = filepath.Join(dir, "_default")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", mirror)
	return os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644)
}

// suiteImages are the images by the names that they have in any registry, made
// of Debian's busybox and nginx.
func suiteImages(bin string) (map[string]v1.Image, error) {
	busybox, err := tarball.ImageFromPath(filepath.Join(bin, "test-images", "busybox.tar"), nil)
	if err != nil {
		return nil, err
	}
	nginx, err := tarball.ImageFromPath(filepath.Join(bin, "test-images", "nginx.tar"), nil)
	if err != nil {
		return nil, err
	}
	if busybox, err = complete(busybox); err != nil {
		return nil, err
	}
	all := map[string]v1.Image{"e2e-test-images/busybox:1.29-2": busybox}
	for _, add := range []func(map[string]v1.Image, v1.Image, v1.Image) error{addServers, addUsers, addSmall} {
		if err := add(all, busybox, nginx); err != nil {
			return nil, err
		}
	}
	program, err := os.ReadFile(filepath.Join(bin, "nnp"))
	if err != nil {
		return nil, err
	}
	return all, addNNP(all, busybox, program)
}

// addServers adds web servers. nginx serves for httpd too, which the suite
// only asks for its page and for its name in the log.
func addServers(all map[string]v1.Image, busybox, nginx v1.Image) error {
	config, err := nginx.ConfigFile()
	if err != nil {
		return err
	}
	layers, err := nginx.Layers()
	if err != nil {
		return err
	}
	for n, port := range map[string]int{
		"e2e-test-images/nginx:1.14-2": 80, "e2e-test-images/httpd:2.4.39-4": 80,
		"k8s-staging-cri-tools/hostnet-nginx-amd64:latest": 12003,
		"k8s-staging-cri-tools/hostnet-nginx-arm64:latest": 12003,
	} {
		conf, err := files(file{"/etc/nginx/nginx.conf", 0o644, fmt.Appendf(nil, nginxConf, port)})
		if err != nil {
			return err
		}
		img, err := mutate.AppendLayers(busybox, append(slices.Clone(layers), conf)...)
		if err != nil {
			return err
		}
		c := v1.Config{Cmd: []string{"nginx", "-g", "daemon off;"}, Env: config.Config.Env}
		if n == "e2e-test-images/httpd:2.4.39-4" {
			c.Cmd = []string{"sh", "-c", "echo in place of httpd: nginx; exec nginx -g 'daemon off;'"}
		}
		if all[n], err = mutate.Config(img, c); err != nil {
			return err
		}
	}
	return nil
}

const nginxConf = `user www-data;
worker_processes 1;
error_log /dev/stderr;
pid /var/run/nginx.pid;
events { worker_connections 256; }
http {
	access_log /dev/stdout;
	server { listen %d default_server; root /var/www/html; }
}
`

// addUsers adds images whose configurations name users.
func addUsers(all map[string]v1.Image, busybox, _ v1.Image) error {
	accounts, err := files(
		file{"/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/false\ndefault-user:x:1000:1000::/home:/bin/sh\n")},
		file{"/etc/group", 0o644, []byte("root:x:0:\nwww-data:x:33:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n")},
	)
	if err != nil {
		return err
	}
	base, err := mutate.AppendLayers(busybox, accounts)
	if err != nil {
		return err
	}
	for n, user := range map[string]string{
		"user-uid": "1002", "user-username": "www-data", "user-uid-group": "1003:1004",
		"user-username-group": "www-data:1004", "predefined-group": "1000",
	} {
		if all["k8s-staging-cri-tools/test-image-"+n+":latest"], err = withUser(base, user); err != nil {
			return err
		}
	}
	return nil
}

func withUser(img v1.Image, user string) (v1.Image, error) {
	old, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c := *old.Config.DeepCopy()
	c.User = user
	return mutate.Config(img, c)
}

// addNNP adds the program that tells whether no_new_privs is set.
func addNNP(all map[string]v1.Image, busybox v1.Image, program []byte) error {
	layer, err := files(file{"/nnp", 0o4755, program})
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(busybox, layer)
	if err != nil {
		return err
	}
	all["e2e-test-images/nonewprivs:1.3"], err = mutate.Config(img, v1.Config{Entrypoint: []string{"/nnp"}})
	return err
}

// addSmall adds images that are only pulled, listed and removed.
func addSmall(all map[string]v1.Image, busybox, _ v1.Image) error {
	for n, content := range map[string]string{
		"test-image-latest:latest": "latest", "test-image-tag:test": "test", "test-image-tag:all": "all",
		"test-image-1:latest": "1", "test-image-2:latest": "2", "test-image-3:latest": "3",
		"test-image-tags:1": "same", "test-image-tags:2": "same", "test-image-tags:3": "same",
	} {
		img, err := variant(busybox, content)
		if err != nil {
			return err
		}
		all["k8s-staging-cri-tools/"+n] = img
	}
	pause, err := variant(busybox, "pause")
	if err != nil {
		return err
	}
	digest, err := smallImage("digest")
	if err != nil {
		return err
	}
	all["pause:3.9"], all["k8s-staging-cri-tools/test-image-digest:latest"] = pause, digest
	return nil
}

// variant is img with one more file.
func variant(img v1.Image, content string) (v1.Image, error) {
	layer, err := files(file{"/" + content, 0o644, []byte(content)})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(img, layer)
}

// Programs that Debian's busybox lacks.
const (
	pgrep = `#!/bin/sh
for p in /proc/[0-9]*; do
	read -r name <$p/comm && [ "$name" = "$1" ] && echo ${p#/proc/}
done 2>/dev/null
`
	ipcs = `#!/bin/sh
exec cat /proc/sysvipc/shm
`
)

// complete is Debian's busybox as the suite expects it: with two more programs,
// and its names as hard links, so that one of them can be masked.
func complete(busybox v1.Image) (v1.Image, error) {
	flat := mutate.Extract(busybox)
	defer flat.Close()
	var buf bytes.Buffer
	var links []*tar.Header
	in, out := tar.NewReader(flat), tar.NewWriter(&buf)
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeSymlink && path.Dir(h.Name) == "bin" && h.Linkname == "busybox" {
			h.Typeflag, h.Linkname = tar.TypeLink, "bin/busybox"
			links = append(links, h) // after what they link to
			continue
		}
		if err := out.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.Copy(out, in); err != nil {
			return nil, err
		}
	}
	for _, h := range links {
		if err := out.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	})
	if err != nil {
		return nil, err
	}
	more, err := files(file{"/bin/pgrep", 0o755, []byte(pgrep)}, file{"/bin/ipcs", 0o755, []byte(ipcs)})
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer, more)
	if err != nil {
		return nil, err
	}
	old, err := busybox.ConfigFile()
	if err != nil {
		return nil, err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Config = old.OS, old.Architecture, old.Config
	return mutate.ConfigFile(img, c)
}

// smallImage holds one file and is the same in each run.
func smallImage(content string) (v1.Image, error) {
	layer, err := files(file{"/" + content, 0o644, []byte(content)})
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", "amd64"
	c.Config.Cmd = []string{"/" + content}
	return mutate.ConfigFile(img, c)
}

type file struct {
	path string
	mode int64
	data []byte
}

// files is a layer of them.
func files(list ...file) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range list {
		if err := w.WriteHeader(
			&tar.Header{Typeflag: tar.TypeReg, Name: path.Clean(f.path)[1:], Mode: f.mode, Size: int64(len(f.data)),
				Format: tar.FormatPAX}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
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
