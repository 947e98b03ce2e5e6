package main

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

// suiteModule is where e2e.test, agnhost and the list of specs come from. Its
// archive has no staging directories: these are modules of their own.
const (
	suiteModule    = "k8s.io/kubernetes@v1.36.3"
	stagingVersion = "v0.36.3"
)

// programs that are built in the copy of upstream's module, by their names in
// the cache directory.
var programs = []struct {
	name string
	args []string
}{
	{"agnhost", []string{"build", "-o", "", "./test/images/agnhost"}},
	{"nnp", []string{"build", "-o", "", "./test/images/nonewprivs"}},
	{"sample-apiserver", []string{"build", "-o", "", "k8s.io/sample-apiserver"}},
	{"etcd", []string{"build", "-o", "", "go.etcd.io/etcd/server/v3"}},
	{"ginkgo", []string{"build", "-o", "", "github.com/onsi/ginkgo/v2/ginkgo"}},
	{"e2e.test", []string{"test", "-c", "-vet=off", "-o", "", "./test/e2e"}},
}

// build makes what is not in the cache directory yet.
func build(ctx context.Context, cache string) error {
	src := filepath.Join(cache, "src")
	if !have(filepath.Join(src, "go.mod")) {
		if err := copySource(ctx, src); err != nil {
			return err
		}
	}
	for _, p := range programs {
		out := filepath.Join(cache, p.name)
		if have(out) {
			continue
		}
		fmt.Println("building", p.name)
		args := []string{p.args[0], "-mod=mod", "-ldflags", "-s -w"}
		for _, a := range p.args[1:] {
			if a == "" {
				a = out
			}
			args = append(args, a)
		}
		cmd := exec.CommandContext(ctx, goProgram(), args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = src, os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build %s: %w", p.name, err)
		}
	}
	return nil
}

func have(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func goProgram() string {
	if p := os.Getenv("GO"); p != "" {
		return p
	}
	return "go"
}

// copySource makes a writable copy of the module that requires the staging
// modules instead of replacing them. go.mod is written last: it tells a whole
// copy from a part of one.
func copySource(ctx context.Context, to string) error {
	out, err := exec.CommandContext(ctx, goProgram(), "mod", "download", "-json", suiteModule).Output()
	if err != nil {
		return fmt.Errorf("download %s: %w", suiteModule, err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return fmt.Errorf("download %s: %w", suiteModule, err)
	}
	if err := copyTree(module.Dir, to); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(module.Dir, "go.mod"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, "go.mod"), requireStaging(text), 0o644)
}

var (
	replaceBlock   = regexp.MustCompile(`(?ms)^replace \(.*?^\)\n`)
	stagingRequire = regexp.MustCompile(`(?m)^(\s*k8s\.io/[a-z-]+) v0\.0\.0$`)
)

func requireStaging(mod []byte) []byte {
	mod = replaceBlock.ReplaceAll(mod, nil)
	return stagingRequire.ReplaceAll(mod, []byte("${1} "+stagingVersion))
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
		return copyFile(p, filepath.Join(to, rel))
	})
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}
