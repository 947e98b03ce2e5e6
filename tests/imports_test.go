package tests

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/shoal-project/shoal/"

// layers, lowest first. A package imports only packages of lower layers, and
// of its own layer only what is listed in siblings. A path ending in "/..."
// covers the packages below it, where no entry is more exact.
var layers = []struct {
	name     string
	packages []string
}{
	{"leaf", []string{
		"agent/api", "agent/beneath", "agent/cgroup", "agent/checkpoint", "agent/config", "agent/device/ledger", "agent/dirwatch",
		"agent/device/ledger/ledgertest", "agent/device/topology", "agent/dump", "agent/feed", "agent/gossip",
		"agent/fence", "agent/fence/keeper", "agent/firewalld", "agent/gossip/gossiptest",
		"agent/logind", "agent/netns", "agent/oci", "agent/process", "agent/record", "agent/registry", "agent/reverse",
		"agent/host", "agent/image/peer", "agent/jointoken", "agent/logs", "agent/metrics", "agent/plugins",
		"agent/policyfeed", "agent/quota", "agent/gatewaycontrol", "agent/gatewayfeed",
		"agent/selinux",
		"agent/tracing",
		"agent/trust", "agent/upgrade",
		"cni/cidr", "cni/conntrack", "cni/foreign", "cni/hostfirewall", "cni/netconf", "cni/nft", "cni/nft/nfttest",
		"cni/nstest", "cni/podnet", "cni/sctptest",
		"coordinator/auth/abac", "coordinator/auth/follow", "coordinator/auth/identity", "coordinator/auth/podref",
		"coordinator/auth/rbac", "coordinator/auth/token", "coordinator/config", "coordinator/controller",
		"coordinator/joinapi", "coordinator/kubelet", "coordinator/leader", "coordinator/pki", "coordinator/quota",
		"coordinator/registry/amount", "coordinator/registry/kind", "coordinator/registry/podspec",
		"coordinator/registry/fieldrule", "coordinator/registry/gated", "coordinator/scheduler/framework",
		"coordinator/store", "csi", "csi/btrfs", "csi/btrfs/btrfstest", "csi/csitest", "csi/locality", "csi/migration",
		"csi/storagenet",
		"tests/dbustest", "tests/transcript",
	}},
	{"mechanism", []string{
		"agent/gatewayproxy",
		"agent/container", "agent/device/cpu", "agent/device/dra", "agent/device/memory", "agent/device/plugin",
		"agent/hollow", "agent/image", "agent/network", "agent/outside", "agent/podresources", "agent/probe",
		"agent/problem", "agent/qos",
		"agent/runtime", "agent/sandbox", "agent/segment", "agent/serving", "agent/stats", "agent/stream", "agent/volume",
		"cni", "csi/local",
		"coordinator/audit", "coordinator/auth/issuer", "coordinator/auth/mode", "coordinator/auth/node",
		"coordinator/auth/policy", "coordinator/encryption", "coordinator/gossipkeys", "coordinator/joining",
		"coordinator/gateway", "coordinator/gatewaystream",
		"coordinator/members", "coordinator/packages", "coordinator/policystream", "coordinator/registry/allocate",
		"coordinator/registry/connect", "coordinator/registry/scale", "coordinator/rotation", "coordinator/snapshots",
		"coordinator/registry/volumespec", "coordinator/scheduler/extender", "coordinator/scheduler/plugins",
		"coordinator/scheduler/queue",
	}},
	{"decision", []string{
		"agent/announce", "agent/dns", "agent/evict", "agent/gateway", "agent/node", "agent/pod", "agent/pod/launch", "agent/policy",
		"agent/provision", "agent/proxy",
		"agent/server",
		"agent/service", "agent/shutdown", "agent/source", "agent/status", "agent/withdraw",
		"coordinator/admission", "coordinator/auth", "coordinator/controller/...", "coordinator/registry/...",
		"coordinator/scheduler",
	}},
	{"wiring",
		[]string{"agent", "agent/fence/shoal-fence", "agent/gatewayproxy/shoal-gateway", "agent/oci/shoal-hybrid",
			"agent/pause", "agent/shoal", "cni/shoal-cni", "cni/shoal-tunnel", "coordinator", "coordinator/apiserver",
			"csi/local/shoal-csi-local",
			"coordinator/apiserver/...", "coordinator/registry", "hack/...", "tests", "tests/..."}},
}

