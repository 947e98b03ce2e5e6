package persistentvolume

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestReadTemplate: what is no pod that could empty a volume is told at start.
func TestReadTemplate(t *testing.T) {
	const spec = "{containers: [{name: c, image: i}], volumes: [{name: v}]}"
	for _, c := range []struct{ name, text, want string }{
		{"whole", "{apiVersion: v1, kind: Pod, spec: " + spec + "}", ""},
		{"no-volume", "{apiVersion: v1, kind: Pod, spec: {containers: [{name: c}]}}", "spec.volumes is empty"},
		{"no-container", "{apiVersion: v1, kind: Pod, spec: {volumes: [{name: v}]}}", "spec.containers is empty"},
		{"another-kind", "{apiVersion: apps/v1, kind: Deployment, spec: {}}", "give a Pod of v1"},
		{"empty", "", "give a Pod of v1"},
		{"unknown-field", "{apiVersion: v1, kind: Pod, spec: {container: []}}", `unknown field "container"`},
		{"too-long", strings.Repeat("#", templateSize+1), "give a file with one Pod"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pod.yaml")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			p, err := ReadTemplate(file)
			switch {
			case c.want == "" && (err != nil || p.Namespace != "default"):
				t.Errorf("got %v, %v", p, err)
			case c.want == "":
			case err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file):
				t.Errorf("got %v, want %s in it, and the file", err, c.want)
			}
		})
	}
}

// TestRecyclerLimit: a pod has its least, or more for a large volume.
func TestRecyclerLimit(t *testing.T) {
	for _, c := range []struct {
		size        string
		least, each int
		want        int64
	}{
		{"1Gi", 60, 30, 60}, {"4Gi", 60, 30, 120}, {"40Gi", 300, 30, 1200}, {"40Gi", 300, 0, 300}, {"1", 7, 30, 7},
		{"8Ei", 300, math.MaxInt32, math.MaxInt32},
	} {
		pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(c.size)}}}
		if got := (Recycler{Least: c.least, EachGiB: c.each}).limit(pv); got != c.want {
			t.Errorf("%s, %d, %d: %d, want %d", c.size, c.least, c.each, got, c.want)
		}
	}
}

func FuzzTemplate(f *testing.F) {
	f.Add([]byte("{apiVersion: v1, kind: Pod, spec: {containers: [{name: c}], volumes: [{name: v}]}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := template(text)
		if err != nil {
			return
		}
		pv := &corev1.PersistentVolume{}
		pv.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/x"}
		got := Recyclers{HostPath: Recycler{Template: p}}.pod(pv)
		if s := got.Spec.Volumes[0]; s.HostPath == nil || s.HostPath.Path != "/x" || got.Name != recyclerPrefix {
			t.Errorf("%q empties %v", text, s)
		}
	})
}
