package evict

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/host"
)

func TestMeasure(t *testing.T) {
	if s := tasks(host.Tasks{Count: 950, MaxPID: 1000, MaxThreads: 2000}); s != (Signal{Available: 50, Capacity: 1000}) {
		t.Errorf("%+v", s)
	}
	have := Measure("/", "/", Signal{1, 2}, Signal{})
	for signal := range signals {
		if _, ok := have[signal]; !ok && signal != MemoryStall {
			t.Errorf("%s of this machine is not measured", signal)
		}
	}
}

// Settings become thresholds in the order in which they are acted on, or errors that
// name the field (NPE-7, NPE-11, NPE-29).
func TestThresholds(t *testing.T) {
	type m = map[string]string
	for name, tt := range map[string]struct {
		Settings
		want string // signal keep+reclaim/grace at a capacity of 1000, or the error
	}{
		"none": {},
		"memory first, hard first": {Settings{Hard: m{"nodefs.available": "10%", "memory.available": "100"},
			Soft: m{"memory.available": "200"}, SoftGrace: m{"memory.available": "1m30s"}},
			"allocatableMemory.available 100+0/0s, memory.available 100+0/0s, memory.available 200+0/1m30s, " +
				"nodefs.available 100+0/0s"},
		"more is freed": {Settings{Hard: m{"imagefs.available": "1"}, MinimumReclaim: m{"imagefs.available": "5%"}},
			"imagefs.available 1+50/0s"},
		"off": {Settings{Hard: m{"pid.available": "0%", "nodefs.available": "100%", "imagefs.inodesFree": "0",
			"containerfs.available": "5%"}}, ""},
		"stall after what is left of memory": {Settings{Hard: m{"nodefs.available": "10%", "memory.available": "100"},
			Soft: m{"memory.available": "200"}, SoftGrace: m{"memory.available": "1m"}, Stall: Stall{Share: 0.75}},
			"allocatableMemory.available 100+0/0s, memory.available 100+0/0s, memory.available 200+0/1m0s, " +
				"memory.stall 250+0/0s, nodefs.available 100+0/0s"},
		"stall among others": {Settings{Hard: m{"memory.stall": "60%"}},
			"evictionHard: memory.stall: it has no threshold here: set evictionMemoryStall"},
		"unknown":     {Settings{Hard: m{"disk": "5%"}}, "evictionHard: disk: no such signal; known are allocatableMemory.available,"},
		"no quantity": {Settings{Hard: m{"memory.available": "much"}}, `evictionHard: memory.available: "much" is neither`},
		"more than all": {Settings{Hard: m{"memory.available": "101%"}},
			`evictionHard: memory.available: "101%" is not a percentage between 0% and 100%`},
		"not a number": {Settings{Hard: m{"memory.available": "NaN%"}}, "is not a percentage"},
		"less than none": {Settings{MinimumReclaim: m{"memory.available": "-1"}},
			`evictionMinimumReclaim: memory.available: "-1" must not be negative`},
		"no grace": {Settings{Soft: m{"memory.available": "1"}},
			"evictionSoft: memory.available: evictionSoftGracePeriod must tell how long it has to hold"},
		"bad grace": {Settings{Soft: m{"memory.available": "1"}, SoftGrace: m{"memory.available": "0s"}},
			`evictionSoftGracePeriod: memory.available: "0s" is not a duration above 0`},
		"grace of nothing": {Settings{SoftGrace: m{"memory.available": "1s"}},
			"evictionSoftGracePeriod: memory.available: evictionSoft has no such threshold"},
	} {
		list, err := tt.Thresholds()
		var got []string
		for _, x := range list {
			got = append(got, x.Signal+" "+resource.NewQuantity(x.Keep.Of(1000), resource.DecimalSI).String()+"+"+
				resource.NewQuantity(x.Reclaim.Of(1000), resource.DecimalSI).String()+"/"+x.Grace.String())
		}
		if err != nil {
			got = []string{err.Error()}
		}
		if text := strings.Join(got, ", "); tt.want == "" && text != "" || !strings.HasPrefix(text, tt.want) &&
			(err == nil || !strings.Contains(text, tt.want)) {
			t.Errorf("%s: %s, want %s", name, text, tt.want)
		}
	}
}

