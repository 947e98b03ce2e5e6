package stats

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/tests/dashboards"
	"github.com/shoal-project/shoal/tests/transcript"
)

// TestContainersOfGroups: what is measured of control groups is under cAdvisor's
// names and labels (testdata/groups.txt). After a wanted change:
// go test ./agent/stats -update, and read the diff.
func TestContainersOfGroups(t *testing.T) {
	p := newProvider(&measured{})
	p.CPUs = 2
	p.Groups = func(context.Context) []Group { return groups(someDisk(t)) }
	p.LayerDisks = []cgroup.Disk{{Major: someDisk(t).Major, Minor: someDisk(t).Minor}}
	p.Machine = func() (Group, error) { return machine, nil }
	got := string(text(t, p.Containers))
	name := diskNames{}.name(someDisk(t))
	got = strings.ReplaceAll(got, `"`+name+`"`, `"/dev/DISK"`)
	for _, n := range []struct{ label, value string }{
		{"major", number(someDisk(t).Major)}, {"minor", number(someDisk(t).Minor)},
	} {
		got = strings.ReplaceAll(got, n.label+`="`+n.value+`"`, n.label+`="N"`)
	}
	transcript.Files(t, "testdata/groups.txt", func(*testing.T, string) string { return got })
	if missing := dashboards.Missing(got, "cadvisor"); len(missing) > 0 {
		t.Errorf("dashboards miss %v", missing)
	}
}

// machine has one file system.
var machine = Group{
	Path: "/", Known: KnowsCPU | KnowsMemory | KnowsSwap,
	Use: cgroup.Stats{
		CPUNanos: 9_000_000_000, Memory: 900, WorkingSet: 900, RSS: 800, PageFaults: 30, MajorPageFaults: 2,
	},
	FileSystems: []host.BlockFileSystem{{
		Device: "vda1", Space: host.FileSystem{Bytes: 1000, Used: 600, Inodes: 50, InodesFree: 20},
		Use: host.DeviceUse{
			Read:     host.Transfers{Completed: 1, Merged: 2, Sectors: 3, Time: 4 * time.Second},
			Written:  host.Transfers{Completed: 5, Merged: 6, Sectors: 7, Time: 8 * time.Second},
			InFlight: 9, Busy: 10 * time.Second, Weighted: 11 * time.Second,
		},
	}},
}

// someDisk is one that this machine has.
func someDisk(t *testing.T) cgroup.Disk {
	t.Helper()
	links, err := filepath.Glob("/sys/dev/block/*")
	if err != nil || len(links) == 0 {
		t.Fatalf("no block device in /sys/dev/block: %v", err)
	}
	major, minor, _ := strings.Cut(filepath.Base(links[0]), ":")
	return cgroup.Disk{
		Major: parse(t, major), Minor: parse(t, minor), ReadBytes: 4096, WrittenBytes: 8192, Reads: 1, Writes: 2,
	}
}

func parse(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// groups are a pod's and its two containers'.
func groups(disk cgroup.Disk) []Group {
	stall := &host.Pressure{Some: host.PSI{Total: 3_000_000}, Full: host.PSI{Total: 1_500_000}}
	pod := Group{
		Namespace: "shop", Pod: "web", Path: "/kubepods/podU", Created: time.Unix(100, 0), Known: KnowsAll,
		Use: cgroup.Stats{
			Time: time.Unix(200, 0), CPUNanos: 2_500_000_000, UserNanos: 2_000_000_000, SystemNanos: 500_000_000,
			Memory: 500, WorkingSet: 400, RSS: 300, Cache: 100, Pids: 3, PidsLimit: 4096,
		},
		Processes: 3,
		Interfaces: []Interface{{
			Name:     "eth0",
			Received: Traffic{Bytes: 1, Packets: 2, Errors: 3, Dropped: 4},
			Sent:     Traffic{Bytes: 5, Packets: 6, Errors: 7, Dropped: 8},
		}},
	}
	limited := Group{
		Namespace: "shop", Pod: "web", Container: "server", ContainerID: "c1", Image: "registry.test/web:1",
		Path: "/kubepods/podU/c1", Created: time.Unix(101, 0), Known: KnowsAll, Processes: 2, LayerBytes: 4096,
		Files: host.Files{Open: 12, Sockets: 3}, FileLimit: 1024,
		Use: cgroup.Stats{
			Time: time.Unix(200, 0), CPUNanos: 1_500_000_000, Periods: 10, Throttled: 4, ThrottledNanos: 250_000_000,
			Memory: 250, MemoryLimit: 1<<20 - 4096, WorkingSet: 200, RSS: 150, Cache: 50, MappedFile: 10, Swap: 7,
			MaxMemory: 260, MemoryFailures: 1, PageFaults: 9, MajorPageFaults: 1, OOMKills: 1, Pids: 2,
			CPUStall: stall, MemoryStall: stall, IOStall: stall,
		},
		Disks: []cgroup.Disk{disk, {Major: 0, Minor: 4095, Reads: 1}},
		Limits: &criv1.LinuxContainerResources{
			CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512, MemoryLimitInBytes: 1 << 20,
		},
	}
	free := Group{
		Namespace: "shop", Pod: "web", Container: "helper", ContainerID: "c2", Image: "registry.test/help:1",
		Path: "/kubepods/podU/c2", Known: KnowsAll, Limits: &criv1.LinuxContainerResources{CpuShares: 2},
	}
	return []Group{pod, limited, free}
}

// TestMachine: what is told of this machine is something.
func TestMachine(t *testing.T) {
	g, err := ReadMachine(1 << 50)
	if err != nil {
		t.Fatal(err)
	}
	if g.Known&KnowsAll == KnowsAll || g.Use.CPUNanos == 0 || g.Use.Memory == 0 || g.Use.RSS == 0 {
		t.Errorf("%+v", g)
	}
}
