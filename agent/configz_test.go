package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/host"
)

// TestConfigz: a client that knows the kubelet's configuration alone reads ours.
func TestConfigz(t *testing.T) {
	cfg := config.Default()
	cfg.Kubeconfig, cfg.ClientCAFile, cfg.CgroupRoot = "/k", "/ca.crt", "/pods"
	cfg.RegisterWithTaints = []string{"a=b:NoSchedule"}
	cfg.ShutdownGracePeriodByPodPriority = []config.ShutdownGracePeriod{
		{Priority: 7, ShutdownGracePeriodSeconds: 9},
	}
	cfg.SystemReserved = map[string]string{"cpu": "1"}
	ids := int64(131072)
	cfg.UserNamespaces.IDsPerPod = &ids
	body, err := json.Marshal(kubeletConfig(&cfg))
	if err != nil {
		t.Fatal(err)
	}
	var k kubeletconfigv1beta1.KubeletConfiguration
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&k); err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	if k.Kind != "KubeletConfiguration" || k.APIVersion != kubeletconfigv1beta1.SchemeGroupVersion.String() {
		t.Errorf("it is %s of %s", k.Kind, k.APIVersion)
	}
	if k.MaxPods != 110 || k.EvictionHard["memory.available"] != "100Mi" || k.Port != 10250 ||
		k.CrashLoopBackOff.MaxContainerRestartPeriod.Duration != cfg.MaxContainerRestartPeriod.Duration ||
		!*k.Authentication.Webhook.Enabled || *k.Authentication.Anonymous.Enabled ||
		k.Authorization.Mode != "Webhook" ||
		k.Authentication.X509.ClientCAFile != "/ca.crt" || len(k.RegisterWithTaints) != 1 ||
		k.CgroupRoot != "/pods" ||
		len(k.ShutdownGracePeriodByPodPriority) != 1 || k.SystemReserved["cpu"] != "1" ||
		*k.UserNamespaces.IDsPerPod != ids {
		t.Errorf("it says %s", body)
	}
}

// TestConfigzHasAll: it shows what the agent's configuration has of the kubelet's, by its name.
func TestConfigzHasAll(t *testing.T) {
	own := jsonNames(reflect.TypeFor[config.Config]())
	theirs := jsonNames(reflect.TypeFor[kubeletconfigv1beta1.KubeletConfiguration]())
	shown := jsonNames(reflect.TypeFor[kubeletConfiguration]())
	n := 0
	for name := range own {
		if theirs[name] {
			n++
			if !shown[name] {
				t.Errorf("%s is not shown", name)
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d fields have the kubelet's names: they are not found", n)
	}
	cfg := config.Default()
	cfg.StaticPodURLHeader = map[string][]string{"Authorization": {"Bearer secret"}}
	cfg.FileCheckFrequency.Duration = 30 * time.Second
	got := kubeletConfig(&cfg)
	if h := got.StaticPodURLHeader["Authorization"]; len(h) != 1 || strings.Contains(h[0], "secret") ||
		got.FileCheckFrequency.Duration != 30*time.Second {
		t.Errorf("it says %v, %v", got.StaticPodURLHeader, got.FileCheckFrequency)
	}
}

func jsonNames(of reflect.Type) map[string]bool {
	out := map[string]bool{}
	for i := range of.NumField() {
		if name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			out[name] = true
		}
	}
	return out
}

// TestAllocatable: what is kept free for the node itself is not given to pods.
func TestAllocatable(t *testing.T) {
	facts := host.Facts{MemoryBytes: 4 << 30, DiskBytes: 1000}
	for name, tt := range map[string]struct {
		change func(c *config.Config)
		memory int64
		disk   int64
	}{
		"as upstream": {func(*config.Config) {}, 4<<30 - 100<<20, 900},
		"with reservation": {
			func(c *config.Config) { c.SystemReserved = map[string]string{"memory": "1Gi"} }, 3<<30 - 100<<20, 900,
		},
		"in percents": {
			func(c *config.Config) {
				c.EvictionHard = map[string]string{"memory.available": "25%", "nodefs.available": "300"}
			}, 3 << 30, 700,
		},
		"without thresholds": {func(c *config.Config) { c.EvictionHard = nil }, 4 << 30, 1000},
	} {
		cfg := config.Default()
		tt.change(&cfg)
		_, got := nodeCapacity(&cfg, facts)
		if of := memoryOfPods(&cfg, facts); of != tt.memory {
			t.Errorf("%s: an emptyDir in memory has %d bytes", name, of)
		}
		disk := got[corev1.ResourceEphemeralStorage]
		if got.Memory().Value() != tt.memory || disk.Value() != tt.disk {
			t.Errorf("%s: memory %v, disk %v; want %d, %d", name, got.Memory(), &disk, tt.memory, tt.disk)
		}
	}
}
