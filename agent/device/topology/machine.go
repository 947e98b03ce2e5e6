package topology

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// Machine is how processors and memory lie to each other.
type Machine struct {
	// CPUs are those that are online, by the kernel's numbers.
	CPUs map[int]CPU
	// Nodes are the NUMA nodes, by the kernel's numbers; there is at least one. Some may
	// have memory alone.
	Nodes map[int]Node
}

// CPU is one that the scheduler of the kernel knows: a hardware thread.
type CPU struct {
	// Core, Cache and Socket tell with which others it shares what is meant: their values
	// are the same for these, and differ from all others on the machine. Cache is that of
	// the last level (uncore cache).
	Core, Cache, Socket int
	// Node is its NUMA node.
	Node int
}

// Node is a NUMA node.
type Node struct {
	// MemoryBytes is all of its memory, huge pages too.
	MemoryBytes int64
	// HugePages are bytes by the size of a page in bytes.
	HugePages map[int64]int64
	// Distances to all nodes are as the firmware tells them, 10 to itself; empty where it
	// does not.
	Distances map[int]int
}

// Read reads /sys/devices/system. A kernel without NUMA has one node with all CPUs and
// memoryBytes of memory.
func Read(system fs.FS, memoryBytes int64) (*Machine, error) {
	online, err := list(system, "cpu/online")
	if err != nil {
		return nil, err
	}
	m := &Machine{CPUs: map[int]CPU{}, Nodes: map[int]Node{}}
	for _, n := range online.List() {
		if m.CPUs[n], err = readCPU(system, n); err != nil {
			return nil, fmt.Errorf("CPU %d: %w", n, err)
		}
	}
	if len(m.CPUs) == 0 {
		return nil, errors.New("no CPU is online")
	}
	m.shareSockets()
	nodes, err := list(system, "node/online")
	if errors.Is(err, fs.ErrNotExist) {
		m.Nodes[0] = Node{MemoryBytes: memoryBytes}
		return m, nil
	} else if err != nil {
		return nil, err
	}
	for _, n := range nodes.List() {
		if err := m.readNode(system, n, nodes.List()); err != nil {
			return nil, fmt.Errorf("NUMA node %d: %w", n, err)
		}
	}
	return m, nil
}

func readCPU(system fs.FS, n int) (c CPU, err error) {
	dir := path.Join("cpu", fmt.Sprint("cpu", n))
	threads, err := list(system, path.Join(dir, "topology/core_cpus_list"))
	if errors.Is(err, fs.ErrNotExist) { // before Linux 5.2
		threads, err = list(system, path.Join(dir, "topology/thread_siblings_list"))
	}
	if err != nil {
		return c, err
	}
	c.Core = first(threads, n)
	if c.Socket, err = number(system, path.Join(dir, "topology/physical_package_id")); err != nil {
		return c, err
	}
	c.Cache, err = lastCache(system, path.Join(dir, "cache"), n)
	return c, err
}

// noCache stands for the last cache of a CPU whose kernel tells of none; see shareSockets.
const noCache = -1

// lastCache tells a CPU that shares the cache of the highest level, from the third on.
func lastCache(system fs.FS, dir string, cpu int) (int, error) {
	caches, err := fs.Glob(system, path.Join(dir, "index*"))
	if err != nil {
		return 0, err
	}
	out, highest := noCache, 2
	for _, c := range caches {
		level, err := number(system, path.Join(c, "level"))
		if err != nil || level <= highest {
			continue
		}
		shared, err := list(system, path.Join(c, "shared_cpu_list"))
		if err != nil {
			return 0, err
		}
		out, highest = first(shared, cpu), level
	}
	return out, nil
}

// shareSockets has the CPUs of a socket share a cache where nothing tells of one.
func (m *Machine) shareSockets() {
	lowest := map[int]int{}
	for _, n := range slices.Sorted(maps.Keys(m.CPUs)) {
		c := m.CPUs[n]
		if _, known := lowest[c.Socket]; !known {
			lowest[c.Socket] = n
		}
		if c.Cache == noCache {
			c.Cache = lowest[c.Socket]
			m.CPUs[n] = c
		}
	}
}

