package kind

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Of declares one kind, typed. T is the versioned struct (corev1.Pod); *T is
// the runtime.Object. Every func is pure but for Store and Subresources.
// A nil func means "nothing to do".
type Of[T any] struct {
	Names
	// Default fills unset fields. It runs on each decode, of requests and of
	// stored objects, so it must be idempotent.
	Default func(*T)
	// Create clears what a client may not set (status, mostly) before validation.
	Create func(ctx context.Context, obj *T)
	// Update restores what a client may not change (status, mostly).
	// metadata.generation is raised by the registry whenever Spec differs. Fields
	// of features that are off are dropped before (package gated).
	Update func(ctx context.Context, obj, old *T)
	// PlainNames: a generateName is the name as it is, for a kind whose names say what
	// an object is (IPAddress).
	PlainNames bool
	// Validate and ValidateUpdate return upstream's error texts. ObjectMeta is
	// validated by the registry already, with NameRule.
	Validate       func(ctx context.Context, obj *T) field.ErrorList
	ValidateUpdate func(ctx context.Context, obj, old *T) field.ErrorList
	// Warnings go to the client as HTTP Warning headers.
	Warnings func(ctx context.Context, obj, old *T) []string
	// AnyFinalizer takes finalizers without a domain too. New objects of other kinds
	// take those of upstream's that are not qualified, and no more; updates are as
	// metarules.go says.
	AnyFinalizer bool
	// OwnMeta leaves the metadata of a new object to Validate, and to the registry after
	// it: who sends another mistake too is told of that one alone.
	OwnMeta bool
	// Spec returns the part whose change raises metadata.generation; nil for a
	// kind that has no generation.
	Spec func(*T) any
	// Readable refuses an object that upstream cannot read, before all else is looked at:
	// who sends one gets "bad request". Optional.
	Readable func(*T) error
	// CountsEmpty tells that a list or map that becomes empty, where it was missing, or
	// the other way round, raises the generation too.
	CountsEmpty bool
	// CountsDropped tells that a write raises the generation by fields alone that are
	// dropped because their feature is off.
	CountsDropped bool
	// ResetFields, beside status for the main resource, is what a write to it loses.
	// Optional.
	ResetFields *fieldpath.Set
	// Status, when set, gives the kind a /status subresource.
	Status *StatusOf[T]
	// Fields returns the selectable fields beside metadata.name and
	// metadata.namespace; Indexed names those that the watch cache indexes.
	Fields  func(*T) fields.Set
	Indexed []string
	// RenamedFields are labels of old clients, by which they mean one of Fields.
	RenamedFields map[string]string
	// RefuseField says that there is no field of this label, where upstream has
	// words of its own for the kind.
	RefuseField func(label string) error
	// Columns and Row print the kind as a table, in upstream's columns: all of
	// them, Name and Age too. Columns of priority 1 show with -o wide only.
	Columns []metav1.TableColumnDefinition
	Row     func(*T) []any
	// RowConditions say why a client may show a row otherwise. Optional.
	RowConditions func(*T) []metav1.TableRowCondition
	// AllowCreateOnUpdate and DenyUnconditionalUpdate are upstream's per kind.
	AllowCreateOnUpdate     bool
	DenyUnconditionalUpdate bool
	// Graceful, when set, makes deletion graceful: it returns true when the
	// object stays until its deletionGracePeriodSeconds are over (Pod).
	Graceful func(ctx context.Context, obj *T, options *metav1.DeleteOptions) bool
	// GCPolicy overrides the default garbage collection policy
	// (background); Job and ReplicationController default to orphan.
	GCPolicy rest.GarbageCollectionPolicy
	// TTL in seconds for the stored key (Event); nil: none.
	TTL func(*T) uint64
	// Canonicalize brings a valid object into the form that is stored. Optional.
	Canonicalize func(*T)
	// ReturnDeleted makes DELETE answer with the object in place of a Status; which
	// kinds do is upstream's.
	ReturnDeleted bool
	// Store changes the built store: Begin* and After* hooks, allocators.
	Store func(env *Env, store *genericregistry.Store)
	// Main, when set, returns the storage that serves the resource in place of
	// main; it usually embeds *REST and overrides one verb (Namespace: Delete).
	Main func(env *Env, stores Stores, main *REST) rest.Storage
	// Subresources returns the storages by subresource name ("scale", "log"),
	// /status excepted. stores resolves the kind's own and other kinds' main
	// stores by "group/resource" ("/pods", "apps/replicasets").
	Subresources func(env *Env, stores Stores) map[string]rest.Storage
	// NoStore kinds (SubjectAccessReview) have no etcd storage: Rest serves them.
	Rest func(env *Env, stores Stores) rest.Storage
}

