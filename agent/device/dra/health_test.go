package dra

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
)

// healthy is a driver that tells what it is given to tell; an end of the channel ends
// the stream.
type healthy struct {
	*program
	drahealthv1alpha1.UnimplementedDRAResourceHealthServer
	says chan []*drahealthv1alpha1.DeviceHealth
}

func (h *healthy) NodeWatchResources(_ *drahealthv1alpha1.NodeWatchResourcesRequest,
	s drahealthv1alpha1.DRAResourceHealth_NodeWatchResourcesServer) error {
	for {
		select {
		case <-s.Context().Done():
			return s.Context().Err()
		case devices := <-h.says:
			if devices == nil {
				return fmt.Errorf("enough")
			}
			if err := s.Send(&drahealthv1alpha1.NodeWatchResourcesResponse{Devices: devices}); err != nil {
				return err
			}
		}
	}
}

// newHealthy is a node with a pod of one claim, and its driver.
func newHealthy(t *testing.T) (*world, *healthy, *corev1.Pod, *pokes) {
	w := newWorld(t, claim("c", []string{"d.io"}, "p"))
	told := &pokes{}
	w.m.Follow(told.add)
	h := &healthy{program: &program{prepared: map[string]bool{}}, says: make(chan []*drahealthv1alpha1.DeviceHealth)}
	endpoint := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", endpoint)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	drav1.RegisterDRAPluginServer(s, h.program)
	drahealthv1alpha1.RegisterDRAResourceHealthServer(s, h)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	if err := w.m.Drivers.Register("d.io", endpoint, []string{drav1.DRAPluginService}); err != nil {
		t.Fatal(err)
	}
	p := pod("p", []string{"c"}, "c", "c/one")
	w.ensure(p, "")
	return w, h, p, told
}

// pokes are the pods that were told.
type pokes struct {
	mu   sync.Mutex
	pods []types.UID
}

func (p *pokes) add(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods = append(p.pods, uid)
}

func (p *pokes) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pods)
}

func says(name string, health drahealthv1alpha1.HealthStatus, message string) *drahealthv1alpha1.DeviceHealth {
	return &drahealthv1alpha1.DeviceHealth{Health: health, Message: message,
		Device: &drahealthv1alpha1.DeviceIdentifier{PoolName: "n1", DeviceName: name}}
}

// shows waits until the container's devices are shown so.
func (w *world) shows(p *corev1.Pod, want string) {
	w.Helper()
	var got string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		var words []string
		for _, s := range w.m.Health(p, &p.Spec.Containers[0]) {
			for _, r := range s.Resources {
				word := fmt.Sprintf("%s %s=%s", s.Name, r.ResourceID, r.Health)
				if r.Message != nil {
					word += " (" + *r.Message + ")"
				}
				words = append(words, word)
			}
		}
		if got = strings.Join(words, ", "); got == want {
			return
		}
	}
	w.Fatalf("shown %s, want %s", got, want)
}

// What a driver says of devices is shown for the claims of containers, and for requests
// of claims; what it no longer says is unknown.
func TestHealthOfDevices(t *testing.T) {
	w, h, p, told := newHealthy(t)
	w.shows(p, "claim:c d.io/x=c-a=Unknown, claim:c d.io/x=c-b=Unknown, claim:c/one d.io/x=c-a=Unknown")
	h.says <- []*drahealthv1alpha1.DeviceHealth{
		says("a", drahealthv1alpha1.HealthStatus_HEALTHY, ""),
		says("b", drahealthv1alpha1.HealthStatus_UNHEALTHY, "it burns"),
		says("nobody", drahealthv1alpha1.HealthStatus_UNHEALTHY, ""),
	}
	w.shows(p, "claim:c d.io/x=c-a=Healthy, claim:c d.io/x=c-b=Unhealthy (it burns), claim:c/one d.io/x=c-a=Healthy")
	before := told.count()
	h.says <- []*drahealthv1alpha1.DeviceHealth{says("nobody", drahealthv1alpha1.HealthStatus_HEALTHY, "")}
	h.says <- []*drahealthv1alpha1.DeviceHealth{says("a", drahealthv1alpha1.HealthStatus_HEALTHY, "")}
	h.says <- []*drahealthv1alpha1.DeviceHealth{says("a", drahealthv1alpha1.HealthStatus_UNHEALTHY, "")}
	w.shows(p, "claim:c d.io/x=c-a=Unhealthy, claim:c d.io/x=c-b=Unhealthy (it burns), claim:c/one d.io/x=c-a=Unhealthy")
	for end := time.Now().Add(time.Minute); told.count() == before && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if n := told.count() - before; n != 1 {
		t.Errorf("the pod was told %d times of one change", n)
	}
	// The driver ends the stream: nothing is known any more.
	h.says <- nil
	w.shows(p, "claim:c d.io/x=c-a=Unknown, claim:c d.io/x=c-b=Unknown, claim:c/one d.io/x=c-a=Unknown")
}

