package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/tests/bench/measure"
	"github.com/shoal-project/shoal/tests/upstream"
)

// The step volumes gives both systems one storage driver, whose volumes are attached
// to nodes, and upstream's sidecars, which make and attach them. Neither driver nor
// sidecars count in any figure of CPU and memory.
const (
	volumeDriver = "bench.csi.test"
	volumeClass  = "bench"
	byOne        = 8
	manyClaims   = 50
	moves        = 4
	// idleVolumes are mounted by fewer pods: what a pod weighs is measured elsewhere.
	idleVolumes = 100
	perPod      = 10
)

// volumeSidecars are those that the driver needs.
var volumeSidecars = []string{"csi-provisioner", "csi-attacher"}

// buildVolumes makes the driver and its sidecars, if they are needed. The rig of
// conformance has the latter too.
func buildVolumes(ctx context.Context, cache, bin string, steps []step) error {
	if !slices.ContainsFunc(steps, func(s step) bool { return s.name == "volumes" }) {
		return nil
	}
	if err := upstream.BuildSidecars(ctx, filepath.Join(bin, "conformance"), "", volumeSidecars...); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, upstream.GoProgram(), "build", "-ldflags", "-s -w", "-o",
		filepath.Join(cache, "csidriver"), "./tests/peerbench/csidriver")
	cmd.Stdout, cmd.Stderr, cmd.Dir = os.Stdout, os.Stderr, filepath.Dir(bin)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build the storage driver: %w", err)
	}
	return nil
}

// volumes measures on clusters of its own.
func (b *bench) volumes(ctx context.Context, _ *cluster) error {
	return errors.Join(
		b.with(ctx, oneNode, func(ctx context.Context, c *cluster) error {
			return b.stored(ctx, c, []string{nodeOne}, b.claimed)
		}),
		b.with(ctx, twoNodes, func(ctx context.Context, c *cluster) error {
			return b.stored(ctx, c, []string{nodeOne, nodeTwo}, b.moved)
		}))
}

// stored starts the driver on some nodes, calls f, and has all pods and volumes go.
func (b *bench) stored(ctx context.Context, c *cluster, nodes []string, f func(context.Context, *claimer) error) error {
	v := &claimer{cluster: c, volumes: filepath.Join(c.dir, "bench-volumes")}
	if err := os.MkdirAll(v.volumes, 0o755); err != nil {
		return err
	}
	var socket string
	for i, node := range nodes {
		kubelet := c.kubeletDir(i)
		endpoint := filepath.Join(kubelet, "plugins", volumeDriver, "csi.sock")
		err := c.onNode(i, node+"-csidriver", filepath.Join(b.options.cache, "csidriver"), "--name", volumeDriver,
			"--node", node, "--volumes", v.volumes, "--endpoint", endpoint, "--registry",
			filepath.Join(kubelet, "plugins_registry"))
		if err != nil {
			return err
		}
		if i == 0 {
			socket = endpoint
		}
	}
	for _, name := range volumeSidecars {
		err := c.onNode(0, name, filepath.Join(b.options.bin, "conformance", "csi", name), "--csi-address", socket,
			"--kubeconfig", c.kubeconfig, "--worker-threads", "100", "--kube-api-qps", "1000", "--kube-api-burst", "2000")
		if err != nil {
			return err
		}
	}
	if err := v.install(ctx, nodes); err != nil {
		return err
	}
	return errors.Join(f(ctx, v), v.clean(ctx))
}

// claimed measures claims of a node: one by one, at once, and while nobody asks.
func (b *bench) claimed(ctx context.Context, v *claimer) error {
	if err := b.claimsByOne(ctx, v); err != nil {
		return err
	}
	if err := v.clean(ctx); err != nil {
		return err
	}
	if err := b.claimsAtOnce(ctx, v); err != nil {
		return err
	}
	if _, err := v.run(ctx, idleVolumes/perPod, perPod); err != nil {
		return err
	}
	if err := sleep(ctx, afterEffects); err != nil {
		return err
	}
	when := fmt.Sprintf("%d volumes mounted by %d pods", idleVolumes, idleVolumes/perPod)
	return errors.Join(b.idleCPU(ctx, v.cluster, when), b.weigh(v.cluster, when, true))
}

