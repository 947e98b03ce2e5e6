package admission

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
)

// relearn is how often discovery is asked at most for kinds that are not known. A
// policy with parameters of such a kind asks each second.
const relearn = 5 * time.Second

// mapper finds the resource of a parameter's kind. It asks discovery when it is
// first needed, which is when a policy with parameters exists, and anew for what
// is not known: the kind's definition may be newer than that.
type mapper struct {
	*restmapper.DeferredDiscoveryRESTMapper

	mu    sync.Mutex
	asked time.Time
}

func newMapper(client discovery.DiscoveryInterface) *mapper {
	cached := memory.NewMemCacheClient(client)
	return &mapper{DeferredDiscoveryRESTMapper: restmapper.NewDeferredDiscoveryRESTMapper(cached)}
}

// RESTMapping is all that policies ask for.
func (m *mapper) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	found, err := m.DeferredDiscoveryRESTMapper.RESTMapping(gk, versions...)
	if err == nil || !m.old() {
		return found, err
	}
	m.Reset()
	return m.DeferredDiscoveryRESTMapper.RESTMapping(gk, versions...)
}

// old tells whether discovery may be asked again.
func (m *mapper) old() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.asked) < relearn {
		return false
	}
	m.asked = time.Now()
	return true
}
