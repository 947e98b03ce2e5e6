package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/goreleaser/nfpm/v2/files"
)

func TestVersions(t *testing.T) {
	for text, want := range map[string]version{
		"v1.36.3+shoal":       {base: "1.36.3", metadata: "shoal"},
		"1.36.3":              {base: "1.36.3"},
		"v1.37.0-rc.1+shoal":  {base: "1.37.0", prerelease: "rc.1", metadata: "shoal"},
		"v1.36.3-5-gabc1234":  {base: "1.36.3", prerelease: "5.gabc1234"},
		"v1.36.3+shoal-dirty": {base: "1.36.3", metadata: "shoal.dirty"},
	} {
		if got, err := parseVersion(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "v1.36", "1.36.3 ", "v1.36.3+", "v1.36.3~rc1", "v1.36.3\nX: y"} {
		if got, err := parseVersion(text); err == nil {
			t.Errorf("%q is taken as %+v", text, got)
		}
	}
}

func TestTree(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"etc/shoal/agent.yaml", "usr/bin/shoal", "usr/share/zsh/vendor-completions/_shoal"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for format, zsh := range map[string]string{"deb": "vendor-completions", "rpm": "site-functions"} {
		list, err := tree(root, format, time.Unix(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range list {
			got = append(got, c.Type+" "+c.Destination)
		}
		want := []string{files.TypeConfigNoReplace + " /etc/shoal/agent.yaml", "file /usr/bin/shoal",
			"file /usr/share/zsh/" + zsh + "/_shoal"}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", format, got)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(root, "etc/link")); err != nil {
		t.Fatal(err)
	}
	if _, err := tree(root, "deb", time.Unix(1, 0)); err == nil {
		t.Error("a link is packed")
	}
}