// What the node does over time: soft thresholds wait, what is acted on frees more than
// its threshold, conditions last (NPE-11, NPE-13, NPE-20, NPE-21, NPE-29).
func TestPlan(t *testing.T) {
	thresholds, err := Settings{
		Hard:           map[string]string{"memory.available": "100", "nodefs.available": "10%", "pid.available": "5"},
		Soft:           map[string]string{"memory.available": "200"},
		SoftGrace:      map[string]string{"memory.available": "20s"},
		MinimumReclaim: map[string]string{"nodefs.available": "50"},
	}.Thresholds()
	if err != nil {
		t.Fatal(err)
	}
	p := Plan{Thresholds: thresholds, Transition: time.Minute}
	begin := time.Unix(1000, 0)
	for _, step := range []struct {
		second                 int
		memory, disk, pods     int64 // left of 1000; -1: not measured
		conditions, act, grace string
	}{
		{0, 500, 500, 500, "", "", ""},
		{10, 150, 500, 500, "MemoryPressure", "", ""},                                // soft: not yet
		{20, 250, 500, 500, "MemoryPressure", "", ""},                                // and it begins anew
		{30, 150, 500, 500, "MemoryPressure", "", ""},                                //
		{50, 150, 500, 500, "MemoryPressure", "memory.available", "20s"},             // now
		{60, 50, 50, 500, "DiskPressure MemoryPressure", "memory.available", "0s"},   // hard, before the disk
		{70, 500, 50, 500, "DiskPressure MemoryPressure", "nodefs.available", "0s"},  //
		{80, 500, 120, 500, "DiskPressure MemoryPressure", "nodefs.available", "0s"}, // 50 more are to be freed
		{90, 500, 160, 500, "DiskPressure MemoryPressure", "", ""},                   //
		{100, 500, 120, 500, "DiskPressure MemoryPressure", "", ""},                  // only once it acted
		{121, 500, 500, 500, "DiskPressure", "", ""},                                 // a minute after 60
		{141, 500, 500, 500, "", "", ""},                                             //
		{150, 500, 500, 50, "MemoryPressure", "allocatableMemory.available", "0s"},   // of pods alone
		{160, -1, -1, -1, "MemoryPressure", "", ""},                                  //
		{230, 500, 500, 500, "", "", ""},                                             //
		{240, 99, 500, 500, "MemoryPressure", "memory.available", "0s"},              //
		{250, 100, 500, 500, "MemoryPressure", "", ""},                               // less than, not at
		{260, 150, 500, 500, "MemoryPressure", "memory.available", "20s"},            // soft since 240
	} {
		have := map[string]Signal{}
		for signal, left := range map[string]int64{MemoryAvailable: step.memory, NodeFSAvailable: step.disk,
			AllocatableAvailable: step.pods} {
			if left >= 0 {
				have[signal] = Signal{Available: left, Capacity: 1000}
			}
		}
		conditions, met := p.Step(begin.Add(time.Duration(step.second)*time.Second), have)
		var names []string
		for c := range conditions {
			names = append(names, string(c))
		}
		slices.Sort(names)
		var act, grace string
		if met != nil {
			act, grace = met.Threshold.Signal, met.Grace.String()
		}
		if got := strings.Join(names, " "); got != step.conditions || act != step.act || grace != step.grace {
			t.Errorf("%d s: %q, act on %q with %q, want %+v", step.second, got, act, grace, step)
		}
	}
}

func named(name string, priority int32, requests ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Priority = &priority
	list := corev1.ResourceList{}
	for i := 0; i < len(requests); i += 2 {
		list[corev1.ResourceName(requests[i])] = resource.MustParse(requests[i+1])
	}
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list}}}
	return p
}

// Pods end in upstream's order (NPE-23..28, NPE-34).
func TestRank(t *testing.T) {
	pods := []*corev1.Pod{
		named("within", 0, "memory", "500", "ephemeral-storage", "500"),
		named("above", 0, "memory", "100", "ephemeral-storage", "100"),
		named("far-above", 0), named("above-important", 10),
		named("within-important", 10, "memory", "500", "ephemeral-storage", "500"), named("unknown", 100),
	}
	uses := map[string]PodUse{
		"within":          {Memory: 400, Processes: 9, Volumes: Files{400, 1}},
		"above":           {Memory: 300, Processes: 8, Volumes: Files{300, 4}},
		"far-above":       {Memory: 250, Processes: 1, Volumes: Files{250, 5}},
		"above-important": {Memory: 900, Processes: 99, Volumes: Files{900, 9}},
		"within-important": {Memory: 1, Processes: 1, Containers: map[string]ContainerUse{
			"c": {Layer: Files{9000, 3}, Logs: Files{10, 1}}}},
	}
	use := func(p *corev1.Pod) (PodUse, bool) { u, ok := uses[p.Name]; return u, ok }
	for _, tt := range []struct {
		signal  string
		imageFS bool
		want    string
	}{
		{MemoryAvailable, false, "unknown far-above above above-important within within-important"},
		{PIDAvailable, false, "unknown within above far-above above-important within-important"},
		{NodeFSAvailable, false, "unknown far-above above within-important above-important within"},
		{NodeFSAvailable, true, "unknown far-above above above-important within within-important"},
		{ImageFSAvailable, true, "unknown within-important far-above above within above-important"},
		{NodeFSInodesFree, false, "unknown far-above above within above-important within-important"},
	} {
		list := slices.Clone(pods)
		Layout{ImageFS: tt.imageFS}.Rank(tt.signal, list, use)
		var got []string
		for _, p := range list {
			got = append(got, p.Name)
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s, images apart %v: %s, want %s", tt.signal, tt.imageFS, text, tt.want)
		}
	}
}