// A report counts for the time that it names.
func TestHealthExpires(t *testing.T) {
	w, h, p, told := newHealthy(t)
	short := says("a", drahealthv1alpha1.HealthStatus_HEALTHY, "for a second")
	short.HealthCheckTimeoutSeconds = 1
	h.says <- []*drahealthv1alpha1.DeviceHealth{short}
	w.shows(p, "claim:c d.io/x=c-a=Healthy (for a second), claim:c d.io/x=c-b=Unknown, "+
		"claim:c/one d.io/x=c-a=Healthy (for a second)")
	before := told.count()
	for end := time.Now().Add(time.Minute); told.count() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the pod was not told that the report has expired")
		}
	}
	w.shows(p, "claim:c d.io/x=c-a=Unknown, claim:c d.io/x=c-b=Unknown, claim:c/one d.io/x=c-a=Unknown")
}

// A driver that goes takes along what it said.
func TestHealthGoesWithTheDriver(t *testing.T) {
	w, h, p, _ := newHealthy(t)
	h.says <- []*drahealthv1alpha1.DeviceHealth{says("a", drahealthv1alpha1.HealthStatus_HEALTHY, "")}
	w.shows(p, "claim:c d.io/x=c-a=Healthy, claim:c d.io/x=c-b=Unknown, claim:c/one d.io/x=c-a=Healthy")
	w.m.Drivers.mu.Lock()
	endpoint := w.m.Drivers.known["d.io"][0].endpoint
	w.m.Drivers.mu.Unlock()
	w.m.Drivers.Deregister("d.io", endpoint)
	w.shows(p, "claim:c d.io/x=c-a=Unknown, claim:c d.io/x=c-b=Unknown, claim:c/one d.io/x=c-a=Unknown")
}

// A driver cannot fill the agent's memory.
func TestHealthHasLimits(t *testing.T) {
	d := &Drivers{}
	one := &driver{}
	for round := range 4 {
		var many []*drahealthv1alpha1.DeviceHealth
		for i := range maxReports / 2 {
			many = append(many, says(fmt.Sprint(round, " ", i), drahealthv1alpha1.HealthStatus_HEALTHY, ""))
		}
		d.report("d.io", one, many, false)
		if len(one.health) > maxReports {
			t.Fatalf("%d reports are kept", len(one.health))
		}
	}
	long := cut(strings.Repeat("ä", corev1.ResourceHealthMessageMaxLength))
	if len(long) > corev1.ResourceHealthMessageMaxLength || !strings.HasSuffix(long, "ä...") {
		t.Errorf("%d bytes, %q", len(long), long[len(long)-8:])
	}
	if r := reportOf(&drahealthv1alpha1.DeviceHealth{HealthCheckTimeoutSeconds: 1 << 62}, time.Now()); r.expires.After(
		time.Now().Add(maxHealthTimeout)) {
		t.Errorf("expires %v", r.expires)
	}
	r := reportOf(&drahealthv1alpha1.DeviceHealth{Health: 7}, time.Now())
	if r.health != corev1.ResourceHealthStatusUnknown {
		t.Errorf("a state that nobody knows is taken for %s", r.health)
	}
}
