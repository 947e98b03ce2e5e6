package apiserver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/resourceconfig"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/shoal-project/shoal/coordinator/apiserver/openapi"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// indispensable are the group versions that this server works by itself: its own
// objects, the two that tell what else is served, and the one that Services'
// addresses are allocated by.
var indispensable = map[schema.GroupVersion]bool{
	{Version: "v1"}:                      true,
	apiextensionsv1.SchemeGroupVersion:   true,
	apiregistrationv1.SchemeGroupVersion: true,
	networkingv1.SchemeGroupVersion:      true,
}

// stepAPIs are what start steps write or read beside these. A step whose API is
// off is left out.
var stepAPIs = map[string]schema.GroupVersionResource{
	"rbac/bootstrap-roles":                           rbacv1.SchemeGroupVersion.WithResource("clusterroles"),
	"scheduling/bootstrap-system-priority-classes":   schedulingv1.SchemeGroupVersion.WithResource("priorityclasses"),
	"start-kube-apiserver-identity-lease-controller": coordinationv1.SchemeGroupVersion.WithResource("leases"),
	identityCollector:                                coordinationv1.SchemeGroupVersion.WithResource("leases"),
	flowProducer:                                     flowcontrolv1.SchemeGroupVersion.WithResource("flowschemas"),
	"api-endpoints":                                  discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
}

// enablement tells which of the built-in APIs are served. What is not has no path,
// and neither discovery nor OpenAPI know it; its objects stay in the store, and
// what decides by them in this process goes on to read them there.
type enablement struct {
	config *serverstorage.ResourceConfig
	// narrowed is set when anything is off.
	narrowed bool
}

// newEnablement applies overrides, in the form of upstream's --runtime-config, to
// the kinds: all are on by themselves.
func newEnablement(kinds []kind.Kind, overrides map[string]string) (*enablement, error) {
	known := servedAPIs{}
	for _, k := range kinds {
		n := k.KindNames()
		for _, gv := range append([]schema.GroupVersion{n.GroupVersion}, n.AlsoServed...) {
			known.add(gv, n.Resource)
		}
	}
	known.add(apiextensionsv1.SchemeGroupVersion, "customresourcedefinitions")
	known.add(apiregistrationv1.SchemeGroupVersion, "apiservices")
	e := &enablement{config: serverstorage.NewResourceConfig()}
	for gv := range known {
		e.config.EnableVersions(gv)
	}
	if err := known.check(overrides); err != nil {
		return nil, err
	}
	if _, err := resourceconfig.MergeAPIResourceConfigs(e.config, overrides, known); err != nil {
		return nil, fmt.Errorf("runtimeConfig: %w", err)
	}
	for gv := range indispensable {
		e.config.EnableVersions(gv)
	}
	for gv, resources := range known {
		for r := range resources {
			e.narrowed = e.narrowed || !e.on(gv.WithResource(r))
		}
	}
	return e, nil
}

// on tells whether a resource is served.
func (e *enablement) on(gvr schema.GroupVersionResource) bool { return e.config.ResourceEnabled(gvr) }

// step tells whether a start step has what it needs.
func (e *enablement) step(name string) bool {
	gvr, ok := stepAPIs[name]
	return !ok || e.on(gvr)
}

// path tells whether a path of the API may be in OpenAPI documents.
func (e *enablement) path(p string) bool {
	parts := strings.Split(strings.Trim(p, "/"), "/")
	gv := schema.GroupVersion{}
	switch {
	case len(parts) >= 2 && parts[0] == "api":
		gv.Version, parts = parts[1], parts[2:]
	case len(parts) == 2 && parts[0] == "apis":
		return e.config.AnyResourceForGroupEnabled(parts[1])
	case len(parts) >= 3 && parts[0] == "apis":
		gv.Group, gv.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return true
	}
	if len(parts) > 0 && parts[0] == "watch" {
		parts = parts[1:]
	}
	if len(parts) > 2 && parts[0] == "namespaces" && !namespaceSubresources[parts[2]] {
		parts = parts[2:]
	}
	if len(parts) == 0 {
		return e.version(gv)
	}
	return e.on(gv.WithResource(parts[0]))
}

