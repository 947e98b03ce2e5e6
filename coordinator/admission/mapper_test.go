package admission

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/fake"
)

// A policy may have parameters of a custom kind that is defined after another policy's.
func TestMapperLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		serve := func(kind, resource string) {
			client.Resources = append(client.Resources, &metav1.APIResourceList{GroupVersion: resource + ".example.com/v1",
				APIResources: []metav1.APIResource{{Name: resource, Kind: kind}}})
		}
		m := newMapper(client.Discovery())
		find := func(kind, resource string) error {
			found, err := m.RESTMapping(schema.GroupKind{Group: resource + ".example.com", Kind: kind}, "v1")
			if err == nil && found.Resource.Resource != resource {
				t.Errorf("%s is of resource %s", kind, found.Resource)
			}
			return err
		}
		serve("First", "firsts")
		if err := find("First", "firsts"); err != nil {
			t.Fatal(err)
		}
		if find("Second", "seconds") == nil {
			t.Fatal("a kind is found that is not defined")
		}
		serve("Second", "seconds")
		asked := len(client.Actions())
		if find("Second", "seconds") == nil || len(client.Actions()) != asked {
			t.Error("discovery is asked at each question")
		}
		time.Sleep(relearn)
		if err := find("Second", "seconds"); err != nil {
			t.Errorf("a kind that was defined later: %v", err)
		}
	})
}

// lateDiscovery knows one more kind from a time on.
type lateDiscovery struct {
	discovery.DiscoveryInterface
	from   time.Time
	behind discovery.DiscoveryInterface
}

func (d *lateDiscovery) now() discovery.DiscoveryInterface {
	if time.Now().Before(d.from) {
		return d.DiscoveryInterface
	}
	return d.behind
}

func (d *lateDiscovery) ServerGroups() (*metav1.APIGroupList, error) { return d.now().ServerGroups() }

func (d *lateDiscovery) ServerResourcesForGroupVersion(gv string) (*metav1.APIResourceList, error) {
	return d.now().ServerResourcesForGroupVersion(gv)
}

// After a start discovery learns of custom kinds a moment later than of policies. A
// policy whose kind of parameters is not known refuses all that it matches, Leases
// too if it matches everything: no policy may be weighed before.
func TestMapperWaitsForDiscoveryAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		early, late := fake.NewClientset(), fake.NewClientset()
		early.Resources = []*metav1.APIResourceList{{GroupVersion: "apps/v1",
			APIResources: []metav1.APIResource{{Name: "deployments", Kind: "Deployment"}}}}
		late.Resources = append(slices.Clone(early.Resources), &metav1.APIResourceList{GroupVersion: "example.com/v1",
			APIResources: []metav1.APIResource{{Name: "lates", Kind: "Late"}}})
		m := newMapper(&lateDiscovery{early.Discovery(), time.Now().Add(startWait / 3), late.Discovery()})
		find := func(kind string) (time.Duration, error) {
			began := time.Now()
			_, err := m.RESTMapping(schema.GroupKind{Group: "example.com", Kind: kind}, "v1")
			return time.Since(began), err
		}
		if took, err := find("Late"); err != nil || took > startWait/2 {
			t.Errorf("a kind that discovery has a second later: %v after %v", err, took)
		}
		if took, err := find("Missing"); err == nil || took > startWait {
			t.Errorf("a kind that is not defined: %v after %v", err, took)
		}
		if took, err := find("Missing"); err == nil || took > 0 {
			t.Errorf("a kind that is not defined, later: %v after %v", err, took)
		}
	})
}
