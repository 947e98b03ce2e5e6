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
	name   string
	module string // name@version on the module proxy, where it is of one
	// pins are requirements of its go.mod (path@version) that stand for others.
	pins []string
	// archive is the name of the archive of its sources, where the proxy lacks a
	// part of them. Its programs are modules of their own.
	archive string
	// replaced are modules that the proxy lacks: path=archive.
	replaced []string
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
// archives is the directory of source archives.
func (s software) make(ctx context.Context, cache, archives string) ([]string, error) {
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
		if err := pin(filepath.Join(src, "go.mod"), s.pins); err != nil {
			return nil, err
		}
		if err := upstream.Build(ctx, s.module, src, out, s.programs); err != nil {
			return nil, err
		}
	}
	if s.archive != "" {
		if err := s.buildArchived(ctx, cache, archives, out); err != nil {
			return nil, err
		}
	}
	var made []string
	for _, i := range s.images {
		archive, err := i.make(ctx, cache)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", i.ref, err)
		}
		made = append(made, archive)
	}
	return made, nil
}

// buildArchived builds the programs that are modules of their own in an archive.
func (s software) buildArchived(ctx context.Context, cache, archives, out string) error {
	for _, name := range s.archives() {
		if err := upstream.Unpack(ctx, archives, name, filepath.Join(cache, "src", name)); err != nil {
			return err
		}
	}
	for _, p := range s.programs {
		dir := filepath.Join(cache, "src", s.archive, p.Package)
		p.Package = "."
		if err := replaceModules(filepath.Join(dir, "go.mod"), filepath.Join(cache, "src"), s.replaced); err != nil {
			return err
		}
		if err := upstream.Build(ctx, s.archive, dir, out, []upstream.Program{p}); err != nil {
			return err
		}
	}
	return nil
}

// archives are the names of the archives of sources that it is built of.
func (s software) archives() []string {
	var names []string
	if s.archive != "" {
		names = append(names, s.archive)
	}
	for _, r := range s.replaced {
		_, name, _ := strings.Cut(r, "=")
		names = append(names, name)
	}
	return names
}

// replaceModules makes a go.mod take modules (path=directory) from directories in src.
func replaceModules(file, src string, modules []string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	left := string(text)
	for _, m := range modules {
		path, dir, _ := strings.Cut(m, "=")
		if line := "replace " + path + " => " + filepath.Join(src, dir) + "\n"; !strings.Contains(left, line) {
			left += line
		}
	}
	return os.WriteFile(file, []byte(left), 0o644)
}

// pin changes versions that a go.mod requires.
func pin(file string, modules []string) error {
	if modules == nil {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	lines := strings.Split(string(text), "\n")
	for i, l := range lines {
		for _, m := range modules {
			path, version, _ := strings.Cut(m, "@")
			if strings.HasPrefix(l, "\t"+path+" ") {
				lines[i] = "\t" + path + " " + version
			}
		}
	}
	return os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644)
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
