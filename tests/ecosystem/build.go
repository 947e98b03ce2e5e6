package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/shoal-project/shoal/tests/upstream"
)

// software is what is built from one source.
type software struct {
	name     string
	module   string // name@version on the module proxy, where it is of one
	programs []upstream.Program
	// without are packages that main.go imports for their effect, and that cannot
	// be built: they are left out.
	without []string
	images  []image
}

// image is one that manifests ask for.
type image struct {
	ref string
	// of is the name of one of the tests' images that it is under another name.
	of string
	// packages are Debian's that it consists of, script is run on their files,
	// in their directory.
	packages, script string
	// programs are put beside Debian's files: name=target.
	programs []string
	// program is its only file; where it is and its first arguments are in entrypoint.
	program, entrypoint, user string
}

// make builds what is not in the cache, and returns the archives of all images.
func (s software) make(ctx context.Context, cache string) ([]string, error) {
	out := filepath.Join(cache, "programs")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	if s.module != "" {
		src := filepath.Join(cache, "src", s.name)
		if err := upstream.Source(ctx, s.module, src); err != nil { // the manifests are needed as well
			return nil, err
		}
		if err := leaveOut(filepath.Join(src, "main.go"), s.without); err != nil {
			return nil, err
		}
		if err := upstream.Build(ctx, s.module, src, out, s.programs); err != nil {
			return nil, err
		}
	}
	var archives []string
	for _, i := range s.images {
		archive, err := i.make(ctx, cache)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", i.ref, err)
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

// leaveOut removes imports of packages from a file.
func leaveOut(file string, packages []string) error {
	if packages == nil {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	left := string(text)
	for _, p := range packages {
		left = strings.Replace(left, "\t_ \""+p+"\"\n", "", 1)
	}
	return os.WriteFile(file, []byte(left), 0o644)
}

func (i image) make(ctx context.Context, cache string) (string, error) {
	file := strings.NewReplacer("/", "_", ":", "_").Replace(i.ref) + ".tar"
	archive := filepath.Join(cache, "images", file)
	if upstream.Have(archive) {
		return archive, nil
	}
	fmt.Println("packing", i.ref)
	if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
		return "", err
	}
	part := archive + ".part"
	var err error
	switch {
	case i.of != "":
		err = i.rename(part)
	case i.packages != "":
		err = i.packDebian(ctx, cache, part)
	default:
		target, _, _ := strings.Cut(i.entrypoint, " ")
		err = i.pack(ctx, part, filepath.Join(cache, "programs", i.program)+"="+target)
	}
	if err != nil {
		return "", err
	}
	return archive, os.Rename(part, archive)
}

// rename writes one of the tests' images under another name.
func (i image) rename(archive string) error {
	img, err := tarball.ImageFromPath(filepath.Join("bin", "test-images", i.of+".tar"), nil)
	if err != nil {
		return fmt.Errorf("%w: run `make test-images`", err)
	}
	tag, err := name.NewTag(i.ref)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(archive, tag, img)
}

// packDebian packs the files of Debian's packages.
func (i image) packDebian(ctx context.Context, cache, archive string) error {
	work, err := os.MkdirTemp("", "shoal-ecosystem-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	root := filepath.Join(work, "root")
	err = command(ctx, "", "mmdebstrap", "--quiet", "--variant=extract", "--include="+i.packages, "bookworm", root)
	if err == nil {
		err = command(ctx, root, "sh", "-euc", i.script)
	}
	if err != nil {
		return err
	}
	sources := []string{root + "=/"}
	for _, p := range i.programs {
		sources = append(sources, filepath.Join(cache, "programs", p))
	}
	return i.pack(ctx, archive, sources...)
}

// pack packs files with the project's packer of images.
func (i image) pack(ctx context.Context, archive string, sources ...string) error {
	args := []string{"run", "./hack/image", "-name", i.ref, "-out", archive}
	if i.entrypoint != "" {
		args = append(args, "-entrypoint", i.entrypoint)
	}
	if i.user != "" {
		args = append(args, "-user", i.user)
	}
	return command(ctx, "", upstream.GoProgram(), append(args, sources...)...)
}

func command(ctx context.Context, dir, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, out)
	}
	return nil
}