func (b *bench) claimsByOne(ctx context.Context, v *claimer) error {
	first, err := v.run(ctx, 1, 1)
	if err != nil {
		return err
	}
	b.record.cost("first claim, created until its pod runs", "s", first.Seconds())
	var took measure.Sample
	for range byOne {
		if err := sleep(ctx, pauseBetween); err != nil {
			return err
		}
		d, err := v.run(ctx, 1, 1)
		if err != nil {
			return err
		}
		took = append(took, d.Seconds())
	}
	b.record.cost("a claim, created until its pod runs, one by one", "s", took.Median())
	b.record.cost("a claim, created until its pod runs, slowest", "s", took.Max())
	return nil
}

func (b *bench) claimsAtOnce(ctx context.Context, v *claimer) error {
	what := fmt.Sprintf("%d claims at once", manyClaims)
	before, err := v.used()
	if err != nil {
		return err
	}
	took, err := v.run(ctx, manyClaims, 1)
	if err != nil {
		return err
	}
	after, err := v.used()
	if err != nil {
		return err
	}
	b.record.cost(what+", created until their pods run", "s", took.Seconds())
	b.record.cost(what+": CPU", "ms a claim", measure.Ms(after-before)/manyClaims)
	start := time.Now()
	if err := v.free(ctx); err != nil {
		return err
	}
	b.record.cost(fmt.Sprintf("%d pods with claims deleted, until their volumes are detached", manyClaims), "s",
		time.Since(start).Seconds())
	return v.clean(ctx)
}

// moved measures a pod that goes from one node to the other and back with its volume:
// from the call that deletes it until its successor runs, which is created when the
// first is gone.
func (b *bench) moved(ctx context.Context, v *claimer) error {
	const claim = "moving"
	if err := v.claim(ctx, claim); err != nil {
		return err
	}
	create := func(i int) error {
		pod := newClaimant("move", fmt.Sprintf("move-%d", i), []string{claim})
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: []string{nodeOne, nodeTwo}[i%2]}
		return v.create(ctx, pod)
	}
	if err := v.follow(ctx, "move", func() error { return create(0) },
		func(_ watch.EventType, pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }); err != nil {
		return err
	}
	var took measure.Sample
	for i := range moves {
		old, next := fmt.Sprintf("move-%d", i), fmt.Sprintf("move-%d", i+1)
		var failed error
		start := time.Now()
		err := v.follow(ctx, "move", func() error { return v.remove(ctx, old) },
			func(event watch.EventType, pod *corev1.Pod) bool {
				if event == watch.Deleted && pod.Name == old {
					failed = create(i + 1)
				}
				return failed != nil || pod.Name == next && pod.Status.Phase == corev1.PodRunning
			})
		if err := errors.Join(err, failed); err != nil {
			return fmt.Errorf("move %d: %w", i+1, err)
		}
		took = append(took, time.Since(start).Seconds())
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	b.record.cost("a pod moved to another node with its volume", "s", took.Median())
	b.record.cost("a pod moved to another node with its volume, slowest", "s", took.Max())
	return nil
}

// claimer makes claims and pods that mount them.
type claimer struct {
	*cluster
	volumes string // where the driver has them
	made    int
}