// namespaceSubresources follow a namespace's name, where else a resource does.
var namespaceSubresources = map[string]bool{"status": true, "finalize": true}

// version tells whether anything of a version is served.
func (e *enablement) version(gv schema.GroupVersion) bool {
	if e.config.GroupVersionConfigs[gv] {
		return true
	}
	for gvr, on := range e.config.ResourceConfigs {
		if on && gvr.GroupVersion() == gv {
			return true
		}
	}
	return false
}

// narrow leaves out of an OpenAPI document the paths that are not served, and the
// models that only these use: definitions in v2, components/schemas in v3.
func (e *enablement) narrow(doc []byte) ([]byte, error) {
	var all map[string]any
	if err := json.Unmarshal(doc, &all); err != nil {
		return nil, fmt.Errorf("read OpenAPI document: %w", err)
	}
	paths, _ := all["paths"].(map[string]any)
	maps.DeleteFunc(paths, func(p string, _ any) bool { return !e.path(p) })
	models, prefix := map[string]any{}, "#/definitions/"
	if definitions, ok := all["definitions"].(map[string]any); ok {
		models = definitions
	} else if components, ok := all["components"].(map[string]any); ok {
		models, _ = components["schemas"].(map[string]any)
		prefix = "#/components/schemas/"
	}
	used := map[string]bool{}
	mark(paths, prefix, models, used)
	maps.DeleteFunc(models, func(name string, _ any) bool { return !used[name] })
	return json.Marshal(all)
}

// mark notes the models that v refers to, and those that these do.
func mark(v any, prefix string, models map[string]any, used map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			if name, ok := strings.CutPrefix(ref, prefix); ok && !used[name] {
				used[name] = true
				mark(models[name], prefix, models, used)
			}
		}
		for _, child := range v {
			mark(child, prefix, models, used)
		}
	case []any:
		for _, child := range v {
			mark(child, prefix, models, used)
		}
	}
}

// fingerprint changes when what is served does.
func (e *enablement) fingerprint(hash string) string {
	if !e.narrowed {
		return hash
	}
	sum := sha256.Sum256(fmt.Append(nil, hash, e.config.GroupVersionConfigs, e.config.ResourceConfigs))
	return strings.ToUpper(hex.EncodeToString(sum[:16]))
}

// builtinDocuments are the static OpenAPI documents, without what is off. Those
// that are not as they lie are made when first asked for, and kept.
type builtinDocuments struct {
	enabled *enablement

	mu   sync.Mutex
	made map[string]openapi.Document
}

// v3 returns the hash of each OpenAPI v3 document by its path.
func (b *builtinDocuments) v3() map[string]string {
	out := map[string]string{}
	for path, hash := range openapi.V3() {
		if b.enabled.path(path) {
			out[path] = b.enabled.fingerprint(hash)
		}
	}
	return out
}

