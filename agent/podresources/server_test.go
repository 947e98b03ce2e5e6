package podresources

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	podresourcesv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

// served is a connection with a server with one pod.
func served(t *testing.T) (*grpc.ClientConn, *Server) {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init"},
			{Name: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}},
		Containers: []corev1.Container{{Name: "main"}},
	}}
	device := func(id string) []*podresourcesv1.ContainerDevices {
		return []*podresourcesv1.ContainerDevices{{ResourceName: "vendor.example/dev", DeviceIds: []string{id}}}
	}
	s := &Server{
		Dir:  filepath.Join(t.TempDir(), "pod-resources"),
		Pods: func() []*corev1.Pod { return []*corev1.Pod{p} },
		Find: func(namespace, name string) (*corev1.Pod, bool) { return p, namespace == "ns" && name == "p" },
		Devices: func(uid types.UID, container string) []*podresourcesv1.ContainerDevices {
			return device(string(uid) + " " + container)
		},
		CPUs: func(_ types.UID, container string) []int64 {
			if container == "sidecar" {
				return nil
			}
			return []int64{2, 3}
		},
		Memory: func(_ types.UID, container string) []*podresourcesv1.ContainerMemory {
			if container == "sidecar" {
				return nil
			}
			return []*podresourcesv1.ContainerMemory{{MemoryType: "memory", Size: 4096}}
		},
		Requests: metrics.NewAgent().PodResources,
		Calls:    metrics.NewAgent().PodResourceCalls,
		Allocatable: func() *podresourcesv1.AllocatableResourcesResponse {
			return &podresourcesv1.AllocatableResourcesResponse{Devices: device("all"), CpuIds: []int64{1, 2, 3}}
		},
		Claims: func(_ *corev1.Pod, c *corev1.Container) []*podresourcesv1.DynamicResource {
			if c.Name != "main" {
				return nil
			}
			return []*podresourcesv1.DynamicResource{{ClaimName: "c", ClaimNamespace: "ns"}}
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	conn, err := grpc.NewClient("unix:"+filepath.Join(s.Dir, socketName),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(filepath.Join(s.Dir, socketName)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket of a server that ended: %v", err)
		}
	})
	return conn, s
}

// All containers that run as long as the pod are told of, with what they have.
func TestAnswers(t *testing.T) {
	conn, s := served(t)
	client := podresourcesv1.NewPodResourcesListerClient(conn)
	want := &podresourcesv1.PodResources{}
	if err := prototext.Unmarshal([]byte(`
name: "p" namespace: "ns"
containers: {name: "sidecar" devices: {resource_name: "vendor.example/dev" device_ids: "u sidecar"}}
containers: {
  name: "main"
  devices: {resource_name: "vendor.example/dev" device_ids: "u main"}
  cpu_ids: 2 cpu_ids: 3
  memory: {memory_type: "memory" size: 4096}
  dynamic_resources: {claim_name: "c" claim_namespace: "ns"}
}`), want); err != nil {
		t.Fatal(err)
	}
	list, err := client.List(t.Context(), &podresourcesv1.ListPodResourcesRequest{})
	if err != nil || len(list.GetPodResources()) != 1 || !proto.Equal(list.GetPodResources()[0], want) {
		t.Errorf("%v: %v", list, err)
	}
	got, err := client.Get(t.Context(), &podresourcesv1.GetPodResourcesRequest{PodName: "p", PodNamespace: "ns"})
	if err != nil || !proto.Equal(got.GetPodResources(), want) {
		t.Errorf("%v: %v", got, err)
	}
	_, err = client.Get(t.Context(), &podresourcesv1.GetPodResourcesRequest{PodName: "q", PodNamespace: "ns"})
	if err == nil || !strings.Contains(err.Error(), "pod q in namespace ns not found") {
		t.Error(err)
	}
	all, err := client.GetAllocatableResources(t.Context(), &podresourcesv1.AllocatableResourcesRequest{})
	if err != nil || len(all.GetDevices()) != 1 || all.GetDevices()[0].GetDeviceIds()[0] != "all" {
		t.Errorf("%v: %v", all, err)
	}
	older, err := podresourcesv1alpha1.NewPodResourcesListerClient(conn).List(t.Context(),
		&podresourcesv1alpha1.ListPodResourcesRequest{})
	if err != nil || len(older.GetPodResources()) != 1 || len(older.GetPodResources()[0].GetContainers()) != 1 ||
		older.GetPodResources()[0].GetContainers()[0].GetDevices()[0].GetDeviceIds()[0] != "u main" {
		t.Errorf("%v: %v", older, err)
	}
	var counted strings.Builder
	page := metrics.NewPage(&counted)
	s.Requests.Show(page)
	for _, method := range []string{"List", "Get", "GetAllocatableResources"} {
		s.Calls[method].Requests.Show(page)
		s.Calls[method].Errors.Show(page)
	}
	if err := page.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{server_api_version="v1"} 4`, `{server_api_version="v1alpha1"} 1`,
		`requests_list{server_api_version="v1"} 1`, `requests_get_allocatable{server_api_version="v1"} 1`,
		`requests_get{server_api_version="v1"} 2`, `errors_get{server_api_version="v1"} 1`} {
		if got := counted.String(); !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	st, err := os.Lstat(filepath.Join(s.Dir, socketName))
	if err != nil || st.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("%v %v", st, err)
	}
	if st, err = os.Lstat(s.Dir); err != nil || st.Mode().Perm()&0o027 != 0 {
		t.Errorf("%v %v", st, err)
	}
}

// Who asks too often is refused.
func TestLimit(t *testing.T) {
	intercept := limited(rate.NewLimiter(0, 2), nil, nil)
	answer := func(context.Context, any) (any, error) { return "answer", nil }
	for i := range 4 {
		got, err := intercept(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/v1.PodResourcesLister/List"}, answer)
		switch {
		case i < 2 && (err != nil || got != "answer"):
			t.Errorf("request %d: %v", i, err)
		case i >= 2 && status.Code(err) != codes.ResourceExhausted:
			t.Errorf("request %d: %v, %v", i, got, err)
		}
	}
}

// A connection that says nothing, and one that says too much, do no harm.
func TestOddClients(t *testing.T) {
	conn, s := served(t)
	client := podresourcesv1.NewPodResourcesListerClient(conn)
	if _, err := client.List(t.Context(), &podresourcesv1.ListPodResourcesRequest{}); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Dial("unix", filepath.Join(s.Dir, socketName))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, err = client.Get(t.Context(), &podresourcesv1.GetPodResourcesRequest{PodName: strings.Repeat("x", maxRequest)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
}
