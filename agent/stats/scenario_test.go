package stats

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/tests/transcript"
)

// measured is a runtime that tells what a scenario's file says.
type measured struct {
	pods []*criv1.PodSandboxStats
	err  error
}

func (r *measured) ListPodSandboxStats(context.Context, *criv1.PodSandboxStatsFilter) ([]*criv1.PodSandboxStats, error) {
	return r.pods, r.err
}

func (r *measured) ListPodSandbox(_ context.Context, f *criv1.PodSandboxFilter) (list []*criv1.PodSandbox, err error) {
	if f.GetState().GetState() != criv1.PodSandboxState_SANDBOX_READY {
		return nil, errors.New("asked for more than runs")
	}
	for _, p := range r.pods {
		list = append(list, &criv1.PodSandbox{Id: p.GetAttributes().GetId()})
	}
	return list, r.err
}

func (r *measured) ListContainers(_ context.Context, f *criv1.ContainerFilter) (list []*criv1.Container, err error) {
	if f.GetState().GetState() != criv1.ContainerState_CONTAINER_RUNNING {
		return nil, errors.New("asked for more than runs")
	}
	for _, p := range r.pods {
		for _, c := range p.GetLinux().GetContainers() {
			list = append(list, &criv1.Container{Id: c.GetAttributes().GetId()})
		}
	}
	return list, r.err
}

// TestScenarios: each file of testdata is what a runtime measures (pods.yaml, a
// list of the CRI's messages; or error), and what each of the agent's answers makes of
// it. What is the machine's own, N, is another test's.
//
// After a wanted change: go test ./agent/stats -update, and read the diff.
func TestScenarios(t *testing.T) {
	transcript.Files(t, "testdata/*.txtar", func(t *testing.T, text string) string {
		a := txtar.Parse([]byte(text))
		given := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == "summary" })
		if given < 0 {
			given = len(a.Files)
		}
		a.Files = append(a.Files[:given:given], answers(t, read(t, a.Files[:given]))...)
		return string(txtar.Format(a))
	})
}

func read(t *testing.T, files []txtar.File) *measured {
	t.Helper()
	r := &measured{}
	for _, f := range files {
		switch f.Name {
		case "error":
			r.err = errors.New(strings.TrimSpace(string(f.Data)))
		case "pods.yaml":
			r.pods = pods(t, f.Data)
		default:
			t.Fatalf("unknown part %s", f.Name)
		}
	}
	return r
}

func pods(t *testing.T, data []byte) (all []*criv1.PodSandboxStats) {
	t.Helper()
	var list []json.RawMessage
	if err := yaml.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	for _, one := range list {
		p := &criv1.PodSandboxStats{}
		if err := protojson.Unmarshal(one, p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

// answers are the agent's, in the order of the files.
func answers(t *testing.T, r *measured) []txtar.File {
	p := newProvider(r)
	return []txtar.File{
		{Name: "summary", Data: summary(t, p)},
		{Name: "resource", Data: text(t, p.Resource)},
		{Name: "cadvisor", Data: text(t, p.Containers)},
		{Name: "metrics", Data: text(t, p.Metrics)},
	}
}

func newProvider(r *measured) *Provider {
	return &Provider{
		NodeName:    "n",
		Runtime:     r,
		NodeDir:     "/nowhere",
		ImageDir:    "/nowhere",
		MemoryBytes: 1000,
		Available:   func() int64 { return 300 },
		Began:       func(context.Context) map[string]time.Time { return map[string]time.Time{"c1": time.Unix(5, 0)} },
		Standings: func() []Standing {
			return []Standing{
				{Config: "desired", Lifecycle: "sync", Active: true},
				{Config: "desired", Lifecycle: "sync", Active: true},
				{Config: "desired", Lifecycle: "terminated"},
				{Static: true, Config: "orphan", Lifecycle: "terminating"},
				{Config: "runtime_only", Lifecycle: "terminating"},
			}
		},
		Shutdown: func() (start, end time.Time) { return time.UnixMilli(1500), time.Time{} },
	}
}

// summary is the pods' part.
func summary(t *testing.T, p *Provider) []byte {
	t.Helper()
	s, err := p.Summary(t.Context(), false)
	if err != nil {
		return []byte("error: " + err.Error() + "\n")
	}
	out, err := yaml.Marshal(s.Pods)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// machines are the families whose values are the machine's or the process's.
var machines = regexp.MustCompile(`(?m)^((?:node_cpu|node_swap|go|process)_\w+) \S+$`)

func text(t *testing.T, write func(context.Context, io.Writer) error) []byte {
	t.Helper()
	var out strings.Builder
	err := write(t.Context(), &out)
	got := machines.ReplaceAllString(out.String(), "$1 N")
	got = strings.ReplaceAll(got, runtime.Version(), "GO")
	got = strings.ReplaceAll(got, runtime.GOOS+"/"+runtime.GOARCH, "PLATFORM")
	if err != nil {
		got += "error: " + err.Error() + "\n"
	}
	return []byte(got)
}

// TestNode: what is used and what is free make what there is, also of memory that
// came to the machine after the agent's start.
func TestNode(t *testing.T) {
	p := newProvider(&measured{})
	p.NodeDir = t.TempDir()
	s, err := p.Summary(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	n := s.Node
	if n.NodeName != "n" || n.StartTime.IsZero() || n.CPU == nil || *n.CPU.UsageCoreNanoSeconds == 0 {
		t.Errorf("node: %+v", n)
	}
	if m := n.Memory; *m.AvailableBytes != 300 || *m.WorkingSetBytes != 700 || *m.UsageBytes != 700 {
		t.Errorf("memory: %d available, %d in use", *m.AvailableBytes, *m.WorkingSetBytes)
	}
	// Monitors read these without asking whether they are there.
	if m := n.Memory; m.RSSBytes == nil || *m.RSSBytes == 0 || m.PageFaults == nil || m.MajorPageFaults == nil {
		t.Errorf("pages: %+v", m)
	}
	if f := n.Fs; f == nil || *f.CapacityBytes == 0 || *f.InodesFree+*f.InodesUsed != *f.Inodes {
		t.Errorf("file system: %+v", f)
	}
	if n.Runtime.ImageFs != nil {
		t.Errorf("a file system that is not there: %+v", n.Runtime.ImageFs)
	}
	if n.Rlimit == nil || *n.Rlimit.NumOfRunningProcesses == 0 {
		t.Errorf("processes: %+v", n.Rlimit)
	}
	p.Available = func() int64 { return 1500 }
	if s, err = p.Summary(t.Context(), false); err != nil || *s.Node.Memory.WorkingSetBytes != 0 {
		t.Errorf("in use of memory that came later: %d, %v", *s.Node.Memory.WorkingSetBytes, err)
	}
}
