package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

type options struct {
	root, format, version, arch, out string
	seconds                          int64
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", "", "directory of the staged files")
	flag.StringVar(&o.format, "format", "", "deb or rpm")
	flag.StringVar(&o.version, "version", "", "version of the programs: v1.2.3, v1.2.3-rc.1+meta")
	flag.StringVar(&o.arch, "arch", "", "architecture of the programs, as GOARCH")
	flag.Int64Var(&o.seconds, "time", 0, "time of all files, in seconds since 1970")
	flag.StringVar(&o.out, "out", ".", "directory that the package is written to")
	flag.Parse()
	file, err := pack(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "package:", err)
		os.Exit(1)
	}
	fmt.Println(file)
}

// pack writes the package and returns its path.
func pack(o options) (string, error) {
	info, err := describe(o)
	if err != nil {
		return "", err
	}
	packager, err := nfpm.Get(o.format)
	if err != nil {
		return "", fmt.Errorf("-format: %w", err)
	}
	file := filepath.Join(o.out, packager.ConventionalFileName(info))
	w, err := os.Create(file)
	if err != nil {
		return "", err
	}
	if err := errors.Join(packager.Package(info, w), w.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file))
	}
	return file, nil
}

// describe is the package without its format.
func describe(o options) (*nfpm.Info, error) {
	v, err := parseVersion(o.version)
	if err != nil {
		return nil, err
	}
	made := time.Unix(o.seconds, 0).UTC()
	contents, err := tree(o.root, o.format, made)
	if err != nil {
		return nil, err
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name:            "shoal",
		Arch:            o.arch,
		Platform:        "linux",
		Version:         v.base,
		Prerelease:      v.prerelease,
		VersionMetadata: v.metadata,
		VersionSchema:   "none", // it is in its parts already
		Release:         "1",
		Section:         "admin",
		Priority:        "optional",
		Maintainer:      "The Shoal authors <maintainers@shoal-project.invalid>",
		Vendor:          "Shoal",
		Homepage:        "https://github.com/shoal-project/shoal",
		License:         "Apache-2.0",
		Description:     description,
		MTime:           made,
		DisableGlobbing: true,
	})
	info.Contents = contents
	info.Scripts = nfpm.Scripts{PostInstall: "postinst.sh", PreRemove: "prerm.sh", PostRemove: "postrm.sh"}
	needs, ok := needed[o.format]
	if !ok {
		return nil, fmt.Errorf("-format %q: use deb or rpm", o.format)
	}
	info.Depends, info.Recommends, info.Suggests = needs.depends, needs.recommends, needs.suggests
	info.RPM.Summary = "Kubernetes-compatible cluster system of agents and a thin coordinator"
	info.RPM.Compression = "zstd"
	info.RPM.BuildHost = "localhost" // the same package wherever it is built
	return info, nil
}

const description = `Kubernetes-compatible cluster system of agents and a thin coordinator
Agents on every machine run pods, sense each other by gossip and look after
themselves; one coordinator holds the API, the schedule and the controllers.
On the first machine: systemctl enable --now shoal-coordinator shoal-agent`

// needs are names of other packages.
type needs struct{ depends, recommends, suggests []string }

// needed by format. What makes and mends file systems is for volumes; certificates
// are for registries; nft shows an administrator what the agent wrote.
var needed = map[string]needs{
	"deb": {
		depends:    []string{"systemd", "conmon", "crun | runc", "mount"},
		recommends: []string{"ca-certificates", "e2fsprogs", "xfsprogs", "nftables", "apparmor"},
		suggests:   []string{"nfs-common", "btrfs-progs", "bash-completion"},
	},
	"rpm": {
		depends:    []string{"systemd", "conmon", "(crun or runc)", "util-linux", "shadow-utils"},
		recommends: []string{"ca-certificates", "e2fsprogs", "xfsprogs", "nftables"},
		suggests:   []string{"nfs-utils", "btrfs-progs", "bash-completion"},
	},
}