// Users read why a pod was ended in upstream's words.
func TestCause(t *testing.T) {
	p := named("p", 0, "memory", "1Mi")
	u := PodUse{Memory: 3 << 20, Containers: map[string]ContainerUse{"c": {Memory: 2 << 20, Layer: Files{4096, 1},
		Logs: Files{4096, 1}}}}
	memory := Met{Threshold{Signal: MemoryAvailable, Keep: Amount{Quantity: resource.MustParse("100Mi")}},
		Signal{50 << 20, 1 << 30}}
	const low = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "
	const of = "Container c was using 2Mi, request is 1Mi, has larger consumption of memory. "
	if got := memory.Cause(p, u).Message; got != low+of {
		t.Error(got)
	}
	p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"memory": resource.MustParse("2Mi")}}
	const whole = "Pod p was using 3Mi, request is 2Mi, has larger consumption of memory. "
	if got := memory.Cause(p, u).Message; got != low+whole+of {
		t.Error(got)
	}
	about := map[string]string{"starved_resource": "memory", "offending_pod": "p", "offending_pod_usage": "3Mi",
		"offending_containers": "c", "offending_containers_usage": "2Mi"}
	if got := memory.Cause(p, u).Annotations; !maps.Equal(got, about) {
		t.Errorf("annotations %v, want %v", got, about)
	}
	stall := Met{(&Stall{Share: 0.625}).Threshold(), Signal{int64(10 * time.Second), int64(30500 * time.Millisecond)}}
	if got := stall.Cause(p, u).Message; got != "The node was low on resource: memory. Tasks waited for memory 67% of 31s, "+
		"threshold: 62.5%. "+whole+of {
		t.Error(got)
	}
	inodes := Met{Threshold{Signal: NodeFSInodesFree, Keep: Amount{Share: 0.05}}, Signal{10, 1000}}
	if got := inodes.Cause(p, u).Message; got != "The node was low on resource: inodes. Threshold quantity: 50, available: 10. " {
		t.Error(got)
	}
	disk := Met{Threshold{Signal: NodeFSAvailable, Keep: Amount{Share: 0.5}}, Signal{1 << 10, 1 << 20}}
	if got := disk.Cause(p, u).Message; got != "The node was low on resource: ephemeral-storage. Threshold quantity: 512Ki, "+
		"available: 1Ki. Container c was using 8Ki, request is 0, has larger consumption of ephemeral-storage. " {
		t.Error(got)
	}
}

