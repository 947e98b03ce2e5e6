package apiserver

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// withSoundPatches refuses strategic merge patches with a list that begins with null:
// the library that merges them panics when it meets such a list twice. Patches of
// more than limit bytes are left to who reads them, and those of versions that are
// not merged so to who says so.
func withSoundPatches(h http.Handler, s runtime.NegotiatedSerializer, limit int64,
	merged func(schema.GroupVersion) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		info, ok := request.RequestInfoFrom(r.Context())
		if r.Method != http.MethodPatch || kind != string(types.StrategicMergePatchType) ||
			!ok || !merged(schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}) {
			h.ServeHTTP(w, r)
			return
		}
		// An error comes again when the rest is read.
		head, _ := io.ReadAll(io.LimitReader(r.Body, limit))
		if beginsWithNull(head) {
			err := apierrors.NewBadRequest("the patch has a list that begins with null: leave out its null elements")
			responsewriters.ErrorNegotiated(err, s, schema.GroupVersion{}, w, r)
			return
		}
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(head), r.Body), r.Body}
		h.ServeHTTP(w, r)
	})
}

// builtin tells whether a version is of kinds that are Go types.
func (s *Server) builtin(gv schema.GroupVersion) bool {
	return s.env.Scheme.IsVersionRegistered(gv) || indispensable[gv]
}

// beginsWithNull tells whether a list in JSON text does. A text that is a list itself
// is no patch, and is left to who says so.
func beginsWithNull(text []byte) bool {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		return false
	}
	quoted, first := false, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted:
			if c == '\\' {
				i++
			}
			quoted = c != '"'
		case first && bytes.HasPrefix(text[i:], []byte("null")):
			return true
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		default:
			quoted, first = c == '"', c == '['
		}
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
