package chaos

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/tests/harness"
)

const (
	workers  = 30
	kills    = 12
	perKill  = 1500 * time.Millisecond
	podLimit = 90 * time.Second
)

var cluster *harness.Cluster

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		log.Print(err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	var err error
	if cluster, err = harness.Start("chaos"); err != nil {
		return 1, err
	}
	return m.Run(), cluster.Stop()
}

// TestAgentKilledUnderLoad: kill -9 of the agent again and again, while 30
// pods at a time are made, end and are deleted. Every pod's exit code is the
// true one, and in the end no process, mount, interface, cgroup or file of
// them is left.
func TestAgentKilledUnderLoad(t *testing.T) {
	config, err := cluster.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	l := &load{client: kubernetes.NewForConfigOrDie(config)}
	harness.Eventually(t, "default service account", func() (bool, string) {
		_, err := l.client.CoreV1().ServiceAccounts("default").Get(context.Background(), "default", metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	})
	before := snapshot(t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { l.work(ctx, w) })
	}
	for range kills {
		time.Sleep(perKill + rand.N(perKill)) // to hit any step of what the load does
		cluster.Kill(t, "agent")
	}
	cancel()
	wg.Wait()
	t.Logf("%d kills, %d pods ended, %d pods deleted while running", kills, l.ended.Load(), l.deleted.Load())
	for _, e := range l.errs {
		t.Error(e)
	}
	if t.Failed() {
		t.Log(cluster.Logs())
	}
	var left []string
	harness.Eventually(t, "nothing is left", func() (bool, string) {
		left = left[:0]
		for _, s := range snapshot(t) {
			if !slices.Contains(before, s) {
				left = append(left, s)
			}
		}
		return len(left) == 0, strings.Join(left, "\n")
	})
}

// load makes pods until its context ends, and finishes those that it made.
type load struct {
	client         *kubernetes.Clientset
	ended, deleted atomic.Int64

	mu   sync.Mutex
	errs []error
}

func (l *load) work(ctx context.Context, worker int) {
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("p-%d-%d", worker, i)
		if err := l.pod(name, i%3 == 2, 1+(worker*31+i*7)%200); err != nil {
			l.mu.Lock()
			l.errs = append(l.errs, fmt.Errorf("%s: %w", name, err))
			l.mu.Unlock()
			return
		}
	}
}

// pod makes a pod that ends with code, or one that does not end, and deletes it.
func (l *load) pod(name string, forever bool, code int) error {
	ctx, cancel := context.WithTimeout(context.Background(), podLimit)
	defer cancel()
	pods := l.client.CoreV1().Pods("default")
	script := fmt.Sprintf("sleep 0.%d; exit %d", rand.N(10), code)
	if forever {
		script = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
	}
	grace := int64(2)
	if _, err := pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{Name: "c", Image: "localhost/busybox:1", Command: []string{"sh", "-c", script}}},
	}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	err := l.until(ctx, name, func(p *corev1.Pod) (bool, error) {
		if forever {
			return p.Status.Phase == corev1.PodRunning, nil
		}
		if p.Status.Phase != corev1.PodFailed {
			return false, nil
		}
		return true, hasCode(p, code)
	})
	if err != nil {
		return err
	}
	if forever {
		l.deleted.Add(1)
	} else {
		l.ended.Add(1)
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	err = l.until(ctx, name, func(*corev1.Pod) (bool, error) { return false, nil })
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func hasCode(p *corev1.Pod, code int) error {
	for _, s := range p.Status.ContainerStatuses {
		if end := s.State.Terminated; end != nil && int(end.ExitCode) == code && end.Reason == "Error" {
			return nil
		}
	}
	return fmt.Errorf("want exit code %d, have %+v", code, p.Status)
}

// until watches the pod until ok is true; a pod that is gone is a NotFound
// error.
func (l *load) until(ctx context.Context, name string, ok func(*corev1.Pod) (bool, error)) error {
	pods := l.client.CoreV1().Pods("default")
	var last *corev1.Pod
	for ctx.Err() == nil {
		p, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		last = p
		if done, err := ok(p); done || err != nil {
			return err
		}
		w, err := pods.Watch(ctx,
			metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(),
				ResourceVersion: p.ResourceVersion})
		if err != nil {
			return err
		}
		select {
		case <-w.ResultChan():
		case <-time.After(5 * time.Second): // a watch may end without telling
		case <-ctx.Done():
		}
		w.Stop()
	}
	return errors.Join(ctx.Err(), fmt.Errorf("last seen: deleted %v, %+v", last.DeletionTimestamp, last.Status))
}

// snapshot lists everything on the machine that belongs to a pod.
func snapshot(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{
		"run/containers/*", "run/containers/exits/*", "run/sandboxes/*", "run/crun/*", "run/runc/*",
		"agent/containers/*", "agent/sandboxes/*",
		"kubelet/pods/*", "pod-logs/*", "container-logs/*", "agent/checkpoint/pods/*", "agent/cni/state/*/10.*",
	} {
		files, err := filepath.Glob(filepath.Join(cluster.Dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
	}
	for _, pattern := range []string{"kubepods/pod*", "kubepods/*/pod*"} {
		groups, err := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", cluster.Name, pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, groups...)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(cluster.Dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		all = append(all, "mount "+m.Mountpoint)
	}
	links, err := cluster.Run("ip", "-o", "link")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(links) {
		all = append(all, "interface "+strings.Fields(line)[1])
	}
	out, _ := exec.Command("pgrep", "-af", "conmon.*"+cluster.Dir).Output()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "/conmon ") {
			all = append(all, "process "+strings.TrimSpace(line))
		}
	}
	return all
}
