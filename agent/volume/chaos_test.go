package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/csi"
)

// episodeSteps is how long one cluster of the chaos lives.
const episodeSteps = 120

// TestChaos walks two nodes at random through pods that come and go, agents that are
// killed at any effect, machines that start anew or lose their power, and drivers
// that refuse calls, leave it open whether they did something, or are away. At no
// time a volume for one node is in the hands of two, or has a driver something that
// no record and no Node tells of; and whenever all is well again, pods have their
// volumes, and nothing is left of what nobody needs.
//
// SHOAL_CHAOS_STEPS has it walk further, SHOAL_CHAOS_SEED from another begin.
func TestChaos(t *testing.T) {
	steps, seed := number(t, "SHOAL_CHAOS_STEPS", 2*episodeSteps), number(t, "SHOAL_CHAOS_SEED", 1)
	for ; steps > 0 && !t.Failed(); steps, seed = steps-episodeSteps, seed+1 {
		t.Run(fmt.Sprint("seed-", seed), func(t *testing.T) {
			t.Parallel()
			c := newChaos(t, uint64(seed))
			for range episodeSteps {
				c.step()
				if t.Failed() {
					t.Fatalf("seed %d:\n%s", seed, strings.Join(c.trace, "\n"))
				}
			}
			c.end()
			if t.Failed() {
				t.Fatalf("seed %d:\n%s", seed, strings.Join(c.trace, "\n"))
			}
		})
	}
}

// number reads one from the environment.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// chaos is a cluster of two nodes. What attaches volumes is as hasty as it may be:
// it takes from a node what that does not say to use, pods or not.
type chaos struct {
	t     *testing.T
	rand  *rand.Rand
	nodes []*chaosNode
	pods  int // that were made
	trace []string

	mu sync.Mutex
	// owners are the nodes that volumes for one node are attached to.
	owners map[corev1.UniqueVolumeName]*chaosNode
}

// chaosNode is a machine, and what the API knows of it.
type chaosNode struct {
	*csiWorld
	*chaos
	name   string
	socket string
	// agent is nil while it is dead; then power tells whether the machine runs.
	agent *Manager
	power bool
	// pods are all whose worker has not ended, by UID.
	pods map[types.UID]*chaosPod

	mu sync.Mutex
	// fault is what becomes of the driver's calls; wait interrupts a pod's start
	// that waits for a volume of another node.
	fault  func(method string, done bool) error
	wait   func()
	waiter *corev1.Pod
}

// chaosPod is a pod on its node.
type chaosPod struct {
	*corev1.Pod
	wanted  bool // until it is deleted
	running bool // since its volumes were made; over the end of the machine, too
}

// chaosPods are the volumes that pods may have. twin is another PersistentVolume of data's; disk is a device;
// shared is for many nodes, single for one pod alone.
var chaosPods = [][]corev1.Volume{
	{claimed("data"), inline("own")},
	{claimed("data"), claimed("shared")},
	{claimed("twin")},
	{claimed("disk"), claimed("shared")},
	{claimed("disk")},
	{claimed("single"), inline("own")},
	{claimed("single"), claimed("data")},
}

func newChaos(t *testing.T, seed uint64) *chaos {
	c := &chaos{t: t, rand: rand.New(rand.NewPCG(seed, 0)), owners: map[corev1.UniqueVolumeName]*chaosNode{}}
	for i := range 2 {
		n := &chaosNode{csiWorld: newCSIWorld(t, stages), chaos: c, name: fmt.Sprint("node-", i),
			pods: map[types.UID]*chaosPod{}, power: true}
		n.socket = n.csiWorld.socket
		n.object(func(s *storagev1.CSIDriverSpec) { s.PodInfoOnMount = ptr.To(true) }) // it tells which are inline
		for name, mode := range map[string]corev1.PersistentVolumeAccessMode{
			"data": corev1.ReadWriteOnce, "disk": corev1.ReadWriteOnce, "shared": corev1.ReadWriteMany,
			"single": corev1.ReadWriteOncePod,
		} {
			pv := csiVolume(name, mode)
			n.claims[name] = pv
			n.attachedVolume(pv, map[string]string{"device": name})
		}
		n.claims["disk"].Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		n.claims["twin"] = n.claims["data"].DeepCopy()
		n.claims["twin"].Name = "twin"
		n.mayAttach = n.attaches
		check := n.driver.Before
		n.driver.Before = func(ctx context.Context, method, volume string) error {
			n.owns(method, volume)
			return errors.Join(check(ctx, method, volume), n.refuses(method, false))
		}
		n.driver.After = func(_ context.Context, method, _ string) error { return n.refuses(method, true) }
		c.nodes = append(c.nodes, n)
	}
	return c
}

