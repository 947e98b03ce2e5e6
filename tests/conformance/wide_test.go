package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const dryRun = `[{"SpecReports":[
{"ContainerHierarchyTexts":["[sig-network] DNS [Slow]","more"],"ContainerHierarchyLabels":[["sig-network"],[]],"LeafNodeType":"It","LeafNodeText":"resolves","State":"passed"},
{"ContainerHierarchyTexts":["[sig-node] Pods"],"ContainerHierarchyLabels":[["sig-node","FeatureGate:B"]],"LeafNodeType":"It","LeafNodeText":"resizes","LeafNodeLabels":["FeatureGate:A"],"State":"passed"},
{"ContainerHierarchyTexts":["[sig-node] Pods"],"LeafNodeType":"It","LeafNodeText":"not chosen","State":"skipped"},
{"LeafNodeType":"SynchronizedBeforeSuite","State":"passed"}]}]`

func TestChosenSpecs(t *testing.T) {
	specs, err := chosenSpecs([]byte(dryRun))
	want := []spec{{"[sig-network] DNS [Slow] more resolves", "[sig-network] DNS"},
		{"[sig-node] Pods resizes", "FeatureGate:A FeatureGate:B"}}
	if err != nil || !slices.Equal(specs, want) {
		t.Errorf("specs %+v, %v", specs, err)
	}
}

func TestLabelFilter(t *testing.T) {
	for labels, want := range map[string]string{
		"": "Conformance", "default": labelSets["default"], "Feature: consistsOf X": "Feature: consistsOf X",
	} {
		if got := (options{labels: labels}).labelFilter(); got != want {
			t.Errorf("labels %q are the filter %q, want %q", labels, got, want)
		}
	}
}

// Each record has its file and its place in the documentation.
func TestWideRecord(t *testing.T) {
	for labels, want := range map[string][2]string{
		"default": {wideResults, beginWide}, "slow": {wideResults, beginWide},
		"Feature: consistsOf X": {wideResults, beginWide},
		"serial":                {serialResults, beginSerial}, "storage": {storageResults, beginStorage},
		"devices": {devicesResults, beginDevices}, "dualstack": {dualStackResults, beginDualStack},
		"loadbalancer": {loadBalancerResults, beginLoadBalancer},
	} {
		if file, begin := (options{labels: labels}).wideRecord(); file != want[0] || begin != want[1] {
			t.Errorf("labels %q are recorded in %s after %q, want %q", labels, file, begin, want)
		}
	}
}

func TestExplain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "causes.txt")
	if err := os.WriteFile(file, []byte("# comment\n\\bSCTP\\b\tno SCTP in this kernel\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	known, err := readCauses(file)
	if err != nil {
		t.Fatal(err)
	}
	ran := record{
		"by SCTP": {state: failed, message: "timed out"},
		"other":   {state: failed, message: "expected\n  0xc00012 " + strings.Repeat("x", 300)},
		"fine":    {state: passed, message: "left of an earlier try"},
		"cloud":   {state: skip, message: "only\tfor gce, see '/home/x/bin/conformance/src/y.go'"},
	}
	if unknown := known.explain(ran); !slices.Equal(unknown, []string{"other"}) {
		t.Errorf("unknown causes %q", unknown)
	}
	want := record{
		"by SCTP": {state: failed, message: "no SCTP in this kernel"},
		"other":   {state: failed, message: "expected 0x… " + strings.Repeat("x", 187) + "…"},
		"fine":    {state: passed},
		"cloud":   {state: skip, message: "only for gce, see 'bin/conformance/src/y.go'"},
	}
	if !maps.Equal(ran, want) {
		t.Errorf("explained %+v", ran)
	}
	record := filepath.Join(t.TempDir(), "wide.txt")
	if err := ran.writeWide(record); err != nil {
		t.Fatal(err)
	}
	if again, err := readWide(record); err != nil || !maps.Equal(again, want) {
		t.Errorf("record %+v, %v", again, err)
	}
	table := wideTable([]spec{{"by SCTP", "net"}, {"fine", "net"}, {"cloud", "apps"}}, ran)
	if !strings.HasSuffix(table, "     0      0      1        0  apps\n     1      1      0        0  net\n"+
		"     1      1      1        0  all\n") {
		t.Errorf("table\n%s", table)
	}
}

// TestTotalsHavePlaces: a run's totals would be lost only after it.
func TestTotalsHavePlaces(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", docsPage))
	if err != nil {
		t.Fatal(err)
	}
	for _, begin := range []string{
		beginTable, beginWide, beginSerial, beginStorage, beginDevices, beginDualStack, beginLoadBalancer,
	} {
		if _, rest, ok := strings.Cut(string(text), begin); !ok || !strings.Contains(rest, endTable) {
			t.Errorf("%s has no place between %q and %q", docsPage, begin, endTable)
		}
	}
}

func TestCausesFile(t *testing.T) {
	if _, err := readCauses("causes.txt"); err != nil {
		t.Error(err)
	}
	bad := filepath.Join(t.TempDir(), "causes.txt")
	for _, line := range []string{"no tab", "(\tnot an expression"} {
		if err := os.WriteFile(bad, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readCauses(bad); err == nil {
			t.Errorf("%q is taken", line)
		}
	}
}

// A name with a container that has no text is that of one spec for ginkgo, too.
func TestExactly(t *testing.T) {
	re := regexp.MustCompile(exactly("[sig-node] Eviction when full  should evict (all)"))
	for text, want := range map[string]bool{
		"[sig-node] Eviction when full should evict (all)":      true,
		"[sig-node] Eviction when full  should evict (all)":     true,
		"[sig-node] Eviction when full should evict (all) pods": false,
		"n Eviction when full should evict (all)":               false,
	} {
		if got := re.MatchString(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
