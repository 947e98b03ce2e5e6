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

// startWait is for how long after the first question a kind that is not known is
// waited for. A coordinator that starts knows its policies a moment before discovery
// knows custom kinds, and a policy without its kind refuses all that it matches.
const startWait = 3 * time.Second

// askPause is between two questions of that time.
const askPause = 100 * time.Millisecond

// mapper finds the resource of a parameter's kind. It asks discovery when it is
// first needed, which is when a policy with parameters exists, and anew for what
// is not known: the kind's definition may be newer than that.
type mapper struct {
	*restmapper.DeferredDiscoveryRESTMapper

	mu       sync.Mutex
	starting time.Time // until when unknown kinds are waited for
	asked    time.Time
}

func newMapper(client discovery.DiscoveryInterface) *mapper {
	cached := memory.NewMemCacheClient(client)
	return &mapper{DeferredDiscoveryRESTMapper: restmapper.NewDeferredDiscoveryRESTMapper(cached)}
}

// RESTMapping is all that policies ask for. Requests wait while the first policies
// wait for it.
func (m *mapper) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	for until := m.starts(); ; m.Reset() {
		found, err := m.DeferredDiscoveryRESTMapper.RESTMapping(gk, versions...)
		switch {
		case err == nil:
			return found, nil
		case time.Now().Before(until):
			time.Sleep(askPause)
		case !m.old():
			return nil, err
		}
	}
}

// starts returns until when unknown kinds are waited for.
func (m *mapper) starts() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.starting.IsZero() {
		m.starting = time.Now().Add(startWait)
	}
	return m.starting
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