// install makes what the API has to know of the driver, and waits until the nodes have it.
func (v *claimer) install(ctx context.Context, nodes []string) error {
	_, err := v.client.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: volumeDriver},
		Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(true),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = v.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: volumeClass},
		Provisioner:       volumeDriver,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for _, name := range nodes {
		err := poll(ctx, time.Minute, func() error {
			node, err := v.client.StorageV1().CSINodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, d := range node.Spec.Drivers {
				if d.Name == volumeDriver {
					return nil
				}
			}
			return fmt.Errorf("node %s does not have driver %s", name, volumeDriver)
		})
		if err != nil {
			return err
		}
	}
	return sleep(ctx, afterEffects/3)
}

func (v *claimer) claim(ctx context.Context, name string) error {
	_, err := v.client.CoreV1().PersistentVolumeClaims(measure.Namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(volumeClass),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	return err
}

// newClaimant is a pod that mounts claims.
func newClaimant(group, name string, claims []string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"group": group}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "localhost/hello:1"}}},
	}
	for i, claim := range claims {
		volume := fmt.Sprintf("v%d", i)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts,
			corev1.VolumeMount{Name: volume, MountPath: "/volumes/" + volume})
	}
	return pod
}

func (v *claimer) create(ctx context.Context, pod *corev1.Pod) error {
	_, err := v.client.CoreV1().Pods(measure.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

func (v *claimer) remove(ctx context.Context, pod string) error {
	return v.client.CoreV1().Pods(measure.Namespace).Delete(ctx, pod, metav1.DeleteOptions{})
}

// follow is measure's.
func (v *claimer) follow(ctx context.Context, group string, start func() error,
	seen func(watch.EventType, *corev1.Pod) bool) error {
	pods := &measure.Pods{Client: v.client}
	return pods.Follow(ctx, group, start,
		func(e watch.EventType, pod *corev1.Pod, _ time.Time) bool { return seen(e, pod) })
}

// run creates n pods at once, each with claims of its own, and returns the time until
// all run.
func (v *claimer) run(ctx context.Context, n, claims int) (time.Duration, error) {
	v.made++
	group := fmt.Sprintf("claims-%d", v.made)
	var start time.Time
	running := map[string]bool{}
	err := v.follow(ctx, group, func() error {
		start = time.Now()
		_, err := parallel(ctx, n, writers, func(i int) error {
			pod := fmt.Sprintf("%s-%d", group, i)
			var names []string
			for k := range claims {
				names = append(names, fmt.Sprintf("%s-%d", pod, k))
				if err := v.claim(ctx, names[k]); err != nil {
					return err
				}
			}
			return v.create(ctx, newClaimant(group, pod, names))
		})
		return err
	}, func(_ watch.EventType, pod *corev1.Pod) bool {
		if pod.Status.Phase == corev1.PodRunning {
			running[pod.Name] = true
		}
		return len(running) == n
	})
	if err != nil {
		return 0, fmt.Errorf("%d of %d pods with claims run: %w", len(running), n, err)
	}
	return time.Since(start), nil
}

// free deletes all pods, and returns when the driver has no volume on a node, which no
// event tells.
func (v *claimer) free(ctx context.Context) error {
	err := v.client.CoreV1().Pods(measure.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	if err != nil {
		return err
	}
	return v.gone(ctx, "*/node")
}

// clean deletes all pods, then all claims, and returns when the driver has no volume
// left. Sidecars wait for seconds before they delete what was attached at first.
func (v *claimer) clean(ctx context.Context) error {
	if err := v.free(ctx); err != nil {
		return err
	}
	err := v.client.CoreV1().PersistentVolumeClaims(measure.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{})
	if err != nil {
		return err
	}
	return v.gone(ctx, "*")
}

// gone waits until the driver's directory has nothing that matches.
func (v *claimer) gone(ctx context.Context, pattern string) error {
	for deadline := time.Now().Add(cleanLimit); ; {
		left, err := filepath.Glob(filepath.Join(v.volumes, pattern))
		if err != nil || len(left) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d volumes are left after %s, as %s", len(left), cleanLimit, left[0])
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// cleanLimit bounds the wait for volumes to go.
const cleanLimit = 3 * time.Minute
