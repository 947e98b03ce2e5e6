package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-project/shoal/tests/upstream"
)

var metricsServer = subject{
	name: "metrics-server",
	software: []software{{
		name:     "metrics-server",
		module:   "sigs.k8s.io/metrics-server@v0.9.0",
		programs: []upstream.Program{{Name: "metrics-server", Package: "./cmd/metrics-server"}},
		images: []image{{
			ref:     "registry.k8s.io/metrics-server/metrics-server:v0.9.0",
			program: "metrics-server", entrypoint: "/metrics-server", user: "65534",
		}},
	}},
	run: runMetricsServer,
}

const metricsAPI = "apiservice/v1beta1.metrics.k8s.io"

func runMetricsServer(r *rig) {
	release := r.source("metrics-server") + "/manifests/overlays/release"
	install := func() error {
		_, err := r.Kubectl("", "apply", "-k", release)
		return err
	}
	r.check("without it the built-in API answers `kubectl top nodes`", r.shows(time.Minute, "top nodes", nodes...))
	const workload = "deployment/metrics-server"
	if !r.installed("kube-system", workload, install) {
		return
	}
	r.check("it replaces the built-in API",
		r.do("wait --for=condition=Available "+metricsAPI+" --timeout=60s", "get "+metricsAPI+" --no-headers"))
	// It verifies the kubelets' certificates: no flag tells it not to.
	r.check("`kubectl top nodes` shows every node", r.shows(time.Minute, "top nodes", nodes...))
	r.check("`kubectl top pods` shows its own pod", r.shows(time.Minute, "top pods -A", "metrics-server-"))
	r.check("a HorizontalPodAutoscaler follows the CPU in use", r.scalesByCPU)
	r.check("while it is down, nobody answers in its place", func() (string, error) {
		if _, err := r.do("-n kube-system scale "+workload+" --replicas=0",
			"wait --for=condition=Available=false "+metricsAPI+" --timeout=90s")(); err != nil {
			return "", err
		}
		if out, err := r.Kubectl("", "top", "nodes"); err == nil {
			return "", fmt.Errorf("kubectl top nodes answers:\n%s", out)
		}
		return "", nil
	})
	r.check("when it is removed, the built-in API answers again", func() (string, error) {
		if _, err := r.Kubectl("", "delete", "-k", release); err != nil {
			return "", err
		}
		return r.shows(time.Minute, "top nodes", nodes...)()
	})
	r.installed("kube-system", workload, install)
}

// scalesByCPU lets pods that compute without end be scaled up.
func (r *rig) scalesByCPU() (string, error) {
	if err := r.apply("load.yaml"); err != nil {
		return "", err
	}
	found, err := r.until(3*time.Minute, func() (string, error) {
		out, err := r.Kubectl("", "-n", "load", "get", "deployment", "load", "-o", "jsonpath={.status.readyReplicas}")
		if err != nil {
			return "", err
		}
		if n, _ := strconv.Atoi(strings.TrimSpace(out)); n < 3 {
			hpa, _ := r.Kubectl("", "-n", "load", "describe", "hpa", "load")
			return "", fmt.Errorf("%s pods are ready\n%s", out, hpa)
		}
		return out + " pods", nil
	})
	if err != nil {
		return "", err
	}
	_, err = r.Kubectl("", "delete", "namespace", "load")
	return found, err
}
