package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// suiteModule is where crictl and critest come from.
const suiteModule = "sigs.k8s.io/cri-tools@v1.36.0"

// upstreamDigest is the one image that the suite names by its digest. Its
// content cannot be had without the public registry, so that the suite is
// built with the digest of an image that is made here.
const upstreamDigest = "9700f9a2f5bf2c45f2f605a0bd3bce7cf37420ec9d3ed50ac2758413308766bf"

// buildSuite builds what is not there yet: crictl, critest and the one program
// of the images.
func buildSuite(ctx context.Context, bin string) error {
	if err := goCommand(ctx, ".", "build", "-ldflags", "-s -w", "-o", filepath.Join(bin, "nnp"),
		"./tests/critest/nnp"); err != nil {
		return err
	}
	if have(filepath.Join(bin, "crictl")) && have(filepath.Join(bin, "critest")) {
		return nil
	}
	src, err := suiteSource(ctx)
	if err != nil {
		return err
	}
	defer os.RemoveAll(src)
	if err := goCommand(ctx, src, "build", "-ldflags", "-s -w", "-o", filepath.Join(bin, "crictl"),
		"./cmd/crictl"); err != nil {
		return err
	}
	return goCommand(ctx, src, "test", "-c", "-ldflags", "-s -w", "-o", filepath.Join(bin, "critest"), "./cmd/critest")
}

func have(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func goCommand(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, goProgram(), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return nil
}

func goProgram() string {
	if p := os.Getenv("GO"); p != "" {
		return p
	}
	return "go"
}

// suiteSource is a writable copy of the suite that names our image's digest.
func suiteSource(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, goProgram(), "mod", "download", "-json", suiteModule).Output()
	if err != nil {
		return "", fmt.Errorf("download %s: %w", suiteModule, err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return "", fmt.Errorf("download %s: %w", suiteModule, err)
	}
	dir, err := os.MkdirTemp("", "cri-tools-")
	if err != nil {
		return "", err
	}
	if err := os.CopyFS(dir, os.DirFS(module.Dir)); err != nil {
		return "", err
	}
	img, err := smallImage("digest")
	if err != nil {
		return "", err
	}
	digest, err := img.Digest()
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "pkg", "validate", "consts.go")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	changed := strings.Replace(string(text), upstreamDigest, digest.Hex, 1)
	if changed == string(text) {
		return "", fmt.Errorf("%s does not name the digest %s", file, upstreamDigest)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		return "", err
	}
	return dir, os.WriteFile(file, []byte(changed), 0o644)
}
