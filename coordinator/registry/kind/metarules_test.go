package kind

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Each rule tells what is wrong once more.
func TestMetaRules(t *testing.T) {
	o := Of[corev1.ConfigMap]{}
	old := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", UID: "1", ResourceVersion: "1"}}
	changed := old.DeepCopy()
	changed.UID, changed.Finalizers, changed.GenerateName = "2", []string{"mine"}, "Bad_"
	for rules, want := range map[string]string{
		"":   "",
		"c":  "metadata.generateName",
		"C":  "metadata.generateName metadata.finalizers[0]",
		"u":  "metadata.uid",
		"UC": "metadata.uid metadata.finalizers[0] metadata.generateName metadata.finalizers[0]",
	} {
		var got []string
		for _, err := range o.validateMetaAgain(changed, old, rules) {
			got = append(got, err.Field)
		}
		if have := strings.Join(got, " "); have != want {
			t.Errorf("%q: %s, want %s", rules, have, want)
		}
	}
}