// siblings are the imports within a layer that the design allows.
var siblings = map[string][]string{
	"agent/api":                    {"agent/trust"},
	"agent/cgroup":                 {"agent/host"},
	"agent/device/topology":        {"agent/metrics"},
	"agent/dump":                   {"agent/beneath"},
	"agent/plugins":                {"agent/dirwatch"},
	"agent/fence":                  {"agent/fence/keeper"},
	"agent/firewalld":              {"cni/cidr"},
	"agent/gatewayfeed":            {"agent/feed"},
	"agent/logs":                   {"agent/beneath"},
	"agent/oci":                    {"agent/process", "agent/selinux"},
	"agent/policyfeed":             {"agent/feed"},
	"agent/registry":               {"agent/process"},
	"agent/selinux":                {"agent/beneath"},
	"agent/network":                {"cni"},
	"agent/quota":                  {"agent/beneath", "csi/btrfs"},
	"cni/hostfirewall":             {"cni/cidr", "cni/nft"},
	"cni/netconf":                  {"cni/podnet"},
	"coordinator/members":          {"coordinator/joining"},
	"coordinator/kubelet":          {"agent/reverse"},
	"agent/runtime":                {"agent/image", "agent/sandbox", "agent/container", "agent/stream"},
	"agent/pod":                    {"agent/pod/launch"},
	"agent/proxy":                  {"agent/service"},
	"agent/gateway":                {"agent/service"},
	"agent/gatewaycontrol":         {"agent/gatewayfeed"},
	"coordinator/gatewaystream":    {"coordinator/gateway"},
	"agent/dns":                    {"agent/service"},
	"agent/withdraw":               {"agent/service"},
	"coordinator/registry/amount":  {"coordinator/registry/fieldrule"},
	"coordinator/registry/kind":    {"agent/process", "coordinator/registry/gated"},
	"coordinator/store":            {"agent/process"},
	"coordinator/registry/podspec": {"coordinator/registry/fieldrule"},
}

// across are the imports between the agent's and the coordinator's trees: what
// both daemons are, and what the operator's command knows of the coordinator's
// files. What pods of manifests and their mirrors may not name is one list.
var across = map[string][]string{
	"coordinator": {"agent/fence", "agent/gatewayfeed", "agent/gossip", "agent/policyfeed", "agent/process",
		"agent/reverse", "agent/trust"},
	"agent/shoal":  {"coordinator/config", "coordinator/joinapi", "coordinator/pki"},
	"agent/source": {"coordinator/auth/podref"},
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
				if strings.HasPrefix(imported, "github.com/google/nftables") && from != "cni/nft" {
					t.Errorf("%s imports %s: nftables are said in cni/nft's words", from, imported)
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
	theirs := layer(to)
	switch {
	case under(from, "agent") && under(to, "coordinator") && !slices.Contains(across[from], to):
		return "of the coordinator, the agent imports only what is listed in across"
	case under(from, "coordinator") && under(to, "agent") && !slices.Contains(across["coordinator"], to):
		return "of the agent, the coordinator imports only " + strings.Join(across["coordinator"], " and ")
	case (under(from, "cni") || under(from, "csi")) && (under(to, "agent") || under(to, "coordinator")):
		return "cni and csi import neither agent nor coordinator"
	case theirs > mine:
		return "imports point down: " + layers[mine].name + " may not import " + layers[theirs].name
	case theirs == mine && layers[mine].name != "wiring" && !slices.Contains(siblings[from], to):
		return "siblings of the layer " + layers[mine].name + " do not import each other"
	}
	return ""
}

func under(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

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

// TestTableIsTrue: an entry without a package, or an allowance that nobody uses,
// would let in tomorrow what nobody decided.
func TestTableIsTrue(t *testing.T) {
	imports := map[string][]string{}
	for _, p := range list(t) {
		from := strings.TrimPrefix(p.ImportPath, module)
		for _, i := range p.Imports {
			imports[from] = append(imports[from], strings.TrimPrefix(i, module))
		}
		if len(p.Imports) == 0 {
			imports[from] = nil
		}
	}
	for _, l := range layers {
		for _, entry := range l.packages {
			prefix, wild := strings.CutSuffix(entry, "/...")
			covers := func(p string) bool { return p == entry || wild && under(p, prefix) && p != prefix }
			if !slices.ContainsFunc(slices.Collect(maps.Keys(imports)), covers) {
				t.Errorf("%s of the layer %s: there is no such package", entry, l.name)
			}
		}
	}
	for _, allowed := range []map[string][]string{siblings, across} {
		for from, list := range allowed {
			for _, to := range list {
				if !uses(imports, from, to) {
					t.Errorf("%s may import %s, and does not", from, to)
				}
			}
		}
	}
}

// uses tells whether a package, or one below it, imports another.
func uses(imports map[string][]string, from, to string) bool {
	for p, list := range imports {
		if under(p, from) && slices.Contains(list, to) {
			return true
		}
	}
	return false
}

// TestShoalLinksNoClient: the command stays resident beside both daemons, so it
// has a small client of its own, and of client-go only a kubeconfig's types.
func TestShoalLinksNoClient(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"agent/shoal").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range strings.Fields(string(out)) {
		if strings.HasPrefix(p, "k8s.io/client-go/") && !strings.HasPrefix(p, "k8s.io/client-go/tools/clientcmd/api") {
			t.Errorf("agent/shoal links %s", p)
		}
	}
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
