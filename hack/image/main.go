// Command image packs files into a container image archive (docker-archive
// form) without a daemon and without the network:
//
//	image -name localhost/hello:1 -out hello.tar -entrypoint /hello bin/hello=/hello
//
// Each argument is SOURCE=TARGET; a source folder is packed with all below it.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	var o options
	flag.StringVar(&o.name, "name", "", "reference of the image, with a tag")
	flag.StringVar(&o.out, "out", "", "archive to write")
	flag.StringVar(&o.entrypoint, "entrypoint", "", "entry point, split at blanks")
	flag.StringVar(&o.cmd, "cmd", "", "command, split at blanks")
	flag.StringVar(&o.user, "user", "", "user of the process")
	flag.StringVar(&o.port, "port", "", "exposed port, such as 80/tcp")
	flag.StringVar(&o.env, "env", "", "comma-separated environment")
	flag.StringVar(&o.arch, "arch", runtime.GOARCH, "architecture to declare")
	flag.Parse()
	if err := run(o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

type options struct{ name, out, entrypoint, cmd, user, port, env, arch string }

func run(o options, sources []string) error {
	tag, err := name.NewTag(o.name, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("-name %q: %w; give a name and a tag", o.name, err)
	}
	data, err := pack(sources)
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(data)), nil
	})
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	config := &v1.ConfigFile{
		OS: "linux", Architecture: o.arch, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: words(o.entrypoint), Cmd: words(o.cmd), User: o.user,
			Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
	}
	if o.env != "" {
		config.Config.Env = append(config.Config.Env, strings.Split(o.env, ",")...)
	}
	if o.port != "" {
		config.Config.ExposedPorts = map[string]struct{}{o.port: {}}
	}
	old, err := img.ConfigFile()
	if err != nil {
		return err
	}
	config.RootFS, config.History = old.RootFS, old.History
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return err
	}
	return tarball.WriteToFile(o.out, tag, img)
}

// words splits at blanks; \040 stands for a blank within a word.
func words(s string) []string {
	w := strings.Fields(s)
	for i := range w {
		w[i] = strings.ReplaceAll(w[i], `\040`, " ")
	}
	return w
}

// pack writes the sources into one layer with fixed times, so that the same
// files always make the same image.
func pack(sources []string) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	dirs := map[string]bool{"": true, ".": true, "/": true}
	for _, source := range sources {
		from, to, ok := strings.Cut(source, "=")
		if !ok {
			return nil, fmt.Errorf("%q: want SOURCE=TARGET", source)
		}
		err := filepath.WalkDir(from, func(p string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(from, p)
			if err != nil {
				return err
			}
			return add(w, dirs, p, strings.TrimPrefix(path.Join(to, rel), "/"))
		})
		if err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func add(w *tar.Writer, dirs map[string]bool, file, target string) error {
	info, err := os.Lstat(file)
	if err != nil {
		return err
	}
	var link string
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(file); err != nil {
			return err
		}
	}
	if err := addParents(w, dirs, path.Dir(target)); err != nil {
		return err
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name, h.ModTime, h.Format = target, time.Unix(0, 0), tar.FormatPAX
	if info.IsDir() {
		if dirs[target] {
			return nil
		}
		dirs[target] = true
		h.Name += "/"
	}
	if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

func addParents(w *tar.Writer, dirs map[string]bool, dir string) error {
	if dirs[dir] {
		return nil
	}
	if err := addParents(w, dirs, path.Dir(dir)); err != nil {
		return err
	}
	dirs[dir] = true
	return w.WriteHeader(
		&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
}