func (m *Machine) readNode(system fs.FS, n int, all []int) error {
	if n > MaxNode {
		return fmt.Errorf("numbers above %d are not supported", MaxNode)
	}
	dir := path.Join("node", fmt.Sprint("node", n))
	cpus, err := list(system, path.Join(dir, "cpulist"))
	if err != nil {
		return err
	}
	for _, c := range cpus.List() {
		if one, online := m.CPUs[c]; online {
			one.Node = n
			m.CPUs[c] = one
		}
	}
	out := Node{HugePages: map[int64]int64{}, Distances: map[int]int{}}
	if out.MemoryBytes, err = memTotal(system, path.Join(dir, "meminfo")); err != nil {
		return err
	}
	pages, err := fs.Glob(system, path.Join(dir, "hugepages/hugepages-*kB"))
	if err != nil {
		return err
	}
	for _, p := range pages {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(path.Base(p), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		count, err := number(system, path.Join(p, "nr_hugepages"))
		if err != nil {
			return err
		}
		out.HugePages[kb<<10] = int64(count) * kb << 10
	}
	if data, err := fs.ReadFile(system, path.Join(dir, "distance")); err == nil {
		for i, field := range strings.Fields(string(data)) {
			if d, err := strconv.Atoi(field); err == nil && i < len(all) {
				out.Distances[all[i]] = d
			}
		}
	}
	m.Nodes[n] = out
	return nil
}

// memTotal reads the line "Node 0 MemTotal: 16316412 kB".
func memTotal(system fs.FS, file string) (int64, error) {
	data, err := fs.ReadFile(system, file)
	if err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) >= 4 && f[2] == "MemTotal:" {
			kb, err := strconv.ParseInt(f[3], 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("%s: no MemTotal", file)
}

func list(system fs.FS, file string) (cpuset.CPUSet, error) {
	data, err := fs.ReadFile(system, file)
	if err != nil {
		return cpuset.CPUSet{}, err
	}
	out, err := cpuset.Parse(strings.TrimSpace(string(data)))
	if err != nil {
		return out, fmt.Errorf("%s: %w", file, err)
	}
	return out, nil
}

func number(system fs.FS, file string) (int, error) {
	data, err := fs.ReadFile(system, file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

func first(s cpuset.CPUSet, otherwise int) int {
	if l := s.List(); len(l) > 0 {
		return l[0]
	}
	return otherwise
}

// All are the CPUs that are online.
func (m *Machine) All() cpuset.CPUSet { return cpuset.New(slices.Collect(maps.Keys(m.CPUs))...) }

// NodeMask is the set of all nodes.
func (m *Machine) NodeMask() Mask { return MaskOf(slices.Collect(maps.Keys(m.Nodes))...) }

// On are the CPUs of nodes.
func (m *Machine) On(nodes Mask) cpuset.CPUSet {
	var out []int
	for n, c := range m.CPUs {
		if nodes.Has(c.Node) {
			out = append(out, n)
		}
	}
	return cpuset.New(out...)
}

// NodesOf are those that the CPUs are on.
func (m *Machine) NodesOf(cpus cpuset.CPUSet) (out Mask) {
	for _, n := range cpus.UnsortedList() {
		if c, online := m.CPUs[n]; online {
			out |= MaskOf(c.Node)
		}
	}
	return out
}

// ThreadsPerCore is how many CPUs a core has, 1 without simultaneous multithreading.
func (m *Machine) ThreadsPerCore() int {
	cores := map[int]bool{}
	for _, c := range m.CPUs {
		cores[c.Core] = true
	}
	return max(1, len(m.CPUs)/max(1, len(cores)))
}

// Sockets is how many the nodes are on.
func (m *Machine) Sockets(nodes Mask) int {
	sockets := map[int]bool{}
	for _, c := range m.CPUs {
		if nodes.Has(c.Node) {
			sockets[c.Socket] = true
		}
	}
	return len(sockets)
}

// distance is the mean distance among nodes.
func (m *Machine) distance(nodes Mask) float64 {
	list := nodes.Nodes()
	sum := 0
	for _, a := range list {
		for _, b := range list {
			sum += m.Nodes[a].Distances[b]
		}
	}
	return float64(sum) / float64(max(1, len(list)*len(list)))
}