// attaches is asked for each volume that the Node says to use.
func (n *chaosNode) attaches(name corev1.UniqueVolumeName) bool {
	n.chaos.mu.Lock()
	defer n.chaos.mu.Unlock()
	if n.owners[name] == nil || strings.HasSuffix(string(name), "^h-shared") {
		n.owners[name] = n
	}
	return n.owners[name] == n
}

// owns sees that a volume is brought to a pod only where it is attached.
func (n *chaosNode) owns(method, volume string) {
	if method != "NodeStageVolume" && method != "NodePublishVolume" || !strings.HasPrefix(volume, "h-") ||
		volume == "h-shared" {
		return
	}
	n.chaos.mu.Lock()
	owner := n.owners[csi.VolumeName("d", volume)]
	n.chaos.mu.Unlock()
	if owner != n {
		n.csiWorld.mu.Lock()
		defer n.csiWorld.mu.Unlock()
		n.faults = append(n.faults, fmt.Sprintf("%s of %s on %s, where it is not attached", method, volume, n.name))
	}
}

// refuses is what the driver answers, before it does something or after.
func (n *chaosNode) refuses(method string, done bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fault == nil {
		return nil
	}
	return n.fault(method, done)
}

// step does one thing, and sees that nothing is wrong after it.
func (c *chaos) step() {
	n := c.nodes[c.rand.IntN(len(c.nodes))]
	switch k := c.rand.IntN(100); {
	case !n.power && k < 40, n.power && n.agent == nil && k < 60:
		n.start()
	case n.agent == nil && k < 70 && n.power:
		n.note("loses its power")
		n.loseMachine(false)
	case k < 20 && len(n.pods) < 5:
		n.create(c.rand.IntN(len(chaosPods)))
	case k < 55:
		n.ensure(n.some(func(p *chaosPod) bool { return p.wanted }))
	case k < 65:
		if p := n.some(func(p *chaosPod) bool { return p.wanted }); p != nil {
			n.note("%s is deleted", p.Name)
			p.wanted = false
			n.release(p)
		}
	case k < 80:
		n.release(n.some(func(p *chaosPod) bool { return !p.wanted }))
	case k < 84:
		n.update(n.some(func(p *chaosPod) bool { return p.wanted && p.running }))
	case k < 90:
		n.breakDriver()
	case k < 93:
		n.silent = !n.silent
		n.note("the API is silent: %v", n.silent)
	case k < 96 && n.agent != nil:
		n.note("starts anew")
		n.loseMachine(true)
	default:
		n.live(c.rand.IntN(10))
		n.note("its agent will be killed")
	}
	for _, n := range c.nodes {
		n.holds()
	}
}

func (n *chaosNode) note(format string, args ...any) {
	n.trace = append(n.trace, n.name+": "+fmt.Sprintf(format, args...))
}

