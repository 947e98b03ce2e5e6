package kind

import (
	"fmt"
	"net/url"
	"reflect"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// hubs are the versions that serve as their group's internal version; of a kind
// in two of them, the first one's type does. Groups of which no kind is declared
// cost nothing but map entries.
var hubs = []schema.GroupVersion{
	{Group: "", Version: "v1"},
	{Group: "admissionregistration.k8s.io", Version: "v1"},
	{Group: "apps", Version: "v1"},
	{Group: "authentication.k8s.io", Version: "v1"},
	{Group: "authorization.k8s.io", Version: "v1"},
	{Group: "autoscaling", Version: "v2"}, // the version that is stored
	{Group: "autoscaling", Version: "v1"}, // for Scale
	{Group: "batch", Version: "v1"},
	{Group: "certificates.k8s.io", Version: "v1"},
	{Group: "coordination.k8s.io", Version: "v1"},
	{Group: "discovery.k8s.io", Version: "v1"},
	{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"},
	{Group: "metrics.k8s.io", Version: "v1beta1"}, // there is no other
	{Group: "networking.k8s.io", Version: "v1"},
	{Group: "node.k8s.io", Version: "v1"},
	{Group: "policy", Version: "v1"},
	{Group: "rbac.authorization.k8s.io", Version: "v1"},
	{Group: "resource.k8s.io", Version: "v1"},
	{Group: "scheduling.k8s.io", Version: "v1"},
	{Group: "storage.k8s.io", Version: "v1"},
}

// NewScheme registers the versioned types of k8s.io/api, and those of metrics, both
// as themselves and as their group's internal version ("identity hub"), so that no
// internal types and, for groups of one version, no conversions exist.
func NewScheme(kinds []Kind) (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register types: %w", err)
	}
	// Without the options that AddToScheme brings for each group: nobody deletes or
	// watches metrics, and every group's documents would name them.
	scheme.AddKnownTypes(metricsv1beta1.SchemeGroupVersion, &metricsv1beta1.NodeMetrics{},
		&metricsv1beta1.NodeMetricsList{}, &metricsv1beta1.PodMetrics{}, &metricsv1beta1.PodMetricsList{})
	unversioned := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, unversioned)
	scheme.AddUnversionedTypes(unversioned, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{},
		&metav1.APIGroup{}, &metav1.APIResourceList{})
	versions := map[string][]schema.GroupVersion{}
	for _, gv := range hubs {
		addHub(scheme, gv)
		versions[gv.Group] = append(versions[gv.Group], gv)
	}
	for group, list := range versions {
		if err := scheme.SetVersionPriority(list...); err != nil {
			return nil, fmt.Errorf("register %s: %w", group, err)
		}
	}
	if err := addEvents(scheme); err != nil {
		return nil, err
	}
	if err := addEviction(scheme); err != nil {
		return nil, err
	}
	addTokenRequests(scheme)
	if err := addQueryOptions(scheme); err != nil {
		return nil, err
	}
	for _, k := range kinds {
		if err := k.AddTo(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

func addHub(scheme *runtime.Scheme, gv schema.GroupVersion) {
	for name, t := range scheme.KnownTypes(gv) {
		if strings.HasPrefix(t.PkgPath(), "k8s.io/apimachinery/") {
			continue // WatchEvent and the options are registered by AddToGroupVersion
		}
		internal := schema.GroupVersionKind{Group: gv.Group, Version: runtime.APIVersionInternal, Kind: name}
		if scheme.Recognizes(internal) {
			continue
		}
		scheme.AddKnownTypeWithName(internal, reflect.New(t).Interface().(runtime.Object))
	}
}

// addEviction lets old clients post an Eviction of policy/v1beta1, which has the
// same fields.
func addEviction(scheme *runtime.Scheme) error {
	err := scheme.AddConversionFunc((*policyv1beta1.Eviction)(nil), (*policyv1.Eviction)(nil),
		func(a, b any, _ conversion.Scope) error {
			in, out := a.(*policyv1beta1.Eviction), b.(*policyv1.Eviction)
			out.ObjectMeta, out.DeleteOptions = in.ObjectMeta, in.DeleteOptions
			return nil
		})
	if err != nil {
		return fmt.Errorf("register evictions: %w", err)
	}
	return nil
}

// addTokenRequests has a request for a token decoded with its default, so that the
// default is owned by who sends the request, as that of any object is.
func addTokenRequests(scheme *runtime.Scheme) {
	scheme.AddTypeDefaultingFunc(&authenticationv1.TokenRequest{}, func(obj any) {
		if spec := &obj.(*authenticationv1.TokenRequest).Spec; spec.ExpirationSeconds == nil {
			hour := int64(3600)
			spec.ExpirationSeconds = &hour
		}
	})
}

// addQueryOptions registers the conversions of query parameters to the options
// of connecting subresources.
func addQueryOptions(scheme *runtime.Scheme) error {
	for _, into := range []runtime.Object{
		&corev1.PodLogOptions{}, &corev1.PodExecOptions{}, &corev1.PodAttachOptions{}, &corev1.PodPortForwardOptions{},
		&corev1.PodProxyOptions{}, &corev1.ServiceProxyOptions{}, &corev1.NodeProxyOptions{},
	} {
		err := scheme.AddConversionFunc((*url.Values)(nil), into, func(a, b any, _ conversion.Scope) error {
			return fromQuery(*a.(*url.Values), b)
		})
		if err != nil {
			return fmt.Errorf("register query options: %w", err)
		}
	}
	return nil
}

// fromQuery sets the fields of the struct that into points to from the query
// parameters of the same JSON names.
func fromQuery(query url.Values, into any) error {
	v := reflect.ValueOf(into).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		values, ok := query[name]
		if !ok || name == "" {
			continue
		}
		if err := setField(v.Field(i).Addr().Interface(), values); err != nil {
			return fmt.Errorf("query parameter %s: %w", name, err)
		}
	}
	return nil
}

func setField(into any, values []string) error {
	switch p := into.(type) {
	case *string:
		return runtime.Convert_Slice_string_To_string(&values, p, nil)
	case **string:
		if len(values) > 0 {
			*p = &values[0]
		}
		return nil
	case *bool:
		return runtime.Convert_Slice_string_To_bool(&values, p, nil)
	case **int64:
		return runtime.Convert_Slice_string_To_Pointer_int64(&values, p, nil)
	case *[]string:
		*p = append([]string(nil), values...)
		return nil
	case *[]int32:
		return metav1.Convert_Slice_string_To_Slice_int32(&values, p, nil)
	case **metav1.Time:
		return metav1.Convert_Slice_string_To_Pointer_v1_Time(&values, p, nil)
	}
	return fmt.Errorf("no conversion to %T", into)
}
