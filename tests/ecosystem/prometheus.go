package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/tests/upstream"
)

var prometheus = subject{
	name: "prometheus",
	software: []software{{
		name:   "prometheus",
		module: "github.com/prometheus/prometheus@v0.316.0",
		programs: []upstream.Program{{
			Name: "prometheus", Package: "./cmd/prometheus", Tags: "remove_all_sd,enable_kubernetes_sd",
		}},
		images: []image{{
			ref:     "quay.io/prometheus/prometheus:v3.16.0",
			program: "prometheus", entrypoint: "/bin/prometheus", user: "65534",
		}},
	}},
	needs: []string{"kube-state-metrics", "node-exporter"},
	run:   runPrometheus,
}

// scrapeJobs are those jobs of upstream's example that ask the cluster's own
// parts and Services; the others want a prober outside.
var scrapeJobs = []string{
	"kubernetes-apiservers", "kubernetes-nodes", "kubernetes-cadvisor", "kubernetes-service-endpoints",
}

func runPrometheus(r *rig) {
	examples := filepath.Join(r.source("prometheus"), "documentation", "examples")
	config := filepath.Join(r.work, "prometheus.yml")
	if !r.installed("default", "deployment/prometheus", func() error {
		if err := writePrometheusConfig(filepath.Join(examples, "prometheus-kubernetes.yml"), config); err != nil {
			return err
		}
		if _, err := r.do("apply -f "+filepath.Join(examples, "rbac-setup.yml"),
			"create configmap prometheus --from-file="+config+
				" --from-file=tests/ecosystem/testdata/rules.yml")(); err != nil {
			return err
		}
		return r.apply("prometheus.yaml")
	}) {
		return
	}
	all := float64(len(nodes))
	// Queries whose sum has to be what is given, or just above zero.
	for _, q := range []struct {
		what, query string
		want        float64
	}{
		{"it scrapes the API server", `sum(up{job="kubernetes-apiservers"})`, 1},
		{"it scrapes every kubelet", `sum(up{job="kubernetes-nodes"})`, all},
		{"it scrapes every kubelet's cadvisor metrics", `sum(up{job="kubernetes-cadvisor"})`, all},
		{"it scrapes kube-state-metrics' two ports", `sum(up{service="kube-state-metrics"})`, 2},
		{"it scrapes every node exporter", `sum(up{service="node-exporter"})`, all},
		{"containers' CPU is recorded for every pod",
			`count(namespace_pod:container_cpu_usage_seconds:sum_rate) / count(kube_pod_info)`, 1},
		{"containers' memory beside their limits is recorded", `count(namespace_pod:memory_of_limit:ratio)`, 0},
		{"requests of the API server are recorded", `count(verb:apiserver_request:rate)`, 0},
		{"time of pods' starts is recorded", `count(node:kubelet_pod_start_seconds:quantile99)`, 0},
		{"traffic of pods is recorded", `count(namespace:container_network_receive_bytes:rate)`, 0},
	} {
		r.check(q.what, func() (string, error) {
			return r.until(2*time.Minute, func() (string, error) {
				got, err := r.query(q.query)
				if err == nil && (q.want > 0 && got != q.want || got == 0) {
					err = fmt.Errorf("%s is %v", q.query, got)
				}
				return fmt.Sprint(got), err
			})
		})
	}
	r.check("no sample was refused as a duplicate or out of order", func() (string, error) {
		got, err := r.query(`sum({__name__=~"prometheus_target_scrapes_(sample_.*|exceeded_.*)_total"}) or vector(0)`)
		if err == nil && got != 0 {
			err = fmt.Errorf("%v samples", got)
		}
		return "", err
	})
}

// writePrometheusConfig writes upstream's example for Kubernetes with the jobs
// that have something to ask here, and with rules.
func writePrometheusConfig(example, to string) error {
	text, err := os.ReadFile(example)
	if err != nil {
		return err
	}
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		return err
	}
	jobs, _ := config["scrape_configs"].([]any)
	jobs = slices.DeleteFunc(jobs, func(j any) bool {
		name, _ := j.(map[string]any)["job_name"].(string)
		return !slices.Contains(scrapeJobs, name)
	})
	if len(jobs) != len(scrapeJobs) {
		return fmt.Errorf("%s has %d of the jobs %v", example, len(jobs), scrapeJobs)
	}
	for _, j := range jobs {
		// Or else kube-state-metrics' namespaces give way to that of its Service.
		j.(map[string]any)["honor_labels"] = true
	}
	self := map[string]any{"job_name": "prometheus",
		"static_configs": []any{map[string]any{"targets": []any{"localhost:9090"}}}}
	config["scrape_configs"] = append(jobs, self)
	config["global"] = map[string]any{"scrape_interval": "5s", "evaluation_interval": "5s"}
	config["rule_files"] = []any{"rules.yml"}
	if text, err = yaml.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}

// query asks Prometheus, through the API server's proxy, for one number; no
// series is zero.
func (r *rig) query(q string) (float64, error) {
	out, err := r.Kubectl("", "get", "--raw",
		"/api/v1/namespaces/default/services/prometheus:9090/proxy/api/v1/query?query="+url.QueryEscape(q))
	if err != nil {
		return 0, err
	}
	var answer struct {
		Data struct {
			Result []struct{ Value [2]json.RawMessage }
		}
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return 0, fmt.Errorf("%w in %s", err, out)
	}
	if len(answer.Data.Result) == 0 {
		return 0, nil
	}
	var n float64
	_, err = fmt.Sscanf(string(answer.Data.Result[0].Value[1]), `"%g"`, &n)
	return n, err
}