// some is a pod of the node, nil for none.
func (n *chaosNode) some(is func(*chaosPod) bool) *chaosPod {
	var list []*chaosPod
	for _, uid := range slices.Sorted(maps.Keys(n.pods)) {
		if is(n.pods[uid]) {
			list = append(list, n.pods[uid])
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[n.rand.IntN(len(list))]
}

// create has a pod come that has volumes of the list's line.
func (n *chaosNode) create(line int) *chaosPod {
	n.chaos.pods++
	p := &chaosPod{wanted: true, Pod: csiPod(fmt.Sprintf("p-%04d", n.chaos.pods), chaosPods[line]...)}
	n.pods[p.UID] = p
	var names []string
	for _, v := range p.Spec.Volumes {
		names = append(names, v.Name)
	}
	n.note("%s comes with %s", p.Name, names)
	n.ensure(p)
	return p
}

// act has the agent do something, which it may not survive.
func (n *chaosNode) act(what string, do func(*Manager) error) (err error) {
	if n.agent == nil {
		return errors.New("there is no agent")
	}
	if !n.survive(func() { err = do(n.agent) }) {
		n.note("%s, and the agent is killed", what)
		n.live(-1)
		n.agent = nil
		return errors.New("killed")
	}
	n.note("%s: %v", what, err)
	return err
}

func (n *chaosNode) ensure(p *chaosPod) {
	if p == nil {
		return
	}
	err := n.act("starts "+p.Name, func(m *Manager) error {
		ctx, cancel := context.WithCancel(n.chaos.t.Context())
		defer cancel()
		n.wait, n.waiter = cancel, p.Pod
		defer func() { n.wait, n.waiter = nil, nil }()
		return m.Ensure(ctx, p.Pod)
	})
	if err == nil {
		p.running = true
		n.whole(p)
	}
}

// inUse is what the agent does when it uses other volumes: the cluster hears of it,
// and gives others what is free. A pod whose volume another node has waits no longer.
func (n *chaosNode) inUse() {
	n.report(n.agent)
	n.detach(false)
	if n.waiter == nil {
		return
	}
	for _, v := range n.waiter.Spec.Volumes {
		pv := n.claims[v.Name]
		if pv == nil {
			continue
		}
		name := csi.VolumeName("d", pv.Spec.CSI.VolumeHandle)
		is := func(a corev1.AttachedVolume) bool { return a.Name == name }
		if slices.Contains(n.node.Status.VolumesInUse, name) && !slices.ContainsFunc(n.node.Status.VolumesAttached, is) {
			n.wait()
		}
	}
}

// detach takes from the node what it does not use, or all.
func (n *chaosNode) detach(all bool) {
	n.chaos.mu.Lock()
	defer n.chaos.mu.Unlock()
	for name, owner := range n.owners {
		if owner == n && (all || !slices.Contains(n.node.Status.VolumesInUse, name)) {
			delete(n.owners, name)
		}
	}
	if all {
		n.node.Status.VolumesAttached = nil
	}
}

func (n *chaosNode) release(p *chaosPod) {
	if p == nil {
		return
	}
	p.running = false // its record says that it ends
	if n.act("ends "+p.Name, func(m *Manager) error { return m.Release(n.chaos.t.Context(), p.Pod) }) == nil {
		n.mourn(p)
	}
}

// mourn forgets a pod of which nothing may be left.
func (n *chaosNode) mourn(p *chaosPod) {
	delete(n.pods, p.UID)
	_ = os.Remove(filepath.Join(n.root, "kubelet/pods", string(p.UID))) // it is the pod's worker's
	left := n.world.records()
	if strings.Contains(left, string(p.UID)+"/") || strings.Contains(n.driver.String(), string(p.UID)) {
		n.chaos.t.Errorf("left of %s on %s:\n%s%s", p.Name, n.name, left, n.driver)
	}
}

func (n *chaosNode) update(p *chaosPod) {
	if p != nil {
		_ = n.act("updates "+p.Name, func(m *Manager) error { return m.update(n.chaos.t.Context(), p.Pod) })
	}
}

// breakDriver has it fail from now on, in one way, or mends it.
func (n *chaosNode) breakDriver() {
	kinds := []string{"mended", "mended", "away", "refuses", "does nothing in time", "does all, too late"}
	kind := kinds[n.rand.IntN(len(kinds))]
	methods := []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"}
	broken := methods[n.rand.IntN(len(methods))]
	n.note("its driver is %s (%s)", kind, broken)
	n.csiWorld.socket = n.socket
	fault := func(at bool, code codes.Code) func(string, bool) error {
		return func(method string, done bool) error {
			if method != broken || done != at {
				return nil
			}
			return status.Error(code, "chaos")
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch n.fault = nil; kind {
	case "away":
		n.csiWorld.socket = ""
	case "refuses":
		n.fault = fault(false, codes.Internal)
	case "does nothing in time":
		n.fault = fault(false, codes.DeadlineExceeded)
	case "does all, too late":
		n.fault = fault(true, codes.DeadlineExceeded)
	}
}

// start has a new agent take over.
func (n *chaosNode) start() {
	n.live(-1)
	n.power = true
	m := n.csiWorld.agent()
	n.agent = m
	m.InUseChanged = n.inUse
	m.Event = func(*corev1.Pod, string, string, string, string) {
		if n.wait != nil {
			n.wait() // the driver is away
		}
	}
	var running []*corev1.Pod
	for _, uid := range slices.Sorted(maps.Keys(n.pods)) {
		if p := n.pods[uid]; p.running {
			running = append(running, p.Pod)
		}
	}
	_ = n.act("its agent starts", func(m *Manager) error {
		if err := m.Restore(running); err != nil {
			return err
		}
		n.inUse()
		m.restored = nil
		for _, p := range running {
			m.resume(n.chaos.t.Context(), p)
		}
		return nil
	})
}

// loseMachine ends a machine with all that is mounted. One that does not come back
// at once is given up by the cluster: other nodes get its volumes.
func (n *chaosNode) loseMachine(comesBack bool) {
	n.agent, n.power = nil, comesBack
	n.live(-1)
	n.driver.Reboot()
	n.reboot()
	if comesBack {
		n.start()
		return
	}
	n.detach(true)
}

// holds sees that what must always be true is.
func (n *chaosNode) holds() {
	n.csiWorld.mu.Lock()
	faults := slices.Concat(n.faults, n.driver.Faults())
	n.csiWorld.mu.Unlock()
	state := n.driver.String()
	for handle := range map[string]bool{"h-data": true, "h-disk": true, "h-shared": true, "h-single": true} {
		if strings.Contains(state, " "+handle+" ") &&
			!slices.Contains(n.node.Status.VolumesInUse, csi.VolumeName("d", handle)) {
			faults = append(faults, handle+" is not in use, but:\n"+state)
		}
	}
	if strings.Count(state, "published h-single ") > 1 {
		faults = append(faults, "two pods have a volume that is for one:\n"+state)
	}
	all, err := n.store().All()
	if err != nil {
		faults = append(faults, err.Error())
	}
	for _, v := range all {
		if n.agent != nil && v.CSI != nil && v.CSI.InUse != "" && !slices.Contains(n.agent.VolumesInUse(), v.CSI.InUse) {
			faults = append(faults, fmt.Sprintf("%s has a record and is not in use", v.CSI.InUse))
		}
	}
	for _, fault := range faults {
		n.chaos.t.Error(n.name + ": " + fault)
	}
}

// whole sees that a pod has its volumes.
func (n *chaosNode) whole(p *chaosPod) {
	state := n.driver.String()
	for _, v := range p.Spec.Volumes {
		path, err := n.agent.Path(p.Pod, v.Name)
		if v.Name == "disk" {
			path, err = os.Readlink(path)
		}
		if err != nil || !strings.Contains(state, " at "+path+"\n") {
			n.chaos.t.Errorf("%s has no %s at %s: %v\n%s", p.Name, v.Name, path, err, state)
		}
	}
}

// end mends all, and sees that pods get what they wait for and that all is undone.
func (c *chaos) end() {
	for _, n := range c.nodes {
		n.mu.Lock()
		n.fault = nil
		n.mu.Unlock()
		n.csiWorld.socket, n.silent = n.socket, false
		n.live(-1)
		if n.agent == nil {
			n.start()
		}
		for _, uid := range slices.Sorted(maps.Keys(n.pods)) {
			if p := n.pods[uid]; !p.wanted {
				n.release(p)
			}
		}
	}
	for _, n := range c.nodes {
		for _, uid := range slices.Sorted(maps.Keys(n.pods)) {
			n.release(n.pods[uid])
		}
	}
	// Nothing is stuck: each volume can be had on each node in turn.
	for i := range chaosPods {
		for _, n := range c.nodes {
			p := n.create(i)
			if !p.running {
				c.t.Errorf("%s does not start on %s, and nobody else has its volumes", p.Name, n.name)
			}
			n.release(p)
		}
	}
	for _, n := range c.nodes {
		n.holds()
		n.nothing()
		if len(n.pods) > 0 {
			c.t.Errorf("%s has pods that cannot end: %v", n.name, slices.Collect(maps.Keys(n.pods)))
		}
	}
}
