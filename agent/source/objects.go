package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/agent/api"
)

// SavedObject is an object that a pod refers to as kept over restarts: one of
// these.
type SavedObject struct {
	ConfigMap    *corev1.ConfigMap    `json:"configMap,omitempty"`
	Secret       *corev1.Secret       `json:"secret,omitempty"`
	RuntimeClass *nodev1.RuntimeClass `json:"runtimeClass,omitempty"`
	// Volume is behind a claim.
	Volume *corev1.PersistentVolume `json:"volume,omitempty"`
}

func (s *SavedObject) meta() metav1.Object {
	switch {
	case s.ConfigMap != nil:
		return s.ConfigMap
	case s.Secret != nil:
		return s.Secret
	case s.Volume != nil:
		return s.Volume
	}
	return s.RuntimeClass
}

// Saved keeps objects over restarts.
type Saved interface {
	Get(key string) (*SavedObject, error)
	Put(key string, o *SavedObject) error
	Delete(key string) error
}

// ref names an object.
type ref struct{ kind, namespace, name string }

const (
	configMap    = "configmap"
	secret       = "secret"
	runtimeClass = "runtimeclass"
)

func (r ref) key() string { return r.kind + "_" + r.namespace + "_" + r.name }

// Objects holds the ConfigMaps, Secrets and RuntimeClasses that pods of the
// node refer to, each by a watch of that one object, for as long as a pod
// refers to it.
type Objects struct {
	Client kubernetes.Interface
	Saved  Saved
	// Changed is told of the namespace of every object that changed.
	Changed func(namespace string)
	// Silent tells that it is in vain to ask the API; nil: it never is.
	Silent func() bool
	Log    *slog.Logger

	ctx     context.Context
	wg      sync.WaitGroup
	mu      sync.Mutex
	tracked map[ref]*tracked
	pods    map[types.UID][]ref
}

type tracked struct {
	refs   int
	cancel context.CancelFunc
	enough context.CancelFunc // of an object that cannot change any more
	ready  chan struct{}      // closed once something is known

	mu    sync.Mutex
	value *SavedObject // nil: the API has none
	err   error        // why nothing is known
	once  sync.Once
}

// Start makes the store ready; ctx bounds all watches.
func (o *Objects) Start(ctx context.Context) {
	o.ctx = ctx
	o.tracked = map[ref]*tracked{}
	o.pods = map[types.UID][]ref{}
}

// Track begins to watch what a pod refers to.
func (o *Objects) Track(p *corev1.Pod) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.pods[p.UID]; ok {
		return
	}
	list := refs(p)
	o.pods[p.UID] = list
	for _, r := range list {
		t := o.tracked[r]
		if t == nil {
			ctx, cancel := context.WithCancel(o.ctx)
			t = &tracked{cancel: cancel, ready: make(chan struct{})}
			o.tracked[r] = t
			if r.kind != claim {
				o.wg.Go(func() { o.follow(ctx, r, t) })
			}
		}
		t.refs++
	}
}

// Untrack ends what Track began; what no pod refers to is forgotten.
func (o *Objects) Untrack(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.pods[uid] {
		t := o.tracked[r]
		if t.refs--; t.refs > 0 {
			continue
		}
		t.cancel()
		delete(o.tracked, r)
		if err := o.Saved.Delete(r.key()); err != nil {
			o.Log.Debug("saved object is not removed", "object", r.key(), "err", err)
		}
	}
	delete(o.pods, uid)
}

// ConfigMap returns a ConfigMap as last known.
func (o *Objects) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	v, err := o.get(ctx, ref{configMap, namespace, name})
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("configmap"), name)
	}
	return v.ConfigMap, nil
}

// Secret returns a Secret as last known.
func (o *Objects) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	v, err := o.get(ctx, ref{secret, namespace, name})
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("secret"), name)
	}
	return v.Secret, nil
}

// RuntimeClass returns a RuntimeClass as last known.
func (o *Objects) RuntimeClass(ctx context.Context, name string) (*nodev1.RuntimeClass, error) {
	v, err := o.get(ctx, ref{kind: runtimeClass, name: name})
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, apierrors.NewNotFound(nodev1.Resource("runtimeclass"), name)
	}
	return v.RuntimeClass, nil
}

