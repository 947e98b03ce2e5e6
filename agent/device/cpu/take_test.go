package cpu

import (
	"strings"
	"testing"

	"k8s.io/utils/cpuset"

	"github.com/shoal-project/shoal/agent/device/topology"
)

// machine has sockets with nodes each, nodes with caches each, and so on. CPUs are numbered as
// Linux does on most machines: first one thread of each core, then the second ones.
func machine(sockets, nodes, caches, cores, threads int) *topology.Machine {
	m := &topology.Machine{CPUs: map[int]topology.CPU{}, Nodes: map[int]topology.Node{}}
	all := sockets * nodes * caches * cores
	for core := range all {
		node := core / (caches * cores)
		m.Nodes[node] = topology.Node{}
		for thread := range threads {
			m.CPUs[thread*all+core] = topology.CPU{
				Core:   core,
				Cache:  core / cores * cores,
				Socket: node / nodes,
				Node:   node,
			}
		}
	}
	return m
}

func parse(t *testing.T, list string) cpuset.CPUSet {
	t.Helper()
	s, err := cpuset.Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTake(t *testing.T) {
	var (
		plain    = machine(1, 1, 1, 4, 1) // 0-3
		threads  = machine(1, 1, 1, 4, 2) // cores 0,4 1,5 2,6 3,7
		two      = machine(2, 1, 1, 4, 2) // node 0: 0-3,8-11; node 1: 4-7,12-15
		four     = machine(2, 2, 1, 2, 1) // nodes 0,1 | 2,3 | 4,5 | 6,7; sockets 0-3, 4-7
		caches   = machine(1, 1, 4, 4, 1) // caches 0-3, 4-7, 8-11, 12-15
		smtCache = machine(1, 1, 2, 4, 2) // caches 0-3,8-11 and 4-7,12-15
		wide     = machine(1, 4, 1, 8, 1) // nodes 0-7, 8-15, 16-23, 24-31
	)
	for _, c := range []struct {
		name    string
		machine *topology.Machine
		options Options
		free    string // all when empty
		n       int
		want    string
	}{
		{"one", plain, Options{}, "", 1, "0"},
		{"all", plain, Options{}, "", 4, "0-3"},
		{"a core", threads, Options{}, "", 2, "0,4"},
		{"a thread of a core in use", threads, Options{}, "0-5,7", 1, "2"},
		{"a core, not two threads of two", threads, Options{}, "1-3,5-7", 2, "1,5"},
		{"a core and the thread of one in use", threads, Options{}, "1-7", 3, "1,4-5"},
		{"a socket", two, Options{}, "", 8, "0-3,8-11"},
		{"the free socket", two, Options{}, "1-15", 8, "4-7,12-15"},
		{"on the node with the least left over", two, Options{}, "0-12", 4, "4-6,12"},
		{"on the smaller node", two, Options{}, "1-15", 2, "1,9"},
		{"rather on one node than on two", two, Options{}, "0-1,4-7,8-9,12-15", 6, "4-6,12-14"},
		{"on two nodes where none has enough", two, Options{}, "0-2,4-5,8-10,12-13", 8, "0-2,4,8-10,12"},
		{"a node of a socket", four, Options{}, "", 2, "0-1"},
		{"the rest of a socket in use", four, Options{}, "2-7", 2, "2-3"},
		{"whole nodes of one socket", four, Options{}, "", 4, "0-3"},
		{"without the option caches do not count", caches, Options{}, "2-15", 4, "2-5"},
		{"a cache", caches, Options{UncoreCache: true}, "2-15", 4, "4-7"},
		{"the cache with the least left over", caches, Options{UncoreCache: true}, "0-3,4-5,8-11", 2, "4-5"},
		{"caches and the rest of another", caches, Options{UncoreCache: true}, "1-15", 6, "1-2,4-7"},
		{"a cache with threads", smtCache, Options{UncoreCache: true}, "1-7,9-15", 8, "4-7,12-15"},
		{"a thread of each core", threads, Options{AcrossCores: true}, "", 3, "0-2"},
		{"then the second ones", threads, Options{AcrossCores: true}, "", 6, "0-5"},
		{"it fits on one node", wide, Options{AcrossNodes: true}, "", 8, "0-7"},
		{"evenly on two", wide, Options{AcrossNodes: true}, "", 12, "0-5,8-13"},
		{"without the option one is filled", wide, Options{}, "", 12, "0-7,8-11"},
		{"evenly on three", wide, Options{AcrossNodes: true}, "", 18, "0-5,8-13,16-21"},
		{"a rest to the node with more left", wide, Options{AcrossNodes: true}, "0-5,8-15", 9, "0-3,8-12"},
		{"on the nodes with the most", wide, Options{AcrossNodes: true}, "0-4,8-12,16-23,24-31", 10, "16-20,24-28"},
		{"evenly by cores", two, Options{AcrossNodes: true, FullCores: true}, "", 10, "0-2,4-5,8-10,12-13"},
		{"no even share can be had", wide, Options{AcrossNodes: true}, "0-6,8", 8, "0-6,8"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			free := c.machine.All()
			if c.free != "" {
				free = parse(t, c.free)
			}
			got, err := taker{c.machine, c.options}.take(free, c.n)
			if err != nil || !got.Equals(parse(t, c.want)) {
				t.Errorf("%s, %v; want %s", got, err, c.want)
			}
		})
	}
}

func TestTakeOfTooFew(t *testing.T) {
	m := machine(1, 1, 1, 4, 1)
	_, err := taker{m, Options{}}.take(cpuset.New(1, 2), 3)
	if err == nil || err.Error() != "not enough cpus available to satisfy request: requested=3, available=2" {
		t.Errorf("%v", err)
	}
}

// Whatever is free and asked for: as many CPUs as asked for, of the free ones.
func FuzzTake(f *testing.F) {
	f.Add(uint8(2), uint8(2), uint8(2), uint64(0xffff), uint8(5), uint8(0))
	f.Add(uint8(1), uint8(4), uint8(1), uint64(0xf0f1), uint8(3), uint8(0x2a))
	f.Fuzz(func(t *testing.T, sockets, nodes, threads uint8, mask uint64, n, bits uint8) {
		m := machine(int(sockets)%3+1, int(nodes)%3+1, 2, 2, int(threads)%2+1)
		free := cpuset.New()
		for cpu := range m.CPUs {
			if cpu < 64 && mask&(1<<cpu) != 0 {
				free = free.Union(cpuset.New(cpu))
			}
		}
		o := Options{
			FullCores:   bits&1 != 0,
			AcrossNodes: bits&2 != 0,
			AcrossCores: bits&4 != 0,
			UncoreCache: bits&8 != 0,
		}
		got, err := taker{m, o}.take(free, int(n))
		switch {
		case (err != nil) != (free.Size() < int(n)):
			t.Errorf("%d of %s: %v", n, free, err)
		case err == nil && (got.Size() != int(n) || !got.IsSubsetOf(free)):
			t.Errorf("%d of %s: %s", n, free, got)
		}
	})
}
