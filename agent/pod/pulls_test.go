package pod

import (
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

// A pull goes on while a pod waits for it, and ends with the last one that does.
func TestPullsOfPodsThatAreGone(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		f.pullable["i:2"], f.slow["pull"] = true, time.Hour
		first := testPod(corev1.RestartPolicyAlways, "pull:a")
		second := first.DeepCopy()
		second.Name, second.UID = "q", "q"
		pulling := func() bool {
			synctest.Wait()
			m.pulls.mu.Lock()
			defer m.pulls.mu.Unlock()
			return len(m.pulls.busy) == 1
		}
		m.Update(first, SourceAPI)
		synctest.Wait()
		m.Update(second, SourceAPI)
		if time.Sleep(time.Minute); !pulling() {
			t.Fatal("nothing is pulled")
		}
		m.Remove(first.UID)
		if time.Sleep(time.Minute); !pulling() {
			t.Error("the pull ended though a pod waits for it")
		}
		m.Remove(second.UID)
		if time.Sleep(time.Minute); pulling() {
			t.Error("the pull goes on for nobody")
		}
		third := first.DeepCopy()
		third.Name, third.UID = "r", "r"
		m.Update(third, SourceAPI)
		time.Sleep(59 * time.Minute)
		f.mu.Lock()
		if f.images["i:2"] {
			t.Error("what nobody waits for was pulled to its end")
		}
		f.mu.Unlock()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.images["i:2"] {
			t.Error("the next pod that wants it does not have it")
		}
	})
}

// Names that are none are not asked of a registry.
func TestNamesOfImages(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		p := testPod(corev1.RestartPolicyAlways, "a")
		for image, want := range map[string]string{
			"i:1":           "",
			"h.io:5000/i@x": "invalid reference format",
			"h.io/i:":       "invalid reference format",
			"h.io/I:1":      "invalid reference format: repository name (I) must be lowercase",
			"h.io//i":       "invalid reference format",
			"-i":            "invalid reference format",
			"i:1 ":          "invalid reference format",
			"":              "invalid reference format",
			strings.Repeat("a", 64): "invalid repository name (" + strings.Repeat("a", 64) +
				"), cannot specify 64-byte hexadecimal strings",
		} {
			c := p.Spec.Containers[0]
			c.Image, c.ImagePullPolicy = image, corev1.PullNever
			v := m.ensureImage(t.Context(), &launch.Facts{Pod: p, Container: &c})
			if want == "" && v == nil {
				continue
			}
			if v == nil || v.Reason != "InvalidImageName" || !strings.HasSuffix(v.Message, ": "+want) {
				t.Errorf("%q: %+v", image, v)
			}
		}
	})
}

// Who waits for the image of a volume is told that one's name.
func TestImageOfVolumeBacksOff(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		p := testPod(corev1.RestartPolicyAlways, "a")
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			Image: &corev1.ImageVolumeSource{Reference: "far/away:1"}}}}
		m.Update(p, SourceAPI)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		e.mu.Lock()
		defer e.mu.Unlock()
		want := `Back-off pulling image "far/away:1": ErrImagePull: registry says no`
		if fault := e.records[string(p.UID)].Containers["a"].Fault; fault == nil || fault.Message != want {
			t.Errorf("%+v, want %s", fault, want)
		}
	})
}

// said keeps what events say.
type said struct {
	*edges
	words []string
}

func (s *said) Event(_ *corev1.Pod, _, _, reason, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reason == "Pulled" {
		s.words = append(s.words, message)
	}
}

// As many images are pulled at one time as may be; events tell how long each took, and how
// long its pod waited.
func TestPullsInTurn(t *testing.T) {
	for most, want := range map[int][]string{
		0: {`"i:2" in 20s (20s including waiting)`, `"i:3" in 20s (20s including waiting)`},
		1: {`"i:2" in 20s (20s including waiting)`, `"i:3" in 20s (39s including waiting)`},
		2: {`"i:2" in 20s (20s including waiting)`, `"i:3" in 20s (20s including waiting)`},
	} {
		t.Run(strconv.Itoa(most), func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				f, e := newFakeCRI(), &said{edges: &edges{records: map[string]*record.Pod{}}}
				m, stop := start(t, dir, f, e.edges)
				defer stop()
				m.Events, m.MaxPulls = e, most
				f.pullable["i:2"], f.pullable["i:3"], f.slow["pull"] = true, true, 20*time.Second
				p := testPod(corev1.RestartPolicyAlways, "a")
				for _, image := range []string{"i:2", "i:3"} {
					another := p.DeepCopy()
					another.Name, another.UID = image, types.UID(image)
					another.Spec.Containers[0].Image = image
					m.Update(another, SourceAPI)
					time.Sleep(time.Second)
				}
				time.Sleep(time.Minute)
				e.mu.Lock()
				defer e.mu.Unlock()
				if len(e.words) != len(want) {
					t.Fatalf("%q", e.words)
				}
				for i, w := range want {
					if !strings.Contains(e.words[i], w) {
						t.Errorf("%s, want %s", e.words[i], w)
					}
				}
			})
		})
	}
}