func (o *Objects) get(ctx context.Context, r ref) (*SavedObject, error) {
	o.mu.Lock()
	t := o.tracked[r]
	o.mu.Unlock()
	if t == nil {
		return o.read(ctx, r)
	}
	select {
	case <-t.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.value, t.err
}

// follow keeps one object true to the API until ctx ends. What cannot change any
// more is read once.
func (o *Objects) follow(ctx context.Context, r ref, t *tracked) {
	watching, enough := context.WithCancel(ctx)
	defer enough()
	t.enough = enough
	one := cache.NewReflectorWithOptions(onlyLists{o.listWatch(r, t)}, nil, object{o, r, t}, cache.ReflectorOptions{
		Name:    r.key(),
		Backoff: api.Retry(),
	})
	one.RunWithContext(watching)
}

// onlyLists has a reflector begin with a list, whose failure tells at once that
// the API is away: a watch that begins with what there is would be tried on.
type onlyLists struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported implements what client-go asks.
func (onlyLists) IsWatchListSemanticsUnSupported() bool { return true }

func (o *Objects) listWatch(r ref, t *tracked) *cache.ListWatch {
	only := fields.OneTermEqualSelector("metadata.name", r.name).String()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			// Not what a cache had: a pod may come a moment after what it refers to.
			opts.FieldSelector, opts.ResourceVersion = only, ""
			l, err := o.list(ctx, r, opts)
			if err != nil {
				o.fallBack(r, t, err)
			}
			return l, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.FieldSelector = only
			return o.watch(ctx, r, opts)
		},
	}
}

// object takes what a reflector hears of one; it implements cache.ReflectorStore.
type object struct {
	*Objects
	ref     ref
	tracked *tracked
}

func (o object) Add(obj any) error    { return o.Update(obj) }
func (o object) Delete(any) error     { return o.take(nil) }
func (o object) Resync() error        { return nil }
func (o object) Update(obj any) error { return o.take(saved(obj)) }

func (o object) Replace(list []any, _ string) error {
	if len(list) == 0 {
		return o.take(nil)
	}
	return o.Update(list[0])
}

func (o object) take(v *SavedObject) error {
	o.set(o.ref, o.tracked, v)
	if immutable(v) {
		o.tracked.enough()
	}
	return nil
}

func immutable(v *SavedObject) bool {
	switch {
	case v == nil:
		return false
	case v.ConfigMap != nil:
		return v.ConfigMap.Immutable != nil && *v.ConfigMap.Immutable
	case v.Secret != nil:
		return v.Secret.Immutable != nil && *v.Secret.Immutable
	}
	return false
}

// fallBack uses what was saved while the API cannot be asked.
func (o *Objects) fallBack(r ref, t *tracked, cause error) {
	t.mu.Lock()
	known := t.value != nil
	t.mu.Unlock()
	if known {
		return
	}
	v, err := o.Saved.Get(r.key())
	switch {
	case err != nil:
		v, err = nil, fmt.Errorf("%w: %w", err, cause)
	case v == nil:
		err = cause
	}
	t.mu.Lock()
	t.value, t.err = v, err
	t.mu.Unlock()
	t.once.Do(func() { close(t.ready) })
}

func (o *Objects) set(r ref, t *tracked, v *SavedObject) {
	t.mu.Lock()
	first := t.value == nil && t.err == nil
	same := equalObjects(t.value, v) && t.err == nil
	t.value, t.err = v, nil
	t.mu.Unlock()
	if v != nil && !same {
		if err := o.Saved.Put(r.key(), v); err != nil {
			o.Log.Warn("an object is not kept for when the API is away", "object", r.key(), "err", err)
		}
	}
	opened := false
	t.once.Do(func() { close(t.ready); opened = true })
	if !same && !(first && opened) && o.Changed != nil {
		o.Changed(r.namespace)
	}
}

func equalObjects(a, b *SavedObject) bool {
	if a == nil || b == nil {
		return a == b
	}
	return version(a) == version(b)
}

func version(s *SavedObject) string {
	m := s.meta()
	return string(m.GetUID()) + m.GetResourceVersion()
}

