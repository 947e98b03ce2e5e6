package kind

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// metaRules say how the metadata of an update is looked at again, after the registry
// has compared it with the old one: a client is told of each time. A letter a time:
//
//	C, c  as that of a new object
//	U, u  as that of an update
//	.     what a kind itself checks comes here, instead of after all of this
//
// The large ones look at the finalizers too.
type metaRules struct{ update, status string }

// metaRulesOf are upstream's, by "group/resource". Kinds that are not here look at it
// no more.
var metaRulesOf = map[string]metaRules{
	"/configmaps":             {update: "UC"},
	"/endpoints":              {update: "UC"},
	"/limitranges":            {update: "C"},
	"/namespaces":             {update: "CU", status: "U"},
	"/nodes":                  {update: "CU", status: "U"},
	"/persistentvolumeclaims": {update: "UC", status: "U"},
	"/persistentvolumes":      {update: "CC", status: "U"},
	"/pods":                   {update: "UC", status: "U"},
	"/podtemplates":           {update: "U"},
	"/replicationcontrollers": {update: "U", status: "U"},
	"/resourcequotas":         {update: "U", status: "U"},
	"/secrets":                {update: "UC"},
	"/serviceaccounts":        {update: "UC"},
	"/services":               {update: "U", status: "U"},

	"admissionregistration.k8s.io/mutatingadmissionpolicies":         {update: "c"},
	"admissionregistration.k8s.io/mutatingadmissionpolicybindings":   {update: "c"},
	"admissionregistration.k8s.io/mutatingwebhookconfigurations":     {update: "c"},
	"admissionregistration.k8s.io/validatingadmissionpolicies":       {update: "c"},
	"admissionregistration.k8s.io/validatingadmissionpolicybindings": {update: "c"},
	"admissionregistration.k8s.io/validatingwebhookconfigurations":   {update: "c"},

	"apps/controllerrevisions":                                 {update: "UC"},
	"apps/daemonsets":                                          {update: "U", status: "U"},
	"apps/deployments":                                         {update: "U", status: "U"},
	"apps/replicasets":                                         {update: "U", status: "U"},
	"apps/statefulsets":                                        {update: "U", status: ".U"},
	"autoscaling/horizontalpodautoscalers":                     {update: "U", status: "U"},
	"batch/cronjobs":                                           {update: "U"},
	"batch/jobs":                                               {update: "CU", status: "U"},
	"certificates.k8s.io/certificatesigningrequests":           {update: "UC", status: "UC"},
	"coordination.k8s.io/leases":                               {update: "u"},
	"discovery.k8s.io/endpointslices":                          {update: "C"},
	"flowcontrol.apiserver.k8s.io/flowschemas":                 {update: "C"},
	"flowcontrol.apiserver.k8s.io/prioritylevelconfigurations": {update: "C"},
	"networking.k8s.io/ingressclasses":                         {update: "UC"},
	"networking.k8s.io/ingresses":                              {update: "UC", status: "U"},
	"networking.k8s.io/ipaddresses":                            {update: "CU"},
	"networking.k8s.io/networkpolicies":                        {update: "U"},
	"networking.k8s.io/servicecidrs":                           {update: "U", status: "U"},
	"node.k8s.io/runtimeclasses":                               {update: "cu"},
	"rbac.authorization.k8s.io/clusterrolebindings":            {update: "CU"},
	"rbac.authorization.k8s.io/clusterroles":                   {update: "CU"},
	"rbac.authorization.k8s.io/rolebindings":                   {update: "CU"},
	"rbac.authorization.k8s.io/roles":                          {update: "CU"},
	"resource.k8s.io/deviceclasses":                            {update: "CU"},
	"resource.k8s.io/resourceclaims":                           {update: "CU", status: "U"},
	"resource.k8s.io/resourceclaimtemplates":                   {update: "CU"},
	"resource.k8s.io/resourceslices":                           {update: "U"},
	"scheduling.k8s.io/priorityclasses":                        {update: "U"},
	"storage.k8s.io/csidrivers":                                {update: "U"},
	"storage.k8s.io/csinodes":                                  {update: "C"},
	"storage.k8s.io/csistoragecapacities":                      {update: "CU"},
	"storage.k8s.io/storageclasses":                            {update: "CU"},
	"storage.k8s.io/volumeattachments":                         {update: "C", status: "C"},
	"storage.k8s.io/volumeattributesclasses":                   {update: "UC"},
}

var metaPath = field.NewPath("metadata")

// validateMeta checks the metadata of a new object.
func (o *Of[T]) validateMeta(t *T) field.ErrorList {
	rule := o.NameRule
	if rule == nil {
		rule = apivalidation.NameIsDNSSubdomain
	}
	return apivalidation.ValidateObjectMetaAccessor(metaOf(t), !o.ClusterScoped, rule, metaPath)
}

// validateUpdateOf checks the metadata of an update by rules, and the update by what the
// kind itself says of it; own may be nil.
func (o *Of[T]) validateUpdateOf(ctx context.Context, t, old *T, rules string,
	own func(context.Context, *T, *T) field.ErrorList) field.ErrorList {
	before, after, _ := strings.Cut(rules, ".")
	errs := o.validateMetaAgain(t, old, before)
	if own != nil {
		errs = append(errs, own(ctx, t, old)...)
	}
	return append(errs, o.validateMetaAgain(t, old, after)...)
}

func (o *Of[T]) validateMetaAgain(t, old *T, rules string) (errs field.ErrorList) {
	for _, rule := range rules {
		switch rule {
		case 'C', 'c':
			errs = append(errs, o.validateMeta(t)...)
		case 'U', 'u':
			errs = append(errs, apivalidation.ValidateObjectMetaAccessorUpdate(metaOf(t), metaOf(old), metaPath)...)
		}
		if rule == 'C' || rule == 'U' {
			errs = append(errs, ValidateFinalizers(metaOf(t))...)
		}
	}
	return errs
}

// ValidateFinalizers refuses finalizers that say no domain, but for the few that are
// older than this rule.
func ValidateFinalizers(m metav1.Object) (errs field.ErrorList) {
	for i, name := range m.GetFinalizers() {
		switch name {
		case string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents:
			continue
		}
		at := metaPath.Child("finalizers").Index(i)
		if !strings.Contains(name, "/") {
			errs = append(errs, field.Invalid(at, name, "name is neither a standard finalizer name nor is it fully qualified"))
		}
	}
	return errs
}
