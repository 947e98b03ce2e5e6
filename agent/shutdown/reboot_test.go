package shutdown

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestReboot(t *testing.T) {
	for _, c := range []struct {
		name, text, shown string
		ready             corev1.ConditionStatus
		want              Step
		wrong             bool
	}{
		{name: "not asked", shown: "here", ready: corev1.ConditionTrue, want: Nothing},
		{name: "asked", text: `{"boot":"here"}`, shown: "here", ready: corev1.ConditionTrue, want: Now},
		{name: "asked, though not Ready", text: `{"boot":"here"}`, shown: "here",
			ready: corev1.ConditionFalse, want: Now},
		{name: "rebooted, the Node shows the boot of before", text: `{"boot":"old"}`, shown: "old",
			ready: corev1.ConditionTrue, want: Nothing},
		{name: "rebooted, not Ready", text: `{"boot":"old"}`, shown: "here", ready: corev1.ConditionFalse, want: Nothing},
		{name: "rebooted, Ready", text: `{"boot":"old","uncordon":true}`, shown: "here",
			ready: corev1.ConditionTrue, want: Over},
		{name: "no JSON", text: `here`, wrong: true},
		{name: "no boot", text: `{}`, wrong: true},
		{name: "too long", text: `{"boot":"` + strings.Repeat("x", maxReboot) + `"}`, wrong: true},
	} {
		r, err := ParseReboot(c.text)
		if (err != nil) != c.wrong {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		n := &corev1.Node{}
		n.Status.NodeInfo.BootID = c.shown
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: c.ready}}
		if got := r.Decide(n, "here"); got != c.want {
			t.Errorf("%s: %v, not %v", c.name, got, c.want)
		}
	}
}

// FuzzParseReboot: others write it.
func FuzzParseReboot(f *testing.F) {
	f.Add(`{"boot":"a","uncordon":true}`)
	f.Add(`{"boot":1}`)
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := ParseReboot(text); r != nil && (err != nil || r.Boot == "" || len(r.Boot) > maxReboot) {
			t.Errorf("%q: %+v, %v", text, r, err)
		}
	})
}