// StatusOf declares a kind's /status subresource.
type StatusOf[T any] struct {
	// Copy puts the status of from into to; the registry uses it both ways: a
	// write to the main resource keeps the old status, one to /status keeps the
	// rest of the old object.
	Copy func(to, from *T)
	// Update may adjust further after Copy. Optional.
	Update func(ctx context.Context, obj, old *T)
	// Meta restores what of the metadata a status write may not change. nil: it
	// writes all metadata that the main resource writes, as most kinds do;
	// metav1.ResetObjectMetaForStatus: none but managedFields.
	Meta func(obj, old metav1.Object)
	// Warnings go to the client as HTTP Warning headers. Optional.
	Warnings func(obj *T) []string
	// NoTable: the status is never shown as a table.
	NoTable bool
	// Validate checks a status write. Optional.
	Validate func(ctx context.Context, obj, old *T) field.ErrorList
	// ResetFields, beside spec, is what a write to /status loses. Optional.
	ResetFields *fieldpath.Set
}

// Names are a kind's names as discovery shows them.
type Names struct {
	GroupVersion schema.GroupVersion
	// Resource is the plural ("pods"), Singular the singular ("pod").
	Resource, Singular string
	ShortNames         []string
	Categories         []string // "all"
	ClusterScoped      bool
	// NameRule validates metadata.name and, as a prefix, generateName; nil:
	// apimachinery's NameIsDNSSubdomain.
	NameRule func(name string, prefix bool) []string
	// List is the zero list object (&corev1.PodList{}).
	List runtime.Object
	// AlsoServed are further group versions of the same Go type (events.k8s.io).
	AlsoServed []schema.GroupVersion
}

// OnlyWhole is a NameRule for kinds whose generateName may be anything that a name
// in DNS comes of. Upstream declares the rule of these, which tells lengths in bytes.
func OnlyWhole(name string, prefix bool) []string {
	if prefix {
		return nil
	}
	return content.IsDNS1123Subdomain(name)
}

// Kind is an Of[T] with its type erased, made by Of.Kind(); the registry builds
// strategies and stores from it.
type Kind interface {
	KindNames() Names
	// NewObject returns a new zero object.
	NewObject() runtime.Object
	// AddTo registers defaulting and field label conversion.
	AddTo(scheme *runtime.Scheme) error
	// Storages returns the REST storages by path ("pods", "pods/status",
	// "pods/log"). It is called after every kind's main store is in stores.
	Storages(env *Env, stores Stores) (map[string]rest.Storage, error)
	// NewStore builds the main store; nil for a kind without storage.
	NewStore(env *Env) (*genericregistry.Store, error)
}

// Stores finds main stores by "group/resource"; core's group is empty ("/pods").
type Stores map[string]*genericregistry.Store

// Env is what kinds need of the server. Fields that a test leaves out are nil.
type Env struct {
	Scheme         *runtime.Scheme
	ParameterCodec runtime.ParameterCodec
	RESTOptions    generic.RESTOptionsGetter
	// Client is the loopback client, in process, with system:masters.
	Client     kubernetes.Interface
	Authorizer authorizer.Authorizer
	// Rules resolves a user's RBAC rules, for escalation checks and
	// SelfSubjectRulesReview.
	Rules RuleResolver
	// ServiceCIDRs are the ranges of ClusterIPs, the primary family first.
	ServiceCIDRs []netip.Prefix
	// ClusterCIDRs are the ranges of pods.
	ClusterCIDRs []netip.Prefix
	// NodePorts is the inclusive NodePort range, 30000-32767 by default.
	NodePortMin, NodePortMax int
	ClusterDomain            string
	// KubeletTransport returns the transport to a node's kubelet: it shows the API
	// server's client certificate, and verifies that the other side is that node.
	KubeletTransport func(node string) http.RoundTripper
	// PastPod returns what is remembered of the newest deleted pod of a name, or of
	// NAME.UID; nil when nothing is. nil itself: nothing ever is.
	PastPod func(namespace, name string) *corev1.Pod
	// Tokens issues service account tokens (TokenRequest); nil: refused.
	Tokens TokenIssuer
	// Components tell whether they are well, by the names of their ComponentStatuses.
	Components map[string]func(ctx context.Context) error
	// AuthenticateToken serves TokenReview.
	AuthenticateToken authenticator.Token
}

// TokenIssuer signs service account tokens (KEP-1205). bound is the object that
// the token dies with (Pod, Secret, Node), nil for none.
type TokenIssuer interface {
	Issue(sa *corev1.ServiceAccount, audiences []string, seconds int64, bound runtime.Object) (token string,
		expires time.Time, err error)
	// Audiences are those of a token for which none are asked.
	Audiences() []string
}

// RuleResolver lists the RBAC rules that apply to a user in a namespace ("" =
// cluster-wide only).
type RuleResolver interface {
	RulesFor(ctx context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error)
}
