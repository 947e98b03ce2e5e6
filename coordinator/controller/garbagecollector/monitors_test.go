package garbagecollector

import (
	"errors"
	"log/slog"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
)

// partial is a discovery that finds some groups, and fails for others.
type partial struct {
	discovery.DiscoveryInterface
	groups []string
	err    error
}

func (p *partial) ServerPreferredResources() (out []*metav1.APIResourceList, err error) {
	for _, g := range p.groups {
		out = append(out, &metav1.APIResourceList{GroupVersion: g + "/v1", APIResources: []metav1.APIResource{
			{Name: "things", Kind: "Thing", Verbs: metav1.Verbs{"list", "watch", "delete"}}}})
	}
	return out, p.err
}

// A group that discovery cannot tell of, as of an aggregated server that is down, is watched
// as before. Those of others that are gone are not, or their watches would fail for as long.
func TestRefreshWithoutAGroup(t *testing.T) {
	groups := &partial{groups: []string{"a.example", "b.example", "dead.example"}}
	scheme := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := &Collector{
		discovery: groups, metadata: metadatafake.NewSimpleMetadataClient(scheme), startAll: func() {},
		informers: informers.NewSharedInformerFactory(fake.NewClientset(), 0), log: slog.New(slog.DiscardHandler),
		graph: newGraph(),
	}
	c.monitors = &monitors{c: c, byGR: map[schema.GroupResource]*monitor{}, kinds: map[schema.GroupKind]*resource{}}
	c.ready.Store(true)
	defer c.monitors.close()
	dead := &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{
		{Group: "dead.example", Version: "v1"}: errors.New("no endpoints available"),
	}}
	for _, step := range []struct {
		groups []string
		err    error
		want   []string
	}{
		{groups.groups, nil, groups.groups},
		{[]string{"b.example"}, dead, []string{"b.example", "dead.example"}},
		{[]string{"b.example"}, errors.New("cut off"), []string{"b.example", "dead.example"}},
		{[]string{"b.example"}, nil, []string{"b.example"}},
	} {
		groups.groups, groups.err = step.groups, step.err
		if err := c.monitors.refresh(t.Context()); !errors.Is(err, step.err) {
			t.Fatal(err)
		}
		var got []string
		for gr := range c.monitors.byGR {
			got = append(got, gr.Group)
		}
		if slices.Sort(got); !slices.Equal(got, step.want) {
			t.Errorf("%v and %v: watched are %v, want %v", step.groups, step.err, got, step.want)
		}
	}
}
