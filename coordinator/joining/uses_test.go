package joining

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	bootstrap "k8s.io/cluster-bootstrap/token/api"

	"github.com/shoal-project/shoal/coordinator/joinapi"
)

func token(uses string) *corev1.Secret {
	return &corev1.Secret{Data: map[string][]byte{joinapi.UsesKey: []byte(uses)}}
}

// What was counted long ago is forgotten; the list stays short.
func TestLongList(t *testing.T) {
	s := token("1000")
	for i := range 200 {
		s = CountUse(s, fmt.Sprint("uid-", i), time.Now())
	}
	if n := len(counted(s)); n != maxCounted || string(s.Data[joinapi.UsesKey]) != "800" || !Counted(s, "uid-199") {
		t.Errorf("%d counted, %s left", n, s.Data[joinapi.UsesKey])
	}
	if CountUse(&corev1.Secret{}, "x", time.Now()) != nil {
		t.Error("a token for any number of machines was counted")
	}
}

// The last use ends the token soon, also for who would use it once more in the name of
// who did; the Secret that was read is left as it was.
func TestLastUse(t *testing.T) {
	now := time.Now()
	before := token("1")
	s := CountUse(before, "a", now)
	if !UsedUp(s) || UsedUp(before) || CountUse(s, "a", now) != nil {
		t.Errorf("%s left of one", s.Data[joinapi.UsesKey])
	}
	if end := expires(s); end.After(now.Add(keepUsedUp)) || end.Before(now.Add(keepUsedUp-2*time.Second)) {
		t.Errorf("it ends %s", end)
	}
	s.Data[bootstrap.BootstrapTokenExpirationKey] = []byte(now.Add(time.Minute).UTC().Format(time.RFC3339))
	s.Data[joinapi.UsesKey] = []byte("1")
	if end := expires(CountUse(s, "b", now)); end.After(now.Add(2 * time.Minute)) {
		t.Errorf("a token that ends soon ends %s", end)
	}
	if !UsedUp(token("many")) || UsedUp(&corev1.Secret{}) {
		t.Error("what is no number is no use; none is any number")
	}
}
