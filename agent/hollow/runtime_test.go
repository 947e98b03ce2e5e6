package hollow

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	criapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var (
	_ criapi.RuntimeService      = &Runtime{}
	_ criapi.ImageManagerService = &Runtime{}
)

func state(t *testing.T, r *Runtime, id string) criv1.ContainerState {
	t.Helper()
	st, err := r.ContainerStatus(context.Background(), id, false)
	if err != nil {
		t.Fatal(err)
	}
	return st.Status.State
}

func TestContainerLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		r := New(Config{StartDelay: time.Second, Lifetime: func(_, container string) time.Duration {
			if container == "short" {
				return time.Minute
			}
			return 0
		}})
		events := make(chan *criv1.ContainerEventResponse, 10)
		go func() { _ = r.GetContainerEvents(ctx, events, nil) }()
		config := &criv1.PodSandboxConfig{Metadata: &criv1.PodSandboxMetadata{Uid: "u"},
			Labels: map[string]string{"uid": "u"}}
		if _, err := r.RunPodSandbox(ctx, config, ""); err == nil {
			t.Error("a sandbox without a pod network")
		}
		if err := r.SetPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.1.2.0/24")}); err != nil {
			t.Fatal(err)
		}
		sb, err := r.RunPodSandbox(ctx, config, "")
		if err != nil {
			t.Fatal(err)
		}
		ids := map[string]string{}
		began := time.Now()
		for _, name := range []string{"short", "long"} {
			id, err := r.CreateContainer(ctx, sb,
				&criv1.ContainerConfig{Metadata: &criv1.ContainerMetadata{Name: name},
					Image: &criv1.ImageSpec{Image: "i"}}, config)
			if err == nil {
				err = r.StartContainer(ctx, id)
			}
			if err != nil {
				t.Fatal(err)
			}
			ids[name] = id
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("two starts took %v", took)
		}
		time.Sleep(2 * time.Minute)
		if state(t, r, ids["short"]) != criv1.ContainerState_CONTAINER_EXITED ||
			state(t, r, ids["long"]) != criv1.ContainerState_CONTAINER_RUNNING {
			t.Error("the wrong container ended")
		}
		st, err := r.PodSandboxStatus(ctx, sb, false)
		if err != nil || st.Status.Network.Ip != "10.1.2.2" {
			t.Errorf("address %v, %v", st, err)
		}
		if err := r.StopContainer(ctx, ids["long"], 30); err != nil ||
			state(t, r, ids["long"]) != criv1.ContainerState_CONTAINER_EXITED {
			t.Errorf("stop: %v", err)
		}
		synctest.Wait()
		if len(events) < 3 {
			t.Errorf("%d events", len(events))
		}
		if err := r.RemovePodSandbox(ctx, sb); err != nil {
			t.Fatal(err)
		}
		if list, err := r.ListContainers(ctx, nil); err != nil || len(list) > 0 {
			t.Errorf("left: %v, %v", list, err)
		}
	})
}

// Every address is given once, and again after it was freed.
func TestPool(t *testing.T) {
	var p pool
	p.set(netip.MustParsePrefix("10.1.2.0/29"))
	seen := map[netip.Addr]bool{}
	for range 5 { // .2 to .6: not the network, the bridge and the broadcast
		a, err := p.take()
		if err != nil || seen[a] {
			t.Fatalf("%v twice, or %v", a, err)
		}
		seen[a] = true
	}
	if a, err := p.take(); err == nil {
		t.Fatalf("%v is beyond the last", a)
	}
	four := netip.MustParseAddr("10.1.2.4")
	p.free(four)
	if a, err := p.take(); err != nil || a != four {
		t.Errorf("%v, %v", a, err)
	}
}
