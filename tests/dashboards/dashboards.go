package dashboards

import (
	_ "embed"
	"slices"
	"strings"
)

//go:embed names.txt
var names string

// Families are the names that one of the servers in names.txt serves.
func Families(server string) []string {
	var out []string
	for line := range strings.Lines(names) {
		f := strings.Fields(line)
		if len(f) == 2 && f[0] == server {
			out = append(out, f[1])
		}
	}
	return out
}

// Missing are the families of a server that a page in the Prometheus text format
// has no series of.
func Missing(page, server string) []string {
	served := map[string]bool{}
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, _, _ = strings.Cut(name, "{")
		served[name] = true
		if family, ok := strings.CutSuffix(name, "_bucket"); ok {
			served[family] = true
		}
	}
	return slices.DeleteFunc(Families(server), func(name string) bool { return served[name] })
}
