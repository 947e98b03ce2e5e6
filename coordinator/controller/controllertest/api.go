package controllertest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"
)

// api stores objects. It gives each its UID, versions and generations as the real
// one does, as far as controllers ask for them.
type api struct {
	client *fake.Clientset

	mu       sync.Mutex
	version  int
	refusals map[string]metav1.StatusReason // by verb and resource
	asked    []asked                        // since the last taken
}

// asked is what the controller asked the API at some time.
type asked struct {
	time   time.Time
	action clienttesting.Action
}

func newAPI() *api {
	a := &api{client: fake.NewClientset(), refusals: map[string]metav1.StatusReason{}}
	store := clienttesting.ObjectReaction(a.client.Tracker())
	a.client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a.take(action)
		if err := a.refused(action); err != nil {
			return true, nil, err
		}
		switch w := action.(type) {
		case clienttesting.CreateActionImpl:
			return a.written(store, w, w.Object)
		case clienttesting.UpdateActionImpl:
			return a.written(store, w, w.Object)
		}
		return false, nil, nil
	})
	return a
}

func (a *api) take(action clienttesting.Action) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, asked{time.Now(), action.DeepCopy()})
}

// taken returns what was asked since the last call.
func (a *api) taken() []asked {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.asked
	a.asked = nil
	return list
}

// refuse has what a controller asks refused; "nothing" is refused no more.
func (a *api) refuse(verb, resource string, why metav1.StatusReason) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if why == "nothing" {
		why = ""
	}
	a.refusals[verb+" "+resource] = why
}

func (a *api) refused(action clienttesting.Action) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	why := a.refusals[action.GetVerb()+" "+action.GetResource().Resource]
	if why == "" {
		return nil
	}
	status := metav1.Status{Status: metav1.StatusFailure, Reason: why, Message: string(why)}
	if why == "NamespaceTerminating" { // as admission says it
		status.Reason = metav1.StatusReasonForbidden
		status.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "NamespaceTerminating"}}}
	}
	return &apierrors.StatusError{ErrStatus: status}
}

func (a *api) written(
	store clienttesting.ReactionFunc, action clienttesting.Action, obj runtime.Object,
) (bool, runtime.Object, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return true, nil, err
	}
	have, err := a.client.Tracker().Get(action.GetResource(), m.GetNamespace(), m.GetName())
	if err == nil { // what an update leaves out is as it was
		old, err := meta.Accessor(have)
		if err != nil {
			return true, nil, err
		}
		m.SetUID(old.GetUID())
		m.SetGeneration(old.GetGeneration())
	}
	a.stamp(m)
	return store(action)
}

// stamp makes metadata that of a new version.
func (a *api) stamp(m metav1.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	m.SetResourceVersion(strconv.Itoa(a.version))
	m.SetGeneration(m.GetGeneration() + 1)
	if m.GetUID() == "" {
		m.SetUID(types.UID("uid-" + strconv.Itoa(a.version)))
	}
	if m.GetName() == "" {
		m.SetName(m.GetGenerateName() + strconv.Itoa(a.version))
	}
}

// change does what happens in the API, not by the controller.
func (a *api) change(verb, text string) error {
	if verb == "delete" {
		return a.delete(text)
	}
	return a.put(text)
}

// put stores what a text says, merged into the object that is there.
func (a *api) put(text string) error {
	given, gvr, key, err := parse(text)
	if err != nil {
		return err
	}
	tracker := a.client.Tracker()
	have, err := tracker.Get(gvr, key.Namespace, key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	isNew := err != nil
	merged := given
	if !isNew {
		old, err := runtime.DefaultUnstructuredConverter.ToUnstructured(have)
		if err != nil {
			return err
		}
		merged = merge(old, given)
	}
	obj, err := decode(merged, given)
	if err != nil {
		return err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	a.stamp(m)
	if isNew {
		return tracker.Create(gvr, obj, key.Namespace)
	}
	return tracker.Update(gvr, obj, key.Namespace)
}

func (a *api) delete(text string) error {
	_, gvr, key, err := parse(text)
	if err != nil {
		return err
	}
	return a.client.Tracker().Delete(gvr, key.Namespace, key.Name)
}

func parse(text string) (map[string]any, schema.GroupVersionResource, types.NamespacedName, error) {
	var given map[string]any
	var named struct {
		APIVersion, Kind string
		Metadata         struct{ Name, Namespace string }
	}
	if err := yaml.Unmarshal([]byte(text), &given); err != nil {
		return nil, schema.GroupVersionResource{}, types.NamespacedName{}, fmt.Errorf("%s: %w", text, err)
	}
	err := yaml.Unmarshal([]byte(text), &named)
	gvr, _ := meta.UnsafeGuessKindToResource(schema.FromAPIVersionAndKind(named.APIVersion, named.Kind))
	return given, gvr, types.NamespacedName{Namespace: named.Metadata.Namespace, Name: named.Metadata.Name}, err
}

// decode makes the typed object of the kind that given names; a misspelt field is an
// error.
func decode(merged, given map[string]any) (runtime.Object, error) {
	data, err := json.Marshal(merged)
	if err != nil {
		return nil, err
	}
	apiVersion, _ := given["apiVersion"].(string)
	kind, _ := given["kind"].(string)
	obj, err := scheme.Scheme.New(schema.FromAPIVersionAndKind(apiVersion, kind))
	if err != nil {
		return nil, err
	}
	out := reflect.New(reflect.TypeOf(obj).Elem()).Interface().(runtime.Object)
	return out, yaml.UnmarshalStrict(data, out)
}

// merge is a JSON merge patch (RFC 7386).
func merge(into, from map[string]any) map[string]any {
	if into == nil {
		into = map[string]any{}
	}
	for k, v := range from {
		if v == nil {
			delete(into, k)
		} else if inner, ok := v.(map[string]any); ok {
			had, _ := into[k].(map[string]any)
			into[k] = merge(had, inner)
		} else {
			into[k] = v
		}
	}
	return into
}