// read returns an object as it is now, nil for none.
func (o *Objects) read(ctx context.Context, r ref) (*SavedObject, error) {
	only := fields.OneTermEqualSelector("metadata.name", r.name).String()
	l, err := o.list(ctx, r, metav1.ListOptions{FieldSelector: only})
	if err != nil {
		return nil, err
	}
	items, err := meta.ExtractList(l)
	if err != nil || len(items) == 0 {
		return nil, err
	}
	return saved(items[0]), nil
}

func (o *Objects) list(ctx context.Context, r ref, opts metav1.ListOptions) (runtime.Object, error) {
	if o.Client == nil {
		return nil, errNoAPI
	}
	switch r.kind {
	case configMap:
		return o.Client.CoreV1().ConfigMaps(r.namespace).List(ctx, opts)
	case secret:
		return o.Client.CoreV1().Secrets(r.namespace).List(ctx, opts)
	}
	return o.Client.NodeV1().RuntimeClasses().List(ctx, opts)
}

func (o *Objects) watch(ctx context.Context, r ref, opts metav1.ListOptions) (watch.Interface, error) {
	switch r.kind {
	case configMap:
		return o.Client.CoreV1().ConfigMaps(r.namespace).Watch(ctx, opts)
	case secret:
		return o.Client.CoreV1().Secrets(r.namespace).Watch(ctx, opts)
	}
	return o.Client.NodeV1().RuntimeClasses().Watch(ctx, opts)
}

var errNoAPI = errors.New("no API server is configured")

func saved(obj any) *SavedObject {
	switch v := obj.(type) {
	case *corev1.ConfigMap:
		v.ManagedFields = nil
		return &SavedObject{ConfigMap: v}
	case *corev1.Secret:
		v.ManagedFields = nil
		return &SavedObject{Secret: v}
	case *nodev1.RuntimeClass:
		v.ManagedFields = nil
		return &SavedObject{RuntimeClass: v}
	}
	return nil
}

// refs are all objects of these kinds that a pod names.
func refs(p *corev1.Pod) []ref {
	seen := map[ref]bool{}
	var out []ref
	add := func(kind, name string) {
		r := ref{kind, p.Namespace, name}
		if name != "" && !strings.Contains(name, "/") && !seen[r] {
			seen[r] = true
			out = append(out, r)
		}
	}
	if c := p.Spec.RuntimeClassName; c != nil && *c != "" && !strings.Contains(*c, "/") {
		out = append(out, ref{kind: runtimeClass, name: *c})
	}
	for _, s := range p.Spec.ImagePullSecrets {
		add(secret, s.Name)
	}
	for i := range p.Spec.Volumes {
		volumeRefs(&p.Spec.Volumes[i], add)
		add(claim, ClaimName(p, &p.Spec.Volumes[i]))
	}
	for i := range p.Spec.InitContainers {
		envRefs(&p.Spec.InitContainers[i], add)
	}
	for i := range p.Spec.Containers {
		envRefs(&p.Spec.Containers[i], add)
	}
	for i := range p.Spec.EphemeralContainers {
		c := corev1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		envRefs(&c, add)
	}
	return out
}

func volumeRefs(v *corev1.Volume, add func(kind, name string)) {
	switch {
	case v.ConfigMap != nil:
		add(configMap, v.ConfigMap.Name)
	case v.Secret != nil:
		add(secret, v.Secret.SecretName)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				add(configMap, s.ConfigMap.Name)
			}
			if s.Secret != nil {
				add(secret, s.Secret.Name)
			}
		}
	}
}

func envRefs(c *corev1.Container, add func(kind, name string)) {
	for _, f := range c.EnvFrom {
		if f.ConfigMapRef != nil {
			add(configMap, f.ConfigMapRef.Name)
		}
		if f.SecretRef != nil {
			add(secret, f.SecretRef.Name)
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			continue
		}
		if k := e.ValueFrom.ConfigMapKeyRef; k != nil {
			add(configMap, k.Name)
		}
		if k := e.ValueFrom.SecretKeyRef; k != nil {
			add(secret, k.Name)
		}
	}
}
