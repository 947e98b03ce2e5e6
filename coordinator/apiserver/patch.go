package apiserver

import (
	"bytes"
	"io"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
)

// withSoundPatches refuses strategic merge patches with a list that begins with null:
// the library that merges them panics when it meets such a list twice. Patches of
// more than limit bytes are left to who reads them.
func withSoundPatches(h http.Handler, s runtime.NegotiatedSerializer, limit int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if r.Method != http.MethodPatch || kind != string(types.StrategicMergePatchType) {
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

// beginsWithNull tells whether a list in JSON text does.
func beginsWithNull(text []byte) bool {
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
