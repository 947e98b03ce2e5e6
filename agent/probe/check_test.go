package probe

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestHookRequest: a hook's request has the headers that its author gave, an empty one is not
// sent; and it is told when a server answered HTTP to HTTPS.
func TestHookRequest(t *testing.T) {
	var got string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = fmt.Sprintf("%s %q %q %s", r.Host, r.Header["User-Agent"], r.Header["Accept"], r.URL)
		w.WriteHeader(http.StatusInternalServerError) // any answer is good
	}))
	defer s.Close()
	at := netip.MustParseAddrPort(strings.TrimPrefix(s.URL, "http://"))
	for _, c := range []struct {
		scheme  corev1.URIScheme
		headers []corev1.HTTPHeader
		want    string
		plain   bool
	}{
		{"", nil, at.String() + ` ["kube-lifecycle/1.36"] ["*/*"] /x?y=1`, false},
		{"", []corev1.HTTPHeader{{Name: "user-agent", Value: "me"}, {Name: "Accept", Value: "text/plain"},
			{Name: "Host", Value: "h"}}, `h ["me"] ["text/plain"] /x?y=1`, false},
		{"HTTPS", []corev1.HTTPHeader{{Name: "User-Agent"}, {Name: "Accept"}}, at.String() + ` [] [] /x?y=1`, true},
	} {
		h := &corev1.HTTPGetAction{Path: "/x?y=1", Port: intstr.FromInt(int(at.Port())), Scheme: c.scheme,
			HTTPHeaders: c.headers}
		plain, err := Get(t.Context(), &corev1.Container{}, h, at.Addr().String())
		if err != nil || got != c.want || (plain == at.String()) != c.plain {
			t.Errorf("%s, %q, %v, want %s", got, plain, err, c.want)
		}
	}
}
