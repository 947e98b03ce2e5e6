package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/shoal-project/shoal/tests/upstream"
)

var kubeStateMetrics = subject{
	name: "kube-state-metrics",
	software: []software{{
		name:     "kube-state-metrics",
		module:   "k8s.io/kube-state-metrics/v2@v2.19.1",
		programs: []upstream.Program{{Name: "kube-state-metrics", Package: "."}},
		images: []image{{
			ref:        "registry.k8s.io/kube-state-metrics/kube-state-metrics:v2.19.1",
			program:    "kube-state-metrics",
			entrypoint: "/kube-state-metrics --port=8080 --telemetry-port=8081",
			user:       "65534",
		}},
	}},
	run: runKubeStateMetrics,
}

const ksm = "get --raw /api/v1/namespaces/kube-system/services/kube-state-metrics:"

func runKubeStateMetrics(r *rig) {
	if !r.installed("kube-system", "deployment/kube-state-metrics", func() error {
		_, err := r.Kubectl("", "apply", "-k", r.source("kube-state-metrics"))
		return err
	}) {
		return
	}
	r.check("it tells of nodes and of its own Deployment", func() (string, error) {
		words := []string{
			`kube_deployment_status_replicas_available{namespace="kube-system",deployment="kube-state-metrics"} 1`,
			`kube_namespace_status_phase{namespace="default",phase="Active"} 1`,
		}
		for _, n := range nodes {
			words = append(words, `kube_node_status_condition{node="`+n+`",condition="Ready",status="true"} 1`)
		}
		out, err := r.shows(time.Minute, ksm+"http-metrics/proxy/metrics", words...)()
		return fmt.Sprintf("%d lines", strings.Count(out, "\n")), err
	})
	r.check("it can list and watch every kind that it knows", func() (string, error) {
		out, err := r.Kubectl("", strings.Fields(ksm+"telemetry/proxy/metrics")...)
		if err != nil {
			return "", err
		}
		kinds := 0
		for line := range strings.Lines(out) {
			switch {
			case !strings.HasPrefix(line, "kube_state_metrics_list_total{") &&
				!strings.HasPrefix(line, "kube_state_metrics_watch_total{"):
			case strings.Contains(line, `result="error"`) && !strings.HasSuffix(line, "} 0\n"):
				err = errors.Join(err, errors.New(line))
			default:
				kinds++
			}
		}
		if err == nil && kinds == 0 {
			err = fmt.Errorf("no kind is listed:\n%s", out)
		}
		return fmt.Sprintf("%d lists and watches", kinds), err
	})
}
