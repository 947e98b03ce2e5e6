package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shoal-project/shoal/tests/upstream"
)

var localPath = subject{
	name: "local-path",
	software: []software{{
		name:     "local-path-provisioner",
		module:   "github.com/rancher/local-path-provisioner@v0.0.30",
		programs: []upstream.Program{{Name: "local-path-provisioner", Package: "."}},
		images: []image{
			{ref: "docker.io/rancher/local-path-provisioner:v0.0.30",
				program: "local-path-provisioner", entrypoint: "/usr/bin/local-path-provisioner"},
			{ref: "docker.io/library/busybox:latest", of: "busybox"},
		},
	}},
	run: runLocalPath,
}

// noDocs leaves out of Debian's packages what servers do not need, and makes
// what the packages' scripts would have made.
const noDocs = `rm -rf usr/share/doc usr/share/man usr/share/locale usr/share/perl usr/share/i18n
rm -rf var/cache var/lib/apt var/lib/dpkg
for applet in $(bin/busybox --list); do [ -e bin/$applet ] || ln -s busybox bin/$applet; done
mkdir -p etc tmp data run
chmod 1777 tmp
printf 'root:x:0:0:root:/root:/bin/sh\nserver:x:999:999:server:/data:/bin/sh\n' >etc/passwd
printf 'root:x:0:\nserver:x:999:\n' >etc/group
`

var redis = subject{
	name: "redis",
	software: []software{{name: "redis", images: []image{{
		ref: "docker.io/library/redis:7", packages: "redis-server,busybox", script: noDocs, user: "999",
	}}}},
	needs: []string{"local-path"},
	run: func(r *rig) {
		write, read := []string{"redis-cli", "set", "fish", "shoal"}, []string{"redis-cli", "get", "fish"}
		r.database("redis", write, read, "shoal")
	},
}

var postgres = subject{
	name: "postgres",
	software: []software{{name: "postgres", images: []image{{
		ref: "docker.io/library/postgres:15", packages: "postgresql-15,tzdata,busybox", user: "999",
		// The compiler is loaded only for very long queries.
		script: noDocs + "rm -rf usr/lib/x86_64-linux-gnu/libLLVM* usr/lib/postgresql/15/lib/bitcode usr/lib/llvm*\n" +
			"for p in initdb postgres psql; do ln -sf ../lib/postgresql/15/bin/$p usr/bin/$p; done\n",
	}}}},
	needs: []string{"local-path"},
	run: func(r *rig) {
		psql := func(query string) []string {
			return []string{"psql", "-h", "postgres", "-U", "server", "-Atc", query, "postgres"}
		}
		r.database("postgres", psql("create table fish as select 'shoal' as kind, generate_series(1, 10000) as n"),
			psql("select kind, sum(n) from fish group by kind"), "shoal|50005000")
	},
}

func runLocalPath(r *rig) {
	if !r.installed("local-path-storage", "deployment/local-path-provisioner", func() error {
		text, err := os.ReadFile(filepath.Join(r.source("local-path-provisioner"), "deploy", "local-path-storage.yaml"))
		if err != nil {
			return err
		}
		// Its users choose the directory; this one goes with the cluster.
		manifest := strings.ReplaceAll(string(text), "/opt/local-path-provisioner", filepath.Join(r.work, "local-path"))
		_, err = r.Kubectl(manifest, "apply", "-f", "-")
		return err
	}) {
		return
	}
	r.check("a claim waits for its pod, is bound, and keeps what was written", func() (string, error) {
		if err := r.apply("claim.yaml"); err != nil {
			return "", err
		}
		if _, err := r.do("wait --for=jsonpath={.status.phase}=Succeeded pod/writer --timeout=90s",
			"delete pod/writer")(); err != nil {
			return "", fmt.Errorf("%w\n%s%s", err, r.state("default"), r.state("local-path-storage"))
		}
		if err := r.apply("reader.yaml"); err != nil {
			return "", err
		}
		return r.do("wait --for=jsonpath={.status.phase}=Succeeded pod/reader --timeout=60s", "logs reader")()
	})
	r.check("the volume goes with its claim", func() (string, error) {
		volume, err := r.Kubectl("", "get", "pvc/kept", "-o", "jsonpath=pv/{.spec.volumeName}")
		if err != nil {
			return "", err
		}
		return r.do("delete pod/reader pvc/kept", "wait --for=delete "+volume+" --timeout=60s")()
	})
}

// database installs a StatefulSet of one server, writes, deletes its pod, and
// reads.
func (r *rig) database(name string, write, read []string, want string) {
	if !r.installed(name, "statefulset/"+name, func() error { return r.apply(name + ".yaml") }) {
		return
	}
	exec := func(command []string) (string, error) {
		return r.Kubectl("", append([]string{"-n", name, "exec", name + "-0", "--"}, command...)...)
	}
	r.check("what was written is there after the pod was deleted", func() (string, error) {
		if _, err := exec(write); err != nil {
			return "", err
		}
		if _, err := r.Kubectl("", "-n", name, "delete", "pod", name+"-0"); err != nil {
			return "", err
		}
		if err := r.rollout(name, "statefulset/"+name); err != nil {
			return "", err
		}
		return r.until(time.Minute, func() (string, error) {
			got, err := exec(read)
			if err == nil && strings.TrimSpace(got) != want {
				err = fmt.Errorf("read %q, want %q", got, want)
			}
			return got, err
		})
	})
}
