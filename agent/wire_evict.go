package main

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/evict"
	"github.com/shoal-project/shoal/agent/pod/launch"
	podrecord "github.com/shoal-project/shoal/agent/record"
)

// evictionPeriod is how often pods with a limit of their local storage are measured.
const evictionPeriod = 10 * time.Second

// newStorage ends pods that take more local storage than they are limited to.
func newStorage(b base, p *podParts) *evict.Storage {
	return &evict.Storage{
		Pods:    p.pods.Active,
		Changed: p.limits,
		Measure: func(ctx context.Context, obj *corev1.Pod) (evict.Use, error) { return localUse(ctx, b, p, obj) },
		Evict: func(obj *corev1.Pod, message string) {
			b.events.Event(obj, "", corev1.EventTypeWarning, evict.Reason, message)
			v := podrecord.Verdict{Phase: corev1.PodFailed, Reason: evict.Reason, Message: message}
			p.pods.Evict(obj.UID, v, nil, 1)
		},
		Period: evictionPeriod,
		Log:    b.log,
	}
}

// localUse is the local storage that a pod takes.
func localUse(ctx context.Context, b base, p *podParts, obj *corev1.Pod) (evict.Use, error) {
	use := evict.Use{Containers: map[string]int64{}, Volumes: map[string]int64{}}
	list, err := b.runtime.ListContainerStats(ctx, &criv1.ContainerStatsFilter{
		LabelSelector: map[string]string{launch.LabelPodUID: string(obj.UID)}})
	if err != nil {
		return use, err
	}
	for _, c := range list {
		name := c.GetAttributes().GetLabels()[launch.LabelContainerName]
		use.Containers[name] += int64(c.GetWritableLayer().GetUsedBytes().GetValue())
	}
	err = nil
	podrecord.EachContainer(obj, func(c *corev1.Container) {
		bytes, e := usage(ctx, filepath.Join(p.pods.Host.LogDir(obj), c.Name))
		use.Containers[c.Name] += bytes
		err = errors.Join(err, e)
	})
	for i := range obj.Spec.Volumes {
		v := &obj.Spec.Volumes[i]
		if v.EmptyDir == nil {
			continue
		}
		path, e := p.volumes.Path(obj, v.Name)
		if e != nil {
			continue // not made yet
		}
		bytes, e := usage(ctx, path)
		err = errors.Join(err, e)
		use.Volumes[v.Name] = bytes
		if v.EmptyDir.Medium == corev1.StorageMediumDefault {
			use.Disk += bytes
		}
	}
	return use, err
}

// usage is what lies below a directory, nothing where there is none.
func usage(ctx context.Context, dir string) (int64, error) {
	bytes, _, err := beneath.Usage(ctx, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return bytes, err
}