func (b *builtinDocuments) read(name string) (openapi.Document, error) {
	doc, err := openapi.Read(name)
	if err != nil || !b.enabled.narrowed {
		return doc, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if made, ok := b.made[name]; ok {
		return made, nil
	}
	made, err := b.narrow(name)
	if err != nil {
		return openapi.Document{}, err
	}
	made.Hash = b.enabled.fingerprint(doc.Hash)
	if b.made == nil {
		b.made = map[string]openapi.Document{}
	}
	b.made[name] = made
	return made, nil
}

func (b *builtinDocuments) narrow(name string) (openapi.Document, error) {
	source := name
	if name == openapi.V2Proto {
		source = openapi.V2JSON
	}
	doc, err := openapi.Read(source)
	if err != nil {
		return doc, err
	}
	text, err := doc.Plain()
	if err == nil {
		text, err = b.enabled.narrow(text)
	}
	if err == nil && name == openapi.V2Proto {
		text, err = encodeV2(text)
	}
	if err != nil {
		return openapi.Document{}, err
	}
	return compress(text)
}

// servedAPIs are the resources of each group version that could be served; it
// implements resourceconfig.GroupVersionRegistry.
type servedAPIs map[schema.GroupVersion]map[string]bool

func (s servedAPIs) add(gv schema.GroupVersion, resource string) {
	if s[gv] == nil {
		s[gv] = map[string]bool{}
	}
	s[gv][resource] = true
}

// matchers are keys that are for many versions.
var matchers = []string{resourceconfig.APIAll, resourceconfig.APIGA, resourceconfig.APIBeta, resourceconfig.APIAlpha}

// check tells every override that means nothing here.
func (s servedAPIs) check(overrides map[string]string) error {
	if len(overrides) == 1 && overrides[resourceconfig.APIAll] == "false" {
		return fmt.Errorf("runtimeConfig: with only %s=false there would be nothing to serve; say what is on",
			resourceconfig.APIAll)
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(overrides)) {
		if slices.Contains(matchers, key) {
			if v := overrides[key]; v != "true" && v != "false" {
				errs = append(errs, fmt.Errorf("runtimeConfig %q: %q: give true or false", key, v))
			}
			continue
		}
		if err := s.checkKey(key, overrides[key]); err != nil {
			errs = append(errs, fmt.Errorf("runtimeConfig %q: %w", key, err))
		}
	}
	return errors.Join(errs...)
}

func (s servedAPIs) checkKey(key, value string) error {
	parts := strings.Split(key, "/")
	if len(parts) != 2 && len(parts) != 3 {
		return fmt.Errorf("give group/version, group/version/resource, or one of %s", strings.Join(matchers, ", "))
	}
	switch value {
	case "", "1", "t", "T", "true", "TRUE", "True":
	case "0", "f", "F", "false", "FALSE", "False":
		if gv := (schema.GroupVersion{Group: parts[0], Version: parts[1]}); indispensable[gv] {
			return errors.New("cannot be off: the cluster's own parts work by it")
		}
	default:
		return fmt.Errorf("%q: give true or false", value)
	}
	gv := schema.GroupVersion{Group: parts[0], Version: parts[1]}
	if !s.IsGroupRegistered(gv.Group) {
		return fmt.Errorf("unknown API group %q", gv.Group)
	}
	if !s.IsVersionRegistered(gv) {
		return fmt.Errorf("group version %s is not served here; the group's versions are %v", gv,
			s.PrioritizedVersionsForGroup(gv.Group))
	}
	if len(parts) == 3 && !s[gv][parts[2]] {
		return fmt.Errorf("%s has no resource %q; give its plural in lower case", gv, parts[2])
	}
	return nil
}

// IsGroupRegistered implements resourceconfig.GroupVersionRegistry, as do the
// following.
func (s servedAPIs) IsGroupRegistered(group string) bool {
	return len(s.PrioritizedVersionsForGroup(group)) > 0
}

// IsVersionRegistered tells whether a version could be served.
func (s servedAPIs) IsVersionRegistered(gv schema.GroupVersion) bool { return s[gv] != nil }

// PrioritizedVersionsAllGroups are all, those of a group in its order.
func (s servedAPIs) PrioritizedVersionsAllGroups() (out []schema.GroupVersion) {
	groups := map[string]bool{}
	for gv := range s {
		groups[gv.Group] = true
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		out = append(out, s.PrioritizedVersionsForGroup(group)...)
	}
	return out
}

// PrioritizedVersionsForGroup are the versions of a group, the preferred one first.
func (s servedAPIs) PrioritizedVersionsForGroup(group string) (out []schema.GroupVersion) {
	for gv := range s {
		if gv.Group == group {
			out = append(out, gv)
		}
	}
	slices.SortFunc(out, func(a, b schema.GroupVersion) int {
		if pa, pb := versionPriority(a), versionPriority(b); pa != pb {
			return int(pb - pa)
		}
		return strings.Compare(b.Version, a.Version)
	})
	return out
}
