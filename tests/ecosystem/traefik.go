package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shoal-project/shoal/tests/harness"
	"github.com/shoal-project/shoal/tests/upstream"
)

// Of 3.7 the module proxy lacks a package.
const traefikVersion = "v3.6.12"

var traefik = subject{
	name: "traefik",
	software: []software{
		{
			name:     "traefik",
			module:   "github.com/traefik/traefik/v3@" + traefikVersion,
			programs: []upstream.Program{{Name: "traefik", Package: "./cmd/traefik"}},
			images: []image{{ref: "docker.io/library/traefik:" + traefikVersion, program: "traefik",
				entrypoint: "/usr/local/bin/traefik"}},
		},
		{name: "traefik-helm-chart", module: "github.com/traefik/traefik-helm-chart@v41.6.0+incompatible"},
	},
	run: runTraefik,
}

func runTraefik(r *rig) {
	installed := r.check("its chart is installed", func() (string, error) {
		out, err := r.helm("install", "traefik", filepath.Join(r.source("traefik-helm-chart"), "traefik"),
			"-n", "traefik", "--create-namespace", "--set", "image.tag="+traefikVersion,
			"--set", "service.spec.type=NodePort",
			"--set", "providers.kubernetesIngress.publishedService.enabled=false",
			"--set", "additionalArguments={--providers.kubernetesingress.ingressendpoint.ip=192.0.2.1}",
			"--wait", "--timeout=120s")
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, r.state("traefik"))
		}
		return strings.SplitN(out, "\n", 2)[0], err
	})
	if !installed {
		return
	}
	r.check("an Ingress and an IngressRoute lead to a Deployment's pods", func() (string, error) {
		if err := r.apply("traefik.yaml"); err != nil {
			return "", err
		}
		if err := r.rollout("shop", "deployment/shop"); err != nil {
			return "", err
		}
		port, err := r.do(`-n traefik get service traefik -o jsonpath={.spec.ports[?(@.name=="web")].nodePort}`)()
		if err != nil {
			return "", err
		}
		url := "http://" + r.Address + ":" + port
		for _, get := range []struct{ host, path string }{{"ingress.example", "/"}, {"route.example", "/shop/"}} {
			if _, err := r.until(time.Minute, func() (string, error) {
				return r.page(url+get.path, get.host, "nginx")
			}); err != nil {
				return "", err
			}
		}
		_, err = r.page(url+"/", "other.example", "nginx")
		if err == nil {
			return "", fmt.Errorf("a host without a rule is answered")
		}
		return url, nil
	})
	r.check("it writes the Ingress's address", r.shows(time.Minute, "-n shop get ingress shop", "192.0.2.1"))
	r.check("an Ingress that is deleted leads nowhere", func() (string, error) {
		port, err := r.do("-n shop delete ingress shop",
			`-n traefik get service traefik -o jsonpath={.spec.ports[?(@.name=="web")].nodePort}`)()
		if err != nil {
			return "", err
		}
		return r.until(time.Minute, func() (string, error) {
			if page, err := r.page("http://"+r.Address+":"+port+"/", "ingress.example", ""); err == nil {
				return "", fmt.Errorf("it answers:\n%s", page)
			}
			return "", nil
		})
	})
}

// page gets a page of a host from the first machine; what has another status than
// 200, or lacks the word, is an error.
func (r *rig) page(url, host, word string) (string, error) {
	cmd := harness.Command(r.NetNS, "curl", "-sSf", "--max-time", "10", "-H", "Host: "+host, url)
	cmd.Env = append(os.Environ(), "http_proxy=", "HTTP_PROXY=")
	out, err := cmd.CombinedOutput()
	if err == nil && !strings.Contains(string(out), word) {
		err = fmt.Errorf("no %q in it", word)
	}
	if err != nil {
		return "", fmt.Errorf("%s of %s: %w\n%s", url, host, err, out)
	}
	return string(out), nil
}
