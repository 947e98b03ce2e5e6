package scale_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/kind/kindtest"
	"github.com/shoal-project/shoal/coordinator/registry/scale"
)

func TestScenarios(t *testing.T) {
	scaled := kind.Of[appsv1.ReplicaSet]{
		Names: kind.Names{
			GroupVersion: appsv1.SchemeGroupVersion,
			Resource:     "replicasets",
			Singular:     "replicaset",
			List:         &appsv1.ReplicaSetList{},
		},
		Spec: func(r *appsv1.ReplicaSet) any { return &r.Spec },
		Subresources: func(_ *kind.Env, stores kind.Stores) map[string]rest.Storage {
			return map[string]rest.Storage{"scale": scale.New(stores["apps/replicasets"], scale.Of[appsv1.ReplicaSet]{
				GroupVersion: appsv1.SchemeGroupVersion,
				Replicas:     func(r *appsv1.ReplicaSet) **int32 { return &r.Spec.Replicas },
				Current:      func(r *appsv1.ReplicaSet) int32 { return r.Status.Replicas },
				Selector:     func(r *appsv1.ReplicaSet) *metav1.LabelSelector { return r.Spec.Selector },
			})}
		},
	}.Kind()
	kindtest.Play(t, []kind.Kind{scaled}, nil)
}
