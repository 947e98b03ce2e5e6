package apiserver

import (
	"encoding/json"
	"mime"
	"net/http"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
)

// patchLibraries are the packages that merge patches and panic of some, and how these
// are answered: as other wrong ones of their kind.
var patchLibraries = map[types.PatchType]struct {
	pkg    string // as a stack names it
	answer error
}{
	types.StrategicMergePatchType: {"k8s.io/apimachinery/pkg/util/strategicpatch", apierrors.NewBadRequest(
		"the patch cannot be merged: in its lists, give values where there is null, and values as the keys of objects")},
	types.JSONPatchType: {"gopkg.in/evanphx/json-patch%2ev4", &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: "the patch cannot be applied: where an element of a list is null, test the others one by one"}}},
}

// withPatchErrors answers a patch that its library panics of: a strategic merge patch
// when a list has null or an object in a value's place, a JSON patch when it tests a
// list with null. Of such a patch nothing is stored.
func withPatchErrors(h http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if library, ok := patchLibraries[types.PatchType(kind)]; ok && r.Method == http.MethodPatch {
			defer func() {
				switch reason := recover(); {
				case reason == nil:
				case panickedIn(reason, library.pkg):
					responsewriters.ErrorNegotiated(library.answer, s, schema.GroupVersion{}, w, r)
				default:
					panic(reason)
				}
			}()
		}
		h.ServeHTTP(w, r)
	})
}

// runtimes are lines of a stack: places, and functions that panic for their callers.
var runtimes = regexp.MustCompile(`^(\t|runtime\.|reflect\.|panic\()`)

// panickedIn tells whether a function of a package has panicked, by the stack that
// the handlers of k8s.io/apiserver put behind their reason.
func panickedIn(reason any, pkg string) bool {
	text, _ := reason.(string)
	_, stack, _ := strings.Cut(text, "\npanic(")
	_, stack, _ = strings.Cut(stack, "\n") // the panic's arguments
	for line := range strings.Lines(stack) {
		if runtimes.MatchString(line) {
			continue
		}
		return strings.HasPrefix(line, pkg+".")
	}
	return false
}

// versioned are serializers for handlers of kinds whose stored type is the served one.
// A patch may take the version from an object. What is left is of no type that is
// served, and upstream, which decodes it as its inner type, knows none of its fields,
// not even its name, and so refuses it.
type versioned struct{ runtime.NegotiatedSerializer }

func (v versioned) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return v.NegotiatedSerializer.DecoderToVersion(versionedDecoder{d}, gv)
}

type versionedDecoder struct{ runtime.Decoder }

func (d versionedDecoder) Decode(data []byte, kind *schema.GroupVersionKind,
	into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	// Requests with whole objects say which kind they are of when they do not.
	if kind != nil || into == nil || !withoutVersion(data) {
		return d.Decoder.Decode(data, kind, into)
	}
	// A strict decoder names each field that it does not know.
	_, kind, err := d.Decoder.Decode(data, nil, &nothing{})
	if err != nil && !runtime.IsStrictDecodingError(err) {
		return nil, kind, err
	}
	return into, kind, err
}

// withoutVersion tells whether a text is an object in JSON that says no version.
func withoutVersion(data []byte) bool {
	var said struct {
		APIVersion string `json:"apiVersion"`
	}
	return json.Unmarshal(data, &said) == nil && said.APIVersion == ""
}

// nothing is an object without fields.
type nothing struct{ metav1.TypeMeta }

func (n *nothing) DeepCopyObject() runtime.Object { c := *n; return &c }
