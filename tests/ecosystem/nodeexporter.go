package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/shoal-project/shoal/tests/upstream"
)

var nodeExporter = subject{
	name: "node-exporter",
	software: []software{{
		name:     "node-exporter",
		module:   "github.com/prometheus/node_exporter@v1.12.1",
		programs: []upstream.Program{{Name: "node_exporter", Package: "."}},
		images: []image{{
			ref:     "quay.io/prometheus/node-exporter:v1.12.1",
			program: "node_exporter", entrypoint: "/bin/node_exporter", user: "65534",
		}},
	}},
	run: runNodeExporter,
}

func runNodeExporter(r *rig) {
	if !r.installed("monitoring", "daemonset/node-exporter", func() error { return r.apply("node-exporter.yaml") }) {
		return
	}
	r.check("it tells of every node: memory, file systems, pods' interfaces", func() (string, error) {
		out, err := r.do("-n monitoring get pods -l app.kubernetes.io/name=node-exporter -o name")()
		if err != nil {
			return "", err
		}
		pods := strings.Fields(out)
		if len(pods) != len(nodes) {
			return "", fmt.Errorf("%d pods: %v", len(pods), pods)
		}
		for _, p := range pods {
			path := "/api/v1/namespaces/monitoring/pods/" + strings.TrimPrefix(p, "pod/") + ":9100/proxy/metrics"
			_, err := r.shows(time.Minute, "get --raw "+path,
				"node_memory_MemAvailable_bytes ", "node_filesystem_avail_bytes{", `mountpoint="/"`,
				`node_network_receive_bytes_total{device="eth0"}`,
				`node_scrape_collector_success{collector="netclass"} 1`)()
			if err != nil {
				return "", err
			}
		}
		return "", nil
	})
}
