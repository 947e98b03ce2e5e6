package members

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/coordinator/pki"
)

// TestNewToken: a token may be so new that the coordinator has not heard of it, and a
// coordinator that stops cuts its connections. What stays so is an error in the end.
func TestNewToken(t *testing.T) {
	keys := pki.Dir(t.TempDir())
	if err := keys.Ensure(pki.Cluster{Domain: "cluster.local"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(keys.Path(pki.CAFile))
	if err != nil {
		t.Fatal(err)
	}
	own, err := tls.LoadX509KeyPair(keys.Path("apiserver.crt"), keys.Path("apiserver.key"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		late int // requests before the coordinator hears of the token
		cut  int // requests whose connection is cut, before these
		want string
	}{
		"known at once": {want: "refuses: no more of you"},
		"known late":    {late: 3, want: "refuses: no more of you"},
		"never known":   {late: 1000, want: "does not know the token"},
		"cut off":       {cut: 2, late: 1, want: "refuses: no more of you"},
		"always cut":    {cut: 1000, want: "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if asked++; asked <= c.cut {
					panic(http.ErrAbortHandler)
				}
				if asked <= c.cut+c.late {
					http.Error(w, "Unauthorized", http.StatusUnauthorized)
					return
				}
				http.Error(w, "no more of you", http.StatusForbidden)
			}))
			server.TLS = &tls.Config{Certificates: []tls.Certificate{own}}
			server.StartTLS()
			defer server.Close()
			client := Client{Servers: []string{server.Listener.Addr().String()}, CA: ca, Token: "a.b"}
			_, err := client.Ask(t.Context(), Request{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("asked %d times: %v", asked, err)
			}
		})
	}
}
