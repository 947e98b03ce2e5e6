package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/tests/upstream"
)

const (
	chartsModule    = "github.com/prometheus-community/helm-charts@v0.0.0-20260828105119-ed5d7d9b5933"
	operatorVersion = "v0.93.1" // the chart's
)

// prometheusStack is kube-prometheus: the operator, what it scrapes, and the rules
// and alerts for Kubernetes.
var prometheusStack = subject{
	name: "kube-prometheus-stack",
	software: []software{
		{name: "helm-charts", module: chartsModule},
		{
			name:   "prometheus-operator",
			module: "github.com/prometheus-operator/prometheus-operator@" + operatorVersion,
			programs: []upstream.Program{
				{Name: "prometheus-operator", Package: "./cmd/operator"},
				{Name: "prometheus-config-reloader", Package: "./cmd/prometheus-config-reloader"},
			},
			images: []image{operatorImage("operator"), operatorImage("config-reloader")},
		},
	},
	needs: []string{"prometheus"}, // whose images it runs
	run:   runPrometheusStack,
}

func operatorImage(part string) image {
	return image{ref: "quay.io/prometheus-operator/prometheus-" + part + ":" + operatorVersion,
		program: "prometheus-" + part, entrypoint: "/bin/prometheus-" + part, user: "65534"}
}

// stackAPI is the API of the Prometheus that the operator runs.
const stackAPI = "/api/v1/namespaces/stack/services/kps-prometheus:9090/proxy/api/v1/"

func runPrometheusStack(r *rig) {
	installed := r.check("its chart is installed, and its operator makes a Prometheus", func() (string, error) {
		chart := filepath.Join(r.work, "kube-prometheus-stack")
		if err := writeStackChart(filepath.Join(r.source("helm-charts"), "charts"), chart); err != nil {
			return "", err
		}
		if _, err := r.helm("install", "kps", chart, "-n", "stack", "--create-namespace",
			"-f", "tests/ecosystem/testdata/kube-prometheus-stack.yaml", "--wait", "--timeout=150s"); err != nil {
			return "", fmt.Errorf("%w\n%s", err, r.state("stack"))
		}
		if _, err := r.until(time.Minute, r.do("-n stack get statefulset prometheus-kps-prometheus")); err != nil {
			return "", fmt.Errorf("%w\n%s", err, r.state("stack"))
		}
		return "", r.rollout("stack", "statefulset/prometheus-kps-prometheus")
	})
	if !installed {
		return
	}
	r.check("all that it finds to scrape answers", func() (string, error) {
		return r.until(2*time.Minute, r.stackTargets)
	})
	r.check("its rules for Kubernetes have what they record", func() (string, error) {
		return r.until(3*time.Minute, r.stackRules)
	})
	r.check("no alert fires but the one that always does", func() (string, error) {
		return r.until(2*time.Minute, r.stackAlerts)
	})
}

// writeStackChart puts the chart together with those it depends on that are in the
// same module; Grafana's and that for Windows are not.
func writeStackChart(charts, to string) error {
	if err := os.CopyFS(to, os.DirFS(filepath.Join(charts, "kube-prometheus-stack"))); err != nil {
		return err
	}
	inside := []string{"kube-state-metrics", "prometheus-node-exporter"}
	for _, name := range inside {
		if err := os.CopyFS(filepath.Join(to, "charts", name), os.DirFS(filepath.Join(charts, name))); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(filepath.Join(to, "Chart.yaml"))
	if err != nil {
		return err
	}
	var meta map[string]any
	if err := yaml.Unmarshal(text, &meta); err != nil {
		return err
	}
	all, _ := meta["dependencies"].([]any)
	meta["dependencies"] = slices.DeleteFunc(all, func(d any) bool {
		name, _ := d.(map[string]any)["name"].(string)
		return name != "crds" && !slices.Contains(inside, name)
	})
	if text, err = yaml.Marshal(meta); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, "Chart.yaml"), text, 0o644)
}

