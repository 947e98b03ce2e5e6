package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/tests/bench/measure"
	"github.com/shoal-project/shoal/tests/harness"
)

const (
	// hogTime is how long requests are made, alone and beside the hogs; requestPause is
	// between two of them.
	hogTime      = 15 * time.Second
	requestPause = time.Millisecond
	// logsAtMost is what the log of a container may take: five files of 10 MiB, and for a
	// moment one more.
	logsAtMost = 60
)

// hogs is what stands beside a service: one pod that takes memory until it is ended for it,
// again and again, and one that writes to its log as fast as it can.
type hogs struct {
	alone, beside measure.Sample // requests, in ms
	logs          float64        // the most that the flood's logs took, in MiB
}

// hog measures a service alone and beside hogs, some times.
func (b *bench) hog(ctx context.Context, runs int) ([]row, error) {
	var alone, beside, times, logs measure.Sample
	for range runs {
		h, err := b.besideHogs(ctx)
		if err != nil {
			return nil, fmt.Errorf("hogs: %w", err)
		}
		alone, beside = append(alone, h.alone.Quantile(0.99)), append(beside, h.beside.Quantile(0.99))
		times, logs = append(times, h.beside.Quantile(0.99)/h.alone.Quantile(0.99)), append(logs, h.logs)
	}
	return []row{
		{"a service's requests, alone: 99 of 100 within", "", "", alone, "ms"},
		{"beside a log flood and one that takes memory", "", "", beside, "ms"},
		{"times as long", "1.2", "", times, ""},
		{"logs of the flood at most", fmt.Sprint(logsAtMost), "", logs, "MiB"},
	}, nil
}

func (b *bench) besideHogs(ctx context.Context) (h hogs, err error) {
	busybox, err := exec.LookPath("busybox") // of the machine: the cluster has the example image alone
	if err != nil {
		return h, fmt.Errorf("run `make setup`: %w", err)
	}
	if busybox, err = filepath.EvalSymlinks(busybox); err != nil {
		return h, err
	}
	pods := b.pods.Client.CoreV1().Pods(measure.Namespace)
	start := func(name string, asks, most corev1.ResourceList, command ...string) error {
		_, err := pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			Volumes: []corev1.Volume{{Name: "busybox", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: busybox}}}},
			Containers: []corev1.Container{{Name: "c", Image: "localhost/hello:1", Command: command,
				VolumeMounts: []corev1.VolumeMount{{Name: "busybox", MountPath: "/busybox", ReadOnly: true}},
				Resources:    corev1.ResourceRequirements{Requests: asks, Limits: most}}}}}, metav1.CreateOptions{})
		return err
	}
	running := func(name string) (out *corev1.Pod, err error) {
		err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, stepTimeout, true,
			func(ctx context.Context) (_ bool, err error) {
				out, err = pods.Get(ctx, name, metav1.GetOptions{})
				return err == nil && out.Status.Phase == corev1.PodRunning, err
			})
		return out, err
	}
	asks := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"),
		corev1.ResourceMemory: resource.MustParse("64Mi")}
	if err := start("service", asks, nil); err != nil {
		return h, err
	}
	service, err := running("service")
	if err != nil {
		return h, err
	}
	if h.alone, err = b.requests(ctx, service); err != nil {
		return h, err
	}
	if err := errors.Join(start("flood", nil, nil, "/busybox", "yes", "a line of a flood, as long as such lines are"),
		start("taker", nil, corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
			"/busybox", "sh", "-c", "while true; do /busybox tail /dev/zero; done")); err != nil {
		return h, err
	}
	flood, err := running("flood")
	if err != nil {
		return h, err
	}
	watched, stop := context.WithCancel(ctx)
	most := make(chan float64, 1)
	go func() { most <- b.logsOf(watched, flood) }()
	h.beside, err = b.requests(ctx, service)
	stop()
	h.logs = <-most
	if err != nil {
		return h, err
	}
	for _, name := range []string{"service", "flood"} {
		p, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return h, err
		}
		if s := p.Status.ContainerStatuses[0]; s.RestartCount > 0 {
			return h, fmt.Errorf("the container of %s was ended: %+v", name, s.LastTerminationState.Terminated)
		}
	}
	_, err = b.pods.DeleteAll(ctx)
	return h, err
}

// logsOf is the most that a pod's logs take until ctx ends, in MiB.
func (b *bench) logsOf(ctx context.Context, p *corev1.Pod) (most float64) {
	dir := filepath.Join(b.cluster.Dir, "pod-logs", p.Namespace+"_"+p.Name+"_"+string(p.UID))
	for ctx.Err() == nil {
		if bytes, _, err := beneath.Usage(context.Background(), dir); err == nil {
			most = max(most, float64(bytes)/(1<<20))
		}
		time.Sleep(20 * time.Millisecond)
	}
	return most
}

// requests has a process of the service's pod make requests, so that it is as hurried as the
// service and not as the machine's own processes: with those the hogs share the machine.
func (b *bench) requests(ctx context.Context, p *corev1.Pod) (out measure.Sample, err error) {
	group, err := b.groupOf(p)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-requests", p.Status.PodIP, "-group", group, "-netns", b.cluster.NetNS)
	cmd.Stderr = os.Stderr
	said, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("requests: %w", err)
	}
	return out, json.Unmarshal(said, &out)
}

// groupOf is the directory of a pod's control group that its CPU time is counted in.
func (b *bench) groupOf(p *corev1.Pod) (string, error) {
	groups, err := b.pods.Groups()
	if err != nil {
		return "", err
	}
	for _, g := range groups {
		if strings.Contains(g, string(p.UID)) {
			return g, nil
		}
	}
	return "", fmt.Errorf("pod %s has no group among %q", p.Name, groups)
}

// request makes requests one after the other, over one connection, and prints how long they
// took, in ms.
func request(ip, group, netns string) error {
	for _, file := range []string{group, strings.Replace(group, "/memory/", "/cpu/", 1)} {
		err := os.WriteFile(filepath.Join(file, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
		if err != nil {
			return err
		}
	}
	client := &http.Client{Timeout: stepTimeout, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = harness.Inside(netns, func() error {
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		}}}
	defer client.CloseIdleConnections()
	var out measure.Sample
	for end := time.Now().Add(hogTime); time.Now().Before(end); time.Sleep(requestPause) {
		begun := time.Now()
		resp, err := client.Get("http://" + net.JoinHostPort(ip, "8080") + "/")
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
		out = append(out, measure.Ms(time.Since(begun)))
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}
