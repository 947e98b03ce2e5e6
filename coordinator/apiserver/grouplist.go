package apiserver

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	listers "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
)

// serveGroups lists the groups at /apis, for clients without aggregated discovery,
// in place of the aggregator's own list, which knows of APIServices only: those
// that are served without one are in it too.
func (s *Server) serveGroups(g *genericapiserver.GenericAPIServer, services listers.APIServiceLister) {
	list := groupList{services: services, served: map[schema.GroupVersion]bool{}}
	for _, k := range s.kinds {
		gv := k.KindNames().GroupVersion
		list.served[gv] = s.enabled.version(gv)
	}
	mux := g.Handler.NonGoRestfulMux
	mux.Unregister("/apis")
	mux.Handle("/apis", aggregated.WrapAggregatedDiscoveryToHandler(list, g.AggregatedDiscoveryGroupManager,
		g.PeerAggregatedDiscoveryManager))
}

type groupList struct {
	services listers.APIServiceLister
	served   map[schema.GroupVersion]bool
}

// ServeHTTP answers with an APIGroupList, in the order of the groups' priorities.
func (l groupList) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	services, err := l.services.List(labels.Everything())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	for gv := range replaceable {
		own := localService(gv, priorities[gv.Group], versionPriority(gv))
		if _, err := l.services.Get(own.Name); err != nil && l.served[gv] {
			services = append(services, own)
		}
	}
	// The aggregator's own group has no APIService, and comes first.
	out := &metav1.APIGroupList{Groups: []metav1.APIGroup{apiGroup(
		localService(apiregistrationv1.SchemeGroupVersion, 0, 0))}}
	for _, versions := range helper.SortedByGroupAndVersion(services) {
		if versions[0].Spec.Group != "" { // that of core is at /api
			out.Groups = append(out.Groups, apiGroup(versions...))
		}
	}
	responsewriters.WriteObjectNegotiated(aggregatorscheme.Codecs, negotiation.DefaultEndpointRestrictions,
		schema.GroupVersion{}, w, r, http.StatusOK, out, false)
}

// apiGroup describes the group of its versions, the preferred one first.
func apiGroup(versions ...*apiregistrationv1.APIService) metav1.APIGroup {
	g := metav1.APIGroup{Name: versions[0].Spec.Group}
	for _, v := range versions {
		g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: v.Spec.Group + "/" + v.Spec.Version, Version: v.Spec.Version})
	}
	g.PreferredVersion = g.Versions[0]
	return g
}
