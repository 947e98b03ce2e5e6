package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/tests/fleet/history"
)

const (
	// registerTime is how long one register is used: the judge's search grows with
	// the operations that have no answer.
	registerTime = 15 * time.Second
	judgeTime    = time.Minute
	// askTime bounds a request; some writes need seven seconds to learn that the
	// store's leader has died.
	askTime   = 10 * time.Second
	clients   = 4
	namespace = "chaos"
	setLabel  = "of-the-set"
)

// apiLoad writes and reads objects through all coordinators while they suffer, and
// knows afterwards what must be there.
type apiLoad struct {
	coordinators []kubernetes.Interface // each asked by itself
	any          kubernetes.Interface   // whichever answers
	store        cache.Store            // what a watch has told of the set

	value    atomic.Int64 // the last one that was given out: values are unique
	register *history.Register
	number   int // of the register
	verdicts []string
	answered atomic.Int64
	unknown  atomic.Int64
	added    sync.Map // names of the set's elements that were acknowledged
	adds     atomic.Int64
}

// dialIn opens connections in a network namespace, to the first of addresses that
// answers.
func dialIn(namespace string, addresses ...string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (conn net.Conn, err error) {
		// Sockets belong to the namespace of the thread that makes them. A thread that
		// does not get back is not unlocked, and ends with its goroutine.
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			var home, there netns.NsHandle
			if home, err = netns.Get(); err != nil {
				return
			}
			defer home.Close()
			if there, err = netns.GetFromName(namespace); err != nil {
				return
			}
			defer there.Close()
			if err = netns.Set(there); err != nil {
				return
			}
			var errs []error
			for _, a := range addresses {
				d := net.Dialer{Timeout: 2 * time.Second}
				var e error
				if conn, e = d.DialContext(ctx, network, a); e == nil {
					errs = nil
					break
				}
				errs = append(errs, e)
			}
			err = errors.Join(errs...)
			if netns.Set(home) == nil {
				runtime.UnlockOSThread()
			}
		}()
		<-done
		return conn, err
	}
}

// clientOf asks the first of addresses that answers; a time-out of 0 is none.
func clientOf(base *rest.Config, timeout time.Duration, addresses ...string) (kubernetes.Interface, error) {
	c := rest.CopyConfig(base)
	c.Host, c.Timeout, c.QPS = "https://"+addresses[0], timeout, -1
	c.Dial = dialIn(lan, addresses...)
	// A connection for each request that is under way: one that has died costs
	// one request.
	c.NextProtos = []string{"http/1.1"}
	c.ServerName = "kubernetes.default.svc" // the address is whose turn it is
	return kubernetes.NewForConfig(c)
}

// newLoad makes clients of the coordinators at addresses, each with its port.
func newLoad(ctx context.Context, kubeconfig []byte, addresses []string) (*apiLoad, error) {
	base, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	l := &apiLoad{}
	for _, a := range addresses {
		c, err := clientOf(base, askTime, a)
		if err != nil {
			return nil, err
		}
		l.coordinators = append(l.coordinators, c)
	}
	if l.any, err = clientOf(base, askTime, addresses...); err != nil {
		return nil, err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := l.any.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	watcher, err := clientOf(base, 0, addresses...)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(watcher, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = setLabel }))
	l.store = factory.Core().V1().ConfigMaps().Informer().GetStore()
	factory.Start(ctx.Done())
	return l, nil
}

// run writes and reads until ctx ends.
func (l *apiLoad) run(ctx context.Context, seed uint64) error {
	var errs error
	for ctx.Err() == nil {
		if err := l.begin(ctx); err != nil {
			if ctx.Err() != nil {
				break
			}
			errs = err // the next one may be made
			continue
		}
		end, cancel := context.WithTimeout(ctx, registerTime)
		var wg sync.WaitGroup
		for n := range clients {
			r := rand.New(rand.NewPCG(seed, uint64(l.number*clients+n)))
			wg.Go(func() { l.client(end, n, r) })
		}
		wg.Wait()
		cancel()
		l.judge()
		errs = nil
	}
	return errs
}

func (l *apiLoad) name() string { return fmt.Sprintf("register-%d", l.number) }

// begin makes the next register, which holds 0.
func (l *apiLoad) begin(ctx context.Context) error {
	l.number++
	l.register = &history.Register{}
	_, err := l.any.CoreV1().ConfigMaps(namespace).Create(ctx, holding(l.name(), 0), metav1.CreateOptions{})
	if err != nil {
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return err
}

func holding(name string, value int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"v": fmt.Sprint(value)}}
}

