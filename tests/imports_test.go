package tests

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/shoal-project/shoal/"

// layers, lowest first. A package imports only packages of lower layers, and
// of its own layer only what is listed in siblings. A path ending in "/..."
// covers the packages below it.
var layers = []struct {
	name     string
	packages []string
}{
	{"leaf", []string{
		"agent/config", "agent/gossip", "agent/gossip/...", "agent/cgroup", "agent/netns", "agent/listen", "agent/logind", "agent/checkpoint", "agent/record", "agent/oci", "agent/trim", "agent/beneath",
		"coordinator/config", "coordinator/kubelet", "coordinator/leader", "coordinator/store", "coordinator/encryption", "coordinator/pki", "coordinator/controller", "coordinator/registry/kind",
		"coordinator/registry/amount", "coordinator/registry/podspec", "coordinator/quota", "coordinator/auth/identity", "coordinator/auth/podref", "cni/netconf", "cni/nft", "cni/nstest", "datadir",
	}},
	{"mechanism", []string{
		"agent/image", "agent/sandbox", "agent/container", "agent/stream", "agent/runtime", "agent/network", "agent/volume", "agent/hollow", "agent/probe", "agent/device",
		"agent/serving", "agent/stats", "coordinator/registry/scale", "coordinator/audit", "cni",
	}},
	{"decision", []string{
		"agent/source", "agent/pod", "agent/pod/...", "agent/status", "agent/node", "agent/evict", "agent/shutdown", "agent/service", "agent/proxy", "agent/dns", "agent/policy",
		"agent/server", "coordinator/registry/...", "coordinator/auth", "coordinator/auth/...", "coordinator/admission", "coordinator/scheduler",
		"coordinator/scheduler/...", "coordinator/controller/...",
	}},
	{"wiring", []string{"agent", "agent/shoal", "agent/pause", "coordinator", "coordinator/registry", "coordinator/apiserver", "coordinator/apiserver/...", "cni/shoal-cni", "csi/...", "hack/...", "tests/...", "tests"}},
}

// siblings are the imports within a layer that the design allows.
var siblings = map[string][]string{
	"agent/network":  {"cni"},
	"agent/runtime":  {"agent/image", "agent/sandbox", "agent/container", "agent/stream"},
	"agent/status":   {"agent/pod"},
	"agent/evict":    {"agent/pod"},
	"agent/shutdown": {"agent/pod"},
	"agent/server":   {"agent/pod"},
	"agent/proxy":    {"agent/service"},
	"agent/dns":      {"agent/service"},
	// WriteFile
	"coordinator/encryption": {"coordinator/pki"},
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range list(t) {
		from := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(from, "tests") || strings.HasPrefix(from, "hack") {
			continue
		}
		mine := layer(from)
		if mine < 0 {
			t.Errorf("%s is in no layer: add it to the table in imports_test.go", from)
			continue
		}
		for _, imported := range p.Imports {
			to, ours := strings.CutPrefix(imported, module)
			if !ours {
				if strings.HasPrefix(imported, "k8s.io/kubernetes") {
					t.Errorf("%s imports %s, which the product never does", from, imported)
				}
				continue
			}
			if why := refuse(from, to, mine); why != "" {
				t.Errorf("%s imports %s: %s", from, to, why)
			}
		}
	}
}

func refuse(from, to string, mine int) string {
	under := func(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
	switch {
	case under(from, "agent") && under(to, "coordinator"):
		return "the agent never imports the coordinator"
	case under(from, "coordinator") && under(to, "agent") && !under(to, "agent/gossip") && to != "agent/listen" && to != "agent/trim":
		return "of the agent, the coordinator imports only agent/gossip, agent/listen and agent/trim"
	case (under(from, "cni") || under(from, "csi")) && (under(to, "agent") || under(to, "coordinator")):
		return "cni and csi import neither agent nor coordinator"
	case layer(to) > mine:
		return "imports point down: " + layers[mine].name + " may not import " + layers[layer(to)].name
	case layer(to) == mine && mine < len(layers)-1 && !under(to, from) && !under(from, to) && !slices.Contains(siblings[from], to) && !sameFamily(from, to):
		return "siblings of the layer " + layers[mine].name + " do not import each other"
	}
	return ""
}

// sameFamily holds for the parts of one larger package (a group's kinds may use
// the registry's shared parts; auth's parts use each other).
func sameFamily(from, to string) bool {
	for _, family := range []string{"coordinator/registry/", "coordinator/auth/", "coordinator/scheduler/", "agent/pod/", "cni/"} {
		if strings.HasPrefix(from+"/", family) && strings.HasPrefix(to+"/", family) {
			return true
		}
	}
	return false
}

// layer finds the most exact entry for a package; -1 when there is none.
func layer(p string) int {
	best, exact := -1, -1
	for i, l := range layers {
		for _, entry := range l.packages {
			prefix, wild := strings.CutSuffix(entry, "/...")
			if (entry == p || wild && strings.HasPrefix(p, prefix+"/")) && len(prefix) > exact {
				best, exact = i, len(prefix)
			}
		}
	}
	return best
}

func list(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}
