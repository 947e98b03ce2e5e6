// Command list prints the families of metrics that the rules and dashboards in
// kube-prometheus's manifests read from a cluster's own parts, a line each, for
// names.txt.
package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

var (
	quoted   = regexp.MustCompile(`"(?:\\.|[^"\\])*"|'[^']*'`)
	matchers = regexp.MustCompile(`\{[^{}]*\}`)
	grouping = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)`)
	word     = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)
	suffix   = regexp.MustCompile(`_(bucket|count|sum)$`)
	// parts are the beginnings of what a cluster's own parts serve.
	parts = regexp.MustCompile(`^(aggregator|apiserver|container|go|kubelet|kubeproxy|kubernetes|leader_election|machine|` +
		`process|prober|rest_client|scheduler|storage_operation|volume_manager|workqueue)_`)
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: list KUBE-PROMETHEUS/manifests")
		os.Exit(2)
	}
	found := map[string]bool{}
	for _, name := range []string{
		"kubernetesControlPlane-prometheusRule.yaml",
		"kubePrometheus-prometheusRule.yaml",
		"grafana-dashboardDefinitions.yaml",
	} {
		if err := read(filepath.Join(os.Args[1], name), found); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		fmt.Println(name)
	}
}

func read(file string, found map[string]bool) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var doc any
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	walk(doc, found)
	return nil
}

// walk looks for expressions; dashboards are JSON in strings of ConfigMaps.
func walk(v any, found map[string]bool) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			walk(e, found)
		}
	case map[string]any:
		for key, e := range v {
			text, isText := e.(string)
			var inner any
			switch {
			case isText && (key == "expr" || key == "query" || key == "definition"):
				scan(text, found)
			case isText && strings.HasSuffix(key, ".json") && json.Unmarshal([]byte(text), &inner) == nil:
				walk(inner, found)
			case !isText:
				walk(e, found)
			}
		}
	}
}

// scan takes the names of metrics in an expression; recorded ones have a colon.
func scan(expr string, found map[string]bool) {
	expr = quoted.ReplaceAllString(expr, `""`)
	expr = grouping.ReplaceAllString(matchers.ReplaceAllString(expr, "{}"), " ")
	for _, name := range word.FindAllString(expr, -1) {
		if parts.MatchString(name) && !strings.Contains(name, ":") {
			found[suffix.ReplaceAllString(name, "")] = true
		}
	}
}