// stack asks the Prometheus of the stack.
func (r *rig) stack(path string, data any) error {
	out, err := r.Kubectl("", "get", "--raw", stackAPI+path)
	if err != nil {
		return err
	}
	answer := struct{ Data any }{data}
	return json.Unmarshal([]byte(out), &answer)
}

// stackJobs are what the chart scrapes here.
var stackJobs = []string{"apiserver", "coredns", "kube-state-metrics", "kubelet", "kps-operator", "kps-prometheus",
	"node-exporter"}

func (r *rig) stackTargets() (string, error) {
	var found struct {
		ActiveTargets []struct {
			Labels            map[string]string
			ScrapeURL, Health string
			LastError         string
		}
	}
	if err := r.stack("targets?state=active", &found); err != nil {
		return "", err
	}
	seen := map[string]int{}
	for _, t := range found.ActiveTargets {
		if t.Health != "up" {
			return "", fmt.Errorf("%s %s: %s %s", t.Labels["job"], t.ScrapeURL, t.Health, t.LastError)
		}
		seen[t.Labels["job"]]++
	}
	for _, job := range stackJobs {
		if seen[job] == 0 {
			return "", fmt.Errorf("%s is not scraped, of %v", job, seen)
		}
	}
	if want := 3 * len(nodes); seen["kubelet"] < want { // its metrics, cadvisor's, those of probes
		return "", fmt.Errorf("%d targets of kubelets, want %d", seen["kubelet"], want)
	}
	return fmt.Sprint(seen), nil
}

// stackNothing are recording rules that have nothing to record on this cluster.
var stackNothing = map[string]string{}

type stackRule struct {
	Name, Type, Health, LastError, State string
	Query                                string
}

func (r *rig) stackGroups() ([]stackRule, error) {
	var found struct {
		Groups []struct{ Rules []stackRule }
	}
	if err := r.stack("rules", &found); err != nil {
		return nil, err
	}
	var all []stackRule
	for _, g := range found.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		return nil, errors.New("there are no rules")
	}
	return all, nil
}

// stackRules wants each rule to be evaluated without an error, and each that
// records to have recorded something.
func (r *rig) stackRules() (string, error) {
	rules, err := r.stackGroups()
	if err != nil {
		return "", err
	}
	var names []string
	if err := r.stack("label/__name__/values", &names); err != nil {
		return "", err
	}
	recorded := map[string]bool{}
	for _, rule := range rules {
		if rule.Health != "ok" {
			return "", fmt.Errorf("rule %s is %s: %s", rule.Name, rule.Health, rule.LastError)
		}
		if rule.Type == "recording" {
			recorded[rule.Name] = slices.Contains(names, rule.Name)
		}
	}
	var lacks []string
	for name, has := range recorded {
		if _, nothing := stackNothing[name]; !has && !nothing {
			lacks = append(lacks, name)
		}
	}
	if slices.Sort(lacks); lacks != nil {
		return "", fmt.Errorf("%d of %d record nothing:\n%s", len(lacks), len(recorded), strings.Join(lacks, "\n"))
	}
	return fmt.Sprintf("%d rules, %d series of rules", len(rules), len(recorded)), nil
}

// stackAlerts wants no alert to fire, or to be about to, but Watchdog.
func (r *rig) stackAlerts() (string, error) {
	rules, err := r.stackGroups()
	if err != nil {
		return "", err
	}
	watched, fires := false, []string{}
	for _, rule := range rules {
		switch {
		case rule.Type != "alerting" || rule.State == "inactive":
		case rule.Name == "Watchdog":
			watched = rule.State == "firing"
		default:
			fires = append(fires, rule.Name+" is "+rule.State)
		}
	}
	if !watched {
		fires = append(fires, "Watchdog does not fire")
	}
	if len(fires) > 0 {
		return "", errors.New(strings.Join(fires, "\n"))
	}
	return "", nil
}