// The node frees images first, then ends one pod after the other, never the system's,
// and looks again only when one is gone (NPE-22).
func TestNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var left atomic.Int64 // of 1000
		left.Store(50)
		var mu sync.Mutex
		var done []string
		tell := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			done = append(done, time.Since(begin).String()+" "+what)
		}
		system := named("system", criticalPriority)
		pods := []*corev1.Pod{system, named("b", 1), named("a", 0)}
		going := map[string]time.Time{}
		n := &Node{
			Plan: Plan{Thresholds: []Threshold{{Signal: ImageFSAvailable, Keep: Amount{Share: 0.1}}},
				Transition: time.Minute},
			Signals: func() map[string]Signal {
				return map[string]Signal{ImageFSAvailable: {Available: left.Load(), Capacity: 1000}}
			},
			Pods: func() []*corev1.Pod { return slices.Clone(pods) },
			Use: func(context.Context, bool) (func(*corev1.Pod) (PodUse, bool), error) {
				return nil, errors.New("no answer")
			},
			Free:     func(context.Context) error { tell("free"); left.Add(10); return nil },
			FreeLogs: func(context.Context) error { tell("free logs"); return nil },
			FreeDead: func(context.Context) error { tell("free dead"); return nil },
			Evict: func(p *corev1.Pod, _ Cause, grace time.Duration) {
				tell("evict " + p.Name + " in " + grace.String())
				going[p.Name] = time.Now().Add(5 * time.Second)
			},
			Gone: func(p *corev1.Pod) bool {
				if time.Now().Before(going[p.Name]) {
					return false
				}
				left.Add(20)
				pods = slices.DeleteFunc(pods, func(q *corev1.Pod) bool { return p == q })
				return true
			},
			Tell:    func(reason, message string) { tell(reason + ": " + message) },
			Changed: func() { tell("changed") },
			Period:  10 * time.Second,
			Log:     slog.New(slog.DiscardHandler),
		}
		ctx, cancel := context.WithCancel(t.Context())
		go n.Run(ctx)
		time.Sleep(8 * time.Second)
		synctest.Wait()
		if !maps.Equal(n.Conditions(), map[corev1.NodeConditionType]bool{corev1.NodeDiskPressure: true}) {
			t.Error(n.Conditions())
		}
		time.Sleep(12 * time.Second)
		synctest.Wait()
		const met = "EvictionThresholdMet: Attempting to reclaim ephemeral-storage"
		want := []string{"0s changed", "0s " + met, "0s free logs", "0s free dead", "0s free",
			"0s evict a in 1s", "5s " + met, "5s free logs", "5s free dead", "5s free", "5s evict b in 1s"}
		mu.Lock()
		if len(done) < len(want) || !slices.Equal(done[:len(want)], want) {
			t.Errorf("%q, want %q", done, want)
		}
		for _, what := range done {
			if strings.Contains(what, "evict system") {
				t.Error(what)
			}
		}
		mu.Unlock()
		left.Store(500)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		mu.Lock()
		if len(n.Conditions()) > 0 || !strings.HasSuffix(done[len(done)-1], " changed") {
			t.Errorf("%v after peace; %q", n.Conditions(), done)
		}
		mu.Unlock()
		cancel()
		synctest.Wait()
	})
}

// A node is not shown before its pressure is known: what it takes at once would be ended.
func TestObserve(t *testing.T) {
	n := &Node{
		Plan: Plan{Thresholds: []Threshold{{Signal: ImageFSAvailable, Keep: Amount{Share: 0.1}}}},
		Signals: func() map[string]Signal {
			return map[string]Signal{ImageFSAvailable: {Available: 50, Capacity: 1000}}
		},
	}
	if c := n.Conditions(); c != nil {
		t.Errorf("%v before the first look", c)
	}
	n.Observe() // it acts on nothing: nothing is there to act with
	if !n.Conditions()[corev1.NodeDiskPressure] {
		t.Errorf("%v", n.Conditions())
	}
}

// A stall has the node looked at without delay; soft thresholds give pods time.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stalled := make(chan struct{}, 1)
		var left, evicted atomic.Int64
		left.Store(500)
		begin := time.Now()
		n := &Node{
			Plan: Plan{Thresholds: []Threshold{
				{Signal: MemoryAvailable, Keep: Amount{Share: 0.1}, Grace: time.Nanosecond}}},
			MaxGrace: 7 * time.Second,
			Signals:  func() map[string]Signal { return map[string]Signal{MemoryAvailable: {left.Load(), 1000}} },
			Pods:     func() []*corev1.Pod { return []*corev1.Pod{named("a", 0)} },
			Use: func(context.Context, bool) (func(*corev1.Pod) (PodUse, bool), error) {
				return func(*corev1.Pod) (PodUse, bool) { return PodUse{}, true }, nil
			},
			Evict: func(_ *corev1.Pod, _ Cause, grace time.Duration) {
				evicted.Store(int64(time.Since(begin)))
				if grace != 7*time.Second {
					t.Errorf("grace %v", grace)
				}
				left.Store(500)
			},
			Gone: func(*corev1.Pod) bool { return true }, Tell: func(string, string) {}, Changed: func() {},
			Period: 10 * time.Second, Stalled: stalled, Log: slog.New(slog.DiscardHandler),
		}
		ctx, cancel := context.WithCancel(t.Context())
		go n.Run(ctx)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		left.Store(10)
		stalled <- struct{}{}
		time.Sleep(time.Second)
		stalled <- struct{}{}
		time.Sleep(time.Second)
		synctest.Wait()
		if at := time.Duration(evicted.Load()); at != 3*time.Second {
			t.Errorf("evicted after %v", at)
		}
		cancel()
		synctest.Wait()
	})
}