// client is one of those that use the register, until ctx ends.
func (l *apiLoad) client(ctx context.Context, n int, r *rand.Rand) {
	var last *corev1.ConfigMap // as it was read last
	for ctx.Err() == nil {
		maps := l.coordinators[r.IntN(len(l.coordinators))].CoreV1().ConfigMaps(namespace)
		// What was begun is waited for: ctx's end would make its outcome unknown.
		ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
		o := history.Op{Client: n, Begin: time.Now()}
		var err error
		switch kind := r.IntN(10); {
		case kind < 4:
			o.Kind = history.Read
			last, err = l.read(ask, maps, kind == 0)
			if err == nil {
				_, err = fmt.Sscan(last.Data["v"], &o.Value)
			} else {
				last = nil
			}
		case kind < 6 || last == nil:
			o.Kind, o.Value = history.Write, int(l.value.Add(1))
			_, err = maps.Update(ask, holding(l.name(), o.Value), metav1.UpdateOptions{})
		case kind < 9:
			o.Kind, o.Value = history.Swap, int(l.value.Add(1))
			fmt.Sscan(last.Data["v"], &o.Old)
			next := holding(l.name(), o.Value)
			next.ResourceVersion, last = last.ResourceVersion, nil
			_, err = maps.Update(ask, next, metav1.UpdateOptions{})
			if apierrors.IsConflict(err) {
				o.Refused, err = true, nil
			}
		default:
			cancel()
			l.add(ctx, r)
			continue
		}
		o.End = time.Now()
		cancel()
		switch {
		case err == nil:
			l.answered.Add(1)
			l.register.Note(o)
		case o.Kind != history.Read:
			l.unknown.Add(1)
			o.Unknown = true
			l.register.Note(o)
		}
		pause := time.Duration(20+r.IntN(60)) * time.Millisecond
		if err != nil {
			pause = 500 * time.Millisecond
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// read reads the register, by a list that the watch cache may answer if listed.
func (l *apiLoad) read(ctx context.Context, maps interface {
	Get(context.Context, string, metav1.GetOptions) (*corev1.ConfigMap, error)
	List(context.Context, metav1.ListOptions) (*corev1.ConfigMapList, error)
}, listed bool) (*corev1.ConfigMap, error) {
	if !listed {
		return maps.Get(ctx, l.name(), metav1.GetOptions{})
	}
	list, err := maps.List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", l.name()).String()})
	if err != nil {
		return nil, err
	}
	if len(list.Items) == 0 { // it was made before anybody reads: no value explains this
		return holding(l.name(), -1), nil
	}
	return &list.Items[0], nil
}

// add adds an element to the set; what is acknowledged has to stay.
func (l *apiLoad) add(ctx context.Context, r *rand.Rand) {
	name := fmt.Sprintf("element-%d", l.adds.Add(1))
	maps := l.coordinators[r.IntN(len(l.coordinators))].CoreV1().ConfigMaps(namespace)
	m := holding(name, 0)
	m.Labels = map[string]string{setLabel: "yes"}
	ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
	defer cancel()
	if _, err := maps.Create(ask, m, metav1.CreateOptions{}); err == nil {
		l.added.Store(name, true)
	}
}

func (l *apiLoad) judge() {
	switch yes, known := l.register.Linearizable(judgeTime); {
	case !known:
		l.verdicts = append(l.verdicts,
			fmt.Sprintf("%s: not judged within %s, %d operations", l.name(), judgeTime, l.register.Len()))
	case !yes:
		l.verdicts = append(l.verdicts, fmt.Sprintf("%s: NOT linearizable, %d operations", l.name(), l.register.Len()))
	}
}

// result is for the time after run: what is wrong is an error.
func (l *apiLoad) result(ctx context.Context) (string, error) {
	there := map[string]bool{}
	list, err := l.any.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{LabelSelector: setLabel})
	if err != nil {
		return "", err
	}
	for _, m := range list.Items {
		there[m.Name] = true
	}
	var lost []string
	acknowledged := 0
	l.added.Range(func(name, _ any) bool {
		acknowledged++
		if !there[name.(string)] {
			lost = append(lost, name.(string))
		}
		return true
	})
	told := fmt.Sprintf("%d registers, %d operations answered, %d writes without an answer; %d elements added, the set has %d",
		l.number, l.answered.Load(), l.unknown.Load(), acknowledged, len(list.Items))
	var errs []error
	if len(lost) > 0 {
		errs = append(errs, fmt.Errorf("acknowledged and lost: %s", strings.Join(lost, " ")))
	}
	if len(l.verdicts) > 0 {
		errs = append(errs, errors.New(strings.Join(l.verdicts, "\n")))
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		missed := 0
		for name := range there {
			if _, ok, _ := l.store.GetByKey(namespace + "/" + name); !ok {
				missed++
			}
		}
		if missed == 0 && len(l.store.ListKeys()) == len(there) {
			break
		}
		if time.Now().After(end) {
			errs = append(errs,
				fmt.Errorf("a watch knows %d of the set, %d are missing", len(l.store.ListKeys()), missed))
			break
		}
	}
	return told, errors.Join(errs...)
}
