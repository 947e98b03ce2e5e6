package dns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"sync"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/agent/api"
)

// The ConfigMap that says who is asked for names outside the cluster, with kube-dns's
// name and keys (kubernetes.io, "Customizing DNS Service", of kube-dns).
const (
	configNamespace = metav1.NamespaceSystem
	configName      = "kube-dns"
	stubsKey        = "stubDomains"
	serversKey      = "upstreamNameservers"
)

// Bounds of what the ConfigMap may say.
const (
	maxStubs   = 256
	maxServers = 16 // for one domain
)

// Follower gives a Server what the cluster's ConfigMap says, and what it said last while
// the API is away.
type Follower struct {
	Server *Server
	Client kubernetes.Interface // nil: only what the file holds
	File   string               // "": none
	Log    *slog.Logger

	mu   sync.Mutex
	said Upstreams
}

// Run follows the ConfigMap until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	if err := f.restore(); err != nil {
		f.Log.Warn("what was said last of DNS servers is not known", "err", err)
	}
	if f.Client == nil {
		<-ctx.Done()
		return nil
	}
	c := f.Client.CoreV1().ConfigMaps(configNamespace)
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, configName).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = only
			return c.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			return c.Watch(ctx, o)
		},
	}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, f.Client), &corev1.ConfigMap{}, f,
		cache.ReflectorOptions{Name: "dns", Backoff: api.Retry()}).RunWithContext(ctx)
	return nil
}

// Add implements cache.ReflectorStore, as do the methods below.
func (f *Follower) Add(obj any) error {
	m, ok := obj.(*corev1.ConfigMap)
	if !ok {
		return fmt.Errorf("unexpected object %T", obj)
	}
	if m.Name == configName {
		f.take(m.Data)
	}
	return nil
}

// Update takes a changed object.
func (f *Follower) Update(obj any) error { return f.Add(obj) }

// Delete takes what was said back.
func (f *Follower) Delete(any) error {
	f.take(nil)
	return nil
}

// Replace takes a full list.
func (f *Follower) Replace(objs []any, _ string) error {
	for _, obj := range objs {
		if err := f.Add(obj); err != nil {
			return err
		}
	}
	if len(objs) == 0 {
		f.take(nil)
	}
	return nil
}

// Resync does nothing: there is nothing to make anew.
func (f *Follower) Resync() error { return nil }

// take takes what a ConfigMap says. What cannot be used leaves what it said before.
func (f *Follower) take(data map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u, err := readUpstreams(data, f.Server.zone.domain)
	if err != nil {
		f.Log.Error("the ConfigMap of DNS cannot be used; what it said before holds",
			"configmap", configNamespace+"/"+configName, "err", err)
		return
	}
	if reflect.DeepEqual(u, f.said) {
		return
	}
	f.use(u)
	if err := f.save(u); err != nil {
		f.Log.Warn("what the ConfigMap of DNS says will not outlast the agent", "err", err)
	}
}

// use has the server ask those of u, as far as the machine's own configuration says
// nothing else.
func (f *Follower) use(u Upstreams) {
	f.said = u
	own := f.Server.cfg.Upstreams
	both := Upstreams{Servers: own.Servers, Stubs: map[string][]string{}}
	if len(both.Servers) == 0 {
		both.Servers = u.Servers
	}
	maps.Copy(both.Stubs, u.Stubs)
	for domain, servers := range own.Stubs {
		both.Stubs[dns.CanonicalName(domain)] = servers
	}
	f.Server.up.set(both)
}

// readUpstreams reads the keys of the ConfigMap; it knows each domain by its whole name
// in lower case.
func readUpstreams(data map[string]string, own string) (u Upstreams, err error) {
	if text := data[serversKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &u.Servers); err != nil {
			return Upstreams{}, fmt.Errorf("%s: %w", serversKey, err)
		}
		if err := checkServers(u.Servers); err != nil {
			return Upstreams{}, fmt.Errorf("%s: %w", serversKey, err)
		}
	}
	var stubs map[string][]string
	if text := data[stubsKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &stubs); err != nil {
			return Upstreams{}, fmt.Errorf("%s: %w", stubsKey, err)
		}
	}
	if len(stubs) > maxStubs {
		return Upstreams{}, fmt.Errorf("%s: %d domains, more than %d", stubsKey, len(stubs), maxStubs)
	}
	for domain, servers := range stubs {
		name := dns.CanonicalName(domain)
		_, ok := dns.IsDomainName(name)
		switch {
		case !ok || name == ".":
			err = fmt.Errorf("%q is not a domain", domain)
		case dns.IsSubDomain(own, name):
			err = fmt.Errorf("%q is the cluster's own", domain)
		case len(servers) == 0:
			err = fmt.Errorf("%q has no server", domain)
		default:
			err = checkServers(servers)
		}
		if err != nil {
			return Upstreams{}, fmt.Errorf("%s: %w", stubsKey, err)
		}
		if u.Stubs == nil {
			u.Stubs = map[string][]string{}
		}
		u.Stubs[name] = servers
	}
	return u, nil
}

func checkServers(servers []string) error {
	if len(servers) > maxServers {
		return fmt.Errorf("%d servers, more than %d", len(servers), maxServers)
	}
	for _, s := range servers {
		if _, err := ParseServer(s); err != nil {
			return fmt.Errorf("%q is not an address, or an address with a port", s)
		}
	}
	return nil
}

// restore uses what was said last.
func (f *Follower) restore() error {
	if f.File == "" {
		return nil
	}
	data, err := os.ReadFile(f.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var u Upstreams
	if err := json.Unmarshal(data, &u); err != nil {
		return fmt.Errorf("%s: %w", f.File, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.use(u)
	return nil
}

// save writes the file anew; a crash leaves the one before.
func (f *Follower) save(u Upstreams) error {
	if f.File == "" {
		return nil
	}
	data, err := json.Marshal(u)
	if err != nil {
		return err
	}
	w, err := os.CreateTemp(filepath.Dir(f.File), filepath.Base(f.File)+".")
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	if err = errors.Join(err, w.Sync(), w.Close()); err == nil {
		err = os.Rename(w.Name(), f.File)
	}
	if err != nil {
		_ = os.Remove(w.Name())
	}
	return err
}
