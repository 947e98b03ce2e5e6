package kind_test

import (
	"context"
	"errors"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/kind/kindtest"
)

// declared has one of everything that a declaration may say.
func declared() kind.Kind {
	return kind.Of[appsv1.ReplicaSet]{
		Names: kind.Names{
			GroupVersion: appsv1.SchemeGroupVersion,
			Resource:     "replicasets",
			Singular:     "replicaset",
			List:         &appsv1.ReplicaSetList{},
		},
		Default: func(r *appsv1.ReplicaSet) {
			if r.Spec.Replicas == nil {
				r.Spec.Replicas = ptr.To(int32(1))
			}
		},
		Create: func(_ context.Context, r *appsv1.ReplicaSet) { r.Status = appsv1.ReplicaSetStatus{} },
		Update: func(_ context.Context, r, old *appsv1.ReplicaSet) { r.Spec.Selector = old.Spec.Selector },
		Validate: func(_ context.Context, r *appsv1.ReplicaSet) field.ErrorList {
			return many(*r.Spec.Replicas, field.NewPath("spec", "replicas"))
		},
		ValidateUpdate: func(_ context.Context, r, _ *appsv1.ReplicaSet) field.ErrorList {
			return many(*r.Spec.Replicas, field.NewPath("spec", "replicas"))
		},
		Warnings: func(_ context.Context, r, old *appsv1.ReplicaSet) []string {
			if *r.Spec.Replicas > 7 && (old == nil || *r.Spec.Replicas > *old.Spec.Replicas) {
				return []string{"spec.replicas: that is a lot"}
			}
			return nil
		},
		Spec: func(r *appsv1.ReplicaSet) any { return &r.Spec },
		Status: &kind.StatusOf[appsv1.ReplicaSet]{
			Copy:   func(to, from *appsv1.ReplicaSet) { to.Status = from.Status },
			Update: func(_ context.Context, r, _ *appsv1.ReplicaSet) { r.Status.ObservedGeneration = r.Generation },
			Validate: func(_ context.Context, r, _ *appsv1.ReplicaSet) field.ErrorList {
				return many(r.Status.Replicas, field.NewPath("status", "replicas"))
			},
		},
		Fields: func(r *appsv1.ReplicaSet) fields.Set {
			app := ""
			if r.Spec.Selector != nil {
				app = r.Spec.Selector.MatchLabels["app"]
			}
			return fields.Set{"spec.app": app}
		},
		Indexed: []string{"spec.app"},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Replicas", "integer", ""),
			kind.Wide("App", "string", ""),
			kind.AgeColumn(),
		},
		Row: func(r *appsv1.ReplicaSet) []any {
			return []any{r.Name, *r.Spec.Replicas, r.Labels["app"], kind.Age(r.CreationTimestamp)}
		},
		Graceful: func(_ context.Context, r *appsv1.ReplicaSet, o *metav1.DeleteOptions) bool {
			if o.GracePeriodSeconds == nil {
				o.GracePeriodSeconds = ptr.To(int64(30))
			}
			return r.Status.Replicas > 0
		},
	}.Kind()
}

func many(n int32, p *field.Path) field.ErrorList {
	if n < 0 || n > 9 {
		return field.ErrorList{field.Invalid(p, n, "must be 0 to 9")}
	}
	return nil
}

// plain says nothing but its names.
func plain() kind.Kind {
	return kind.Of[policyv1.PodDisruptionBudget]{
		Names: kind.Names{
			GroupVersion:  policyv1.SchemeGroupVersion,
			Resource:      "poddisruptionbudgets",
			Singular:      "poddisruptionbudget",
			ClusterScoped: true,
			List:          &policyv1.PodDisruptionBudgetList{},
		},
	}.Kind()
}

// upserted may be made by an update.
func upserted() kind.Kind {
	return kind.Of[corev1.Service]{
		Names: kind.Names{
			GroupVersion: corev1.SchemeGroupVersion,
			Resource:     "services",
			Singular:     "service",
			List:         &corev1.ServiceList{},
		},
		Status: &kind.StatusOf[corev1.Service]{
			Copy: func(to, from *corev1.Service) { to.Status = from.Status },
		},
		AllowCreateOnUpdate: true,
	}.Kind()
}

// guarded asks on each write whether its user may give away the secret.
func guarded() kind.Kind {
	return kind.Of[corev1.ConfigMap]{
		Names: kind.Names{
			GroupVersion: corev1.SchemeGroupVersion,
			Resource:     "configmaps",
			Singular:     "configmap",
			List:         &corev1.ConfigMapList{},
		},
		Store: func(env *kind.Env, store *genericregistry.Store) {
			kind.Guard(store, func(ctx context.Context, obj, _ runtime.Object) error {
				secret := obj.(*corev1.ConfigMap).Data["secret"]
				tell := authorizer.AttributesRecord{Verb: "tell", Name: secret, ResourceRequest: true}
				if secret != "" && !env.May(ctx, tell) {
					return errors.New("may not tell " + secret)
				}
				return nil
			})
		},
	}.Kind()
}

// tellers: each user may tell the secret that has the same name.
type tellers struct{}

func (tellers) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() == "tell" && a.GetUser().GetName() == a.GetName() {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func TestScenarios(t *testing.T) {
	kinds := []kind.Kind{declared(), plain(), guarded(), upserted()}
	kindtest.Play(t, kinds, func(env *kind.Env) { env.Authorizer = tellers{} })
}

// Without somebody who decides, or somebody who asks, nothing is allowed.
func TestMayNotByDefault(t *testing.T) {
	nobody, asks := t.Context(), authorizer.AttributesRecord{Verb: "tell", Name: "eve"}
	eve := request.WithUser(nobody, &user.DefaultInfo{Name: "eve"})
	decides := &kind.Env{Authorizer: tellers{}}
	if !decides.May(eve, asks) || decides.May(nobody, asks) || (&kind.Env{}).May(eve, asks) {
		t.Errorf("eve %v, nobody %v, nobody decides %v",
			decides.May(eve, asks), decides.May(nobody, asks), (&kind.Env{}).May(eve, asks))
	}
}

// "a." is no name, but a prefix of one.
func TestOnlyWhole(t *testing.T) {
	if kind.OnlyWhole("a.", true) != nil || kind.OnlyWhole("a.", false) == nil || kind.OnlyWhole("a.b", false) != nil {
		t.Error("the prefix is not looked at, and the name is")
	}
}

// Rules are of kinds that exist.
func TestMetaRulesOfKinds(t *testing.T) {
	known := map[string]bool{}
	for _, k := range registry.Kinds() {
		n := k.KindNames()
		known[n.GroupVersion.Group+"/"+n.Resource] = true
	}
	for _, key := range kind.MetaRulesOf() {
		if !known[key] {
			t.Errorf("there is no kind %s", key)
		}
	}
}
