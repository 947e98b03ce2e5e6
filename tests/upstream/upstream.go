// Package upstream builds upstream's programs from the module proxy, for the
// rigs that run its suites and for the bench that runs it beside the product.
// The product's own module never requires them.
package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Version is the release that everything is compared with. The archive of its
// module has no staging directories: these are modules of their own.
const (
	Version        = "v1.36.3"
	Kubernetes     = "k8s.io/kubernetes@" + Version
	stagingVersion = "v0.36.3"
)

// Program is one to be built in a copy of a module.
type Program struct {
	Name    string // of the file to write
	Package string
	Test    bool   // a test binary
	Tags    string // build tags
	LDFlags string // beside those that leave out symbols
}

// Build builds programs that are not in the directory out yet, in the copy src
// of a module (name@version), which is made when a program is missing.
func Build(ctx context.Context, module, src, out string, programs []Program) error {
	for _, p := range programs {
		file := filepath.Join(out, p.Name)
		if Have(file) {
			continue
		}
		if err := Source(ctx, module, src); err != nil {
			return err
		}
		fmt.Println("building", p.Name)
		if err := p.build(ctx, src, file); err != nil {
			return fmt.Errorf("build %s: %w", p.Name, err)
		}
	}
	return nil
}

func (p Program) build(ctx context.Context, src, file string) error {
	args := []string{"build"}
	if p.Test {
		args = []string{"test", "-c", "-vet=off"}
	}
	args = append(args, "-mod=mod", "-tags", p.Tags,
		"-ldflags", strings.TrimSpace("-s -w "+p.LDFlags), "-o", file, p.Package)
	cmd := exec.CommandContext(ctx, GoProgram(), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = src, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	return cmd.Run()
}

// Have tells whether a file is there.
func Have(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// GoProgram is the go command: GO of the environment, else "go".
func GoProgram() string {
	if p := os.Getenv("GO"); p != "" {
		return p
	}
	return "go"
}

// Source makes a writable copy of a module (name@version) where there is none
// yet. go.mod is written last: it tells a whole copy from a part of one. Where
// it replaces modules by directories, which are no part of a module's archive, it
// requires them instead.
func Source(ctx context.Context, module, to string) error {
	if Have(filepath.Join(to, "go.mod")) {
		return nil
	}
	from, mod, err := download(ctx, module)
	if err != nil {
		return err
	}
	if err := copyTree(from, to); err != nil {
		return err
	}
	text, err := os.ReadFile(mod)
	if err != nil {
		return err
	}
	text = withoutNested(requireStaging(text), func(dir string) bool { return Have(filepath.Join(from, dir, "go.mod")) })
	return os.WriteFile(filepath.Join(to, "go.mod"), text, 0o644)
}

// Unpack makes src of the archive of sources that the module proxy lacks: a
// directory of that name in NAME.tar.xz. archives is the directory of archives.
func Unpack(ctx context.Context, archives, name, src string) error {
	if Have(src) {
		return nil
	}
	archive := filepath.Join(archives, name+".tar.xz")
	if archives == "" || !Have(archive) {
		return fmt.Errorf("the module proxy does not have %s: "+
			"-archives must name a directory with its sources in %s.tar.xz", name, name)
	}
	parent := filepath.Dir(src)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "tar", "-xJf", archive, "-C", parent).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack %s: %w: %s", archive, err, out)
	}
	return nil
}

// download returns the directory of a module in the module cache, and its go.mod,
// which the cache makes for a module that has none.
func download(ctx context.Context, module string) (dir, mod string, err error) {
	cmd := exec.CommandContext(ctx, GoProgram(), "mod", "download", "-json", module)
	cmd.Dir = os.TempDir() // not in a module that may know another version
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("download %s: %w: %s", module, err, out)
	}
	var m struct{ Dir, GoMod string }
	if err := json.Unmarshal(out, &m); err != nil {
		return "", "", fmt.Errorf("download %s: %w", module, err)
	}
	return m.Dir, m.GoMod, nil
}

var (
	replaceBlock   = regexp.MustCompile(`(?ms)^replace \(.*?^\)\n`)
	stagingRequire = regexp.MustCompile(`(?m)^(\s*k8s\.io/[a-z-]+) v0\.0\.0$`)
)

func requireStaging(mod []byte) []byte {
	if !stagingRequire.Match(mod) {
		return mod
	}
	mod = replaceBlock.ReplaceAll(mod, nil)
	return stagingRequire.ReplaceAll(mod, []byte("${1} "+stagingVersion))
}

var byDirectory = regexp.MustCompile(`(?m)^(?:replace )?\s*\S+ => (\./\S+)\n`)

// withoutNested leaves out of go.mod the replacements by directories that are not there.
func withoutNested(mod []byte, have func(dir string) bool) []byte {
	return byDirectory.ReplaceAllFunc(mod, func(line []byte) []byte {
		if have(string(byDirectory.FindSubmatch(line)[1])) {
			return line
		}
		return nil
	})
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		top, _, _ := strings.Cut(rel, "/")
		switch {
		case top == "staging" || top == "vendor":
			return filepath.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		case rel == "go.mod" || rel == "go.work" || rel == "go.work.sum":
			return nil
		}
		return CopyFile(p, filepath.Join(to, rel))
	})
}

// CopyFile copies a file that fits into memory.
func CopyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}
