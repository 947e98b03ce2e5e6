package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/tests/bench/measure"
)

// The API's load: ConfigMaps, which no controller acts on.
const (
	apiWorkers  = 16
	apiObjects  = 2000
	apiLists    = 60 // of all objects
	apiWatchers = 20
	apiChanges  = 500 // that each watcher sees
	apiPayload  = 1000
	sentKey     = "sent" // when a watched change was asked for
)

// load calls an API from many workers.
type load struct {
	*bench
	cluster *cluster
	client  kubernetes.Interface
	ns, how string
}

// api measures the throughput and latency of the API, and what a request costs.
func (b *bench) api(ctx context.Context, c *cluster) error {
	for name, contentType := range map[string]string{"protobuf": protobuf, "JSON": asJSON} {
		client, err := kubernetes.NewForConfig(encoded(c.config, contentType))
		if err != nil {
			return err
		}
		l := &load{bench: b, cluster: c, client: client, ns: "api-" + strings.ToLower(name), how: name}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.ns}}
		if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := l.all(ctx); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (l *load) all(ctx context.Context) error {
	maps := l.client.CoreV1().ConfigMaps(l.ns)
	if err := l.op(ctx, "create", apiObjects, func(i int) error {
		_, err := maps.Create(ctx, l.object(i), metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	if err := l.op(ctx, "get", apiObjects, func(i int) error {
		_, err := maps.Get(ctx, objectName(i), metav1.GetOptions{})
		return err
	}); err != nil {
		return err
	}
	if err := l.op(ctx, "update", apiObjects, func(i int) error {
		o := l.object(i)
		o.Data["changed"] = "yes"
		_, err := maps.Update(ctx, o, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return err
	}
	if err := l.op(ctx, fmt.Sprintf("list %d", apiObjects), apiLists, func(int) error {
		// not decoded: the server's speed counts
		_, err := l.client.CoreV1().RESTClient().Get().Namespace(l.ns).Resource("configmaps").Do(ctx).Raw()
		return err
	}); err != nil {
		return err
	}
	if err := l.watch(ctx); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	return l.op(ctx, "delete", apiObjects, func(i int) error {
		return maps.Delete(ctx, objectName(i), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	})
}

func objectName(i int) string { return "object-" + strconv.Itoa(i) }

func (l *load) object(i int) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: objectName(i), Namespace: l.ns, Labels: map[string]string{"app": "load"}},
		Data:       map[string]string{"payload": strings.Repeat("x", apiPayload)},
	}
}

// op measures n calls.
func (l *load) op(ctx context.Context, what string, n int, call func(int) error) error {
	before, err := l.cluster.used()
	if err != nil {
		return err
	}
	start := time.Now()
	times, err := parallel(ctx, n, apiWorkers, call)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	took := time.Since(start)
	after, err := l.cluster.used()
	if err != nil {
		return err
	}
	what = fmt.Sprintf("API %s, %s", what, l.how)
	l.record.rate(what, "1/s", float64(n)/took.Seconds())
	l.record.cost(what+": p99", "ms", times.Quantile(0.99))
	l.record.cost(what+": CPU of the servers", "ms each", measure.Ms(after-before)/float64(n))
	return nil
}

// parallel calls f for 0 to n-1 from some workers, and returns the time of
// each call in ms. The first error ends it.
func parallel(ctx context.Context, n, workers int, f func(int) error) (measure.Sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	times := make(measure.Sample, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(workers, n) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				start := time.Now()
				if err := f(i); err != nil {
					cancel(err)
					return
				}
				times[i] = measure.Ms(time.Since(start))
			}
		})
	}
	wg.Wait()
	return times, context.Cause(ctx)
}

// watch measures how fast changes reach many watchers.
func (l *load) watch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	list, err := l.client.CoreV1().ConfigMaps(l.ns).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	before, err := l.cluster.used()
	if err != nil {
		return err
	}
	delays := make([]measure.Sample, apiWatchers)
	errs := make([]error, apiWatchers+1)
	var wg sync.WaitGroup
	var open sync.WaitGroup
	open.Add(apiWatchers)
	for i := range apiWatchers {
		wg.Go(func() { delays[i], errs[i] = l.follow(ctx, list.ResourceVersion, open.Done) })
	}
	open.Wait()
	start := time.Now()
	_, errs[apiWatchers] = parallel(ctx, apiChanges, apiWorkers, func(i int) error {
		o := l.object(i)
		o.Data[sentKey] = strconv.FormatInt(time.Now().UnixNano(), 10)
		_, err := l.client.CoreV1().ConfigMaps(l.ns).Update(ctx, o, metav1.UpdateOptions{})
		return err
	})
	if errs[apiWatchers] != nil {
		cancel()
	}
	wg.Wait()
	took := time.Since(start)
	after, err := l.cluster.used()
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	var all measure.Sample
	for _, d := range delays {
		all = append(all, d...)
	}
	what := fmt.Sprintf("API watch, %d watchers, %s", apiWatchers, l.how)
	l.record.rate(what, "events/s", float64(len(all))/took.Seconds())
	l.record.cost(what+": p99 from the call to the event", "ms", all.Quantile(0.99))
	l.record.cost(what+": CPU of the servers", "ms an event", measure.Ms(after-before)/float64(len(all)))
	return nil
}

// follow watches until it has seen all changes, and returns their delays in ms.
func (l *load) follow(ctx context.Context, from string, opened func()) (measure.Sample, error) {
	w, err := l.client.CoreV1().ConfigMaps(l.ns).Watch(ctx, metav1.ListOptions{ResourceVersion: from})
	opened()
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	var delays measure.Sample
	for len(delays) < apiChanges {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d changes seen: %w", len(delays), apiChanges, ctx.Err())
		case e, ok := <-w.ResultChan():
			if !ok {
				return nil, errors.New("the server ended a watch")
			}
			o, isMap := e.Object.(*corev1.ConfigMap)
			if !isMap {
				return nil, fmt.Errorf("watch: %v", e.Object)
			}
			if sent, err := strconv.ParseInt(o.Data[sentKey], 10, 64); err == nil {
				delays = append(delays, measure.Ms(time.Since(time.Unix(0, sent))))
			}
		}
	}
	return delays, nil
}
