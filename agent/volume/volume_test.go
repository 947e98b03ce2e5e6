package volume

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type objects struct {
	configMaps map[string]*corev1.ConfigMap
	secrets    map[string]*corev1.Secret
}

func (o objects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if c := o.configMaps[name]; c != nil {
		return c, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), name)
}

func (o objects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if s := o.secrets[name]; s != nil {
		return s, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
}

type tokens struct{}

func (tokens) Token(context.Context, *corev1.Pod, *corev1.ServiceAccountTokenProjection) (string, time.Time, error) {
	return "tok", time.Now().Add(time.Hour), nil
}

func (tokens) Bound(_ context.Context, _ *corev1.Pod, audience string, _ *int64) (SavedToken, error) {
	return SavedToken{Token: "tok of " + audience, Expires: time.Unix(4e9, 0)}, nil
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Volumes of every sort are made, follow changes and leave nothing behind.
func TestLifeOfVolumes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: make test runs as root")
	}
	ctx := context.Background()
	objs := objects{
		configMaps: map[string]*corev1.ConfigMap{"cm": {Data: map[string]string{"a": "1", "b": "2"}}},
		secrets:    map[string]*corev1.Secret{"s": {Data: map[string][]byte{"k": []byte("v")}}},
	}
	m := &Manager{RootDir: t.TempDir(), Objects: objs, Tokens: tokens{},
		Facts: func(*corev1.Pod) Facts { return Facts{NodeName: "n"} },
		Log:   slog.New(slog.NewTextHandler(io.Discard, nil))}
	size := resource.MustParse("1Mi")
	group := int64(1234)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u1", Labels: map[string]string{"x": "y"}}}
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "mem",
			VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &size}}},
		{Name: "cm",
			VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}},
		{Name: "sec",
			VolumeSource: corev1.VolumeSource{
				Secret: &corev1.SecretVolumeSource{SecretName: "s", Items: []corev1.KeyToPath{{Key: "k", Path: "deep/er"}}}}},
		{Name: "all",
			VolumeSource: corev1.VolumeSource{
				Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
					{DownwardAPI: &corev1.DownwardAPIProjection{
						Items: []corev1.DownwardAPIVolumeFile{
							{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}},
				}}}},
	}
	t.Cleanup(func() {
		if err := UnmountUnder(m.RootDir); err != nil {
			t.Error(err)
		}
	})
	for range 2 { // repeatable
		if err := m.Ensure(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	path := func(name string) string {
		d, err := m.Path(p, name)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, c := range []struct{ volume, file, want string }{
		{"cm", "a", "1"}, {"sec", "deep/er", "v"}, {"all", "token", "tok"}, {"all", "labels", `x="y"`},
	} {
		if got := read(t, path(c.volume), c.file); got != c.want {
			t.Errorf("%s/%s = %q, want %q", c.volume, c.file, got, c.want)
		}
	}
	for _, name := range []string{"mem", "sec", "all"} {
		if ok, err := mounted(path(name)); err != nil || !ok {
			t.Errorf("%s is not in memory: %v", name, err)
		}
	}
	if st, err := os.Stat(path("disk")); err != nil || st.Mode().Perm() != 0o777 || st.Mode()&os.ModeSetgid == 0 {
		t.Errorf("emptyDir: %v %v", st.Mode(), err)
	}

	// What is measured is each volume's part of the file system that it lies on.
	for _, name := range []string{"disk", "mem"} {
		if err := os.WriteFile(filepath.Join(path(name), "f"), make([]byte, 5000), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m.Measure(ctx)
	m.asking.Wait()
	measured := map[string]Measured{}
	for _, one := range m.Measure(ctx) {
		measured[one.Name] = one
	}
	for _, name := range []string{"disk", "mem", "cm", "sec", "all"} {
		got := measured[name]
		if got.Use == nil || got.Use.Used == 0 || got.InodesUsed == 0 || got.Ephemeral != (name == "disk") {
			t.Errorf("%s is measured as %+v", name, got)
			continue
		}
		written := name == "disk" || name == "mem"
		if written && (got.Use.Used < 5000 || got.Use.Used > 1<<16 || got.InodesUsed != 2) {
			t.Errorf("%s holds %d bytes, %d files", name, got.Use.Used, got.InodesUsed)
		}
	}

	// A change shows in one moment: through the same link.
	objs.configMaps["cm"].Data = map[string]string{"a": "one"}
	if err := m.Refresh(ctx, p); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path("cm"), "a"); got != "one" {
		t.Errorf("after the change: %q", got)
	}
	if _, err := os.Lstat(filepath.Join(path("cm"), "b")); !os.IsNotExist(err) {
		t.Error("a removed key is still there")
	}

	// Sub paths: made when missing, never out of the volume.
	sub, err := m.SubPath(p, SubPath{Volume: "disk", Container: "c", Path: "x/y"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(sub, "f"), []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path("disk"), "x/y/f"); got != "s" {
		t.Errorf("sub path shows %q", got)
	}
	if err := os.Symlink("/etc", filepath.Join(path("disk"), "evil")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.SubPath(p, SubPath{Volume: "disk", Container: "c", Index: 1, Path: "evil/passwd"}); err == nil {
		t.Error("a link led a sub path out of its volume")
	}
	if key, err := m.SubPath(p, SubPath{Volume: "cm", Container: "c", Index: 2, Path: "a"}); err != nil ||
		read(t, key) != "one" {
		t.Errorf("sub path of a key: %v", err)
	}

	if err := m.Release(ctx, p); err != nil {
		t.Fatal(err)
	}
	if err := m.Release(ctx, p); err != nil {
		t.Errorf("release again: %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), m.RootDir) {
		t.Error("mounts are left")
	}
	if _, err := os.Stat(filepath.Join(m.RootDir, "pods/u1/volumes")); !os.IsNotExist(err) {
		t.Error("files are left")
	}
}

func TestMissingObjects(t *testing.T) {
	m := &Manager{RootDir: t.TempDir(), Objects: objects{}, Facts: func(*corev1.Pod) Facts { return Facts{} }}
	yes := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "v",
			VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "x"}}}}}
	err := m.Ensure(context.Background(), p)
	if err == nil || err.Error() != `MountVolume.SetUp failed for volume "v" : configmaps "x" not found` {
		t.Errorf("error: %v", err)
	}
	p.Spec.Volumes[0].ConfigMap.Optional = &yes
	if err := m.Ensure(context.Background(), p); err != nil {
		t.Errorf("optional: %v", err)
	}
}

func TestExpand(t *testing.T) {
	vars := func(k string) (string, bool) { return map[string]string{"A": "1"}[k], k == "A" }
	for in, want := range map[string]string{"$(A)x": "1x", "$$(A)": "$(A)", "$(B)": "$(B)", "$A": "$A", "$(A": "$(A",
		"a$": "a$", "$$$(A)": "$1"} {
		if got := Expand(in, vars); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestResource(t *testing.T) {
	p := &corev1.Pod{}
	p.Spec.Containers = []corev1.Container{
		{Name: "c",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}}}}
	f := Facts{Allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}
	for _, c := range []struct{ res, divisor, want string }{
		{"requests.cpu", "1", "1"}, {"requests.cpu", "1m", "250"}, {"limits.memory", "1Mi", "1024"},
		{"requests.memory", "0", "0"},
	} {
		got, err := Resource(p, "c",
			&corev1.ResourceFieldSelector{Resource: c.res, Divisor: resource.MustParse(c.divisor)}, f)
		if err != nil || got != c.want {
			t.Errorf("%s by %s: %q %v, want %s", c.res, c.divisor, got, err, c.want)
		}
	}
	p.Spec.Resources = &corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}}
	memory := &corev1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}
	got, err := Resource(p, "c", memory, f)
	if err != nil || got != "64" {
		t.Errorf("limit of a container in a pod that has one: %q %v", got, err)
	}
}

// What the downward API tells of labels is in the order of their names.
func TestFieldInOrder(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a", "app.x/y": "b", "app-z": "\""}}}
	got, err := Field(p, "metadata.labels", Facts{})
	if want := "app=\"a\"\napp-z=\"\\\"\"\napp.x/y=\"b\""; err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// What a container has no limit of is what the node can give, but for huge pages: without a
// limit it has none. So it is for those that are added for debugging.
func TestResourceWithoutLimit(t *testing.T) {
	p := &corev1.Pod{}
	none := corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("0")}}
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: none}}
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debugger"}}}
	f := Facts{Allocatable: corev1.ResourceList{
		corev1.ResourceMemory: resource.MustParse("1Gi"), "hugepages-2Mi": resource.MustParse("64Mi")}}
	for _, c := range []struct{ container, resource, want string }{
		{"c", "limits.memory", "1024"}, {"c", "limits.hugepages-2Mi", "0"}, {"debugger", "limits.memory", "1024"},
	} {
		got, err := Resource(p, c.container,
			&corev1.ResourceFieldSelector{Resource: c.resource, Divisor: resource.MustParse("1Mi")}, f)
		if err != nil || got != c.want {
			t.Errorf("%s of %s: %q %v, want %s", c.resource, c.container, got, err, c.want)
		}
	}
}

// Environment files are read as by the kubelet of v1.36.
func TestEnvValue(t *testing.T) {
	for _, c := range []struct{ text, want, wrong string }{
		{"A='1'\n\t K='a b' # c\n", "a b", ""},
		{"# K='no'\n\n  \nK='x=#$Y \"${Z}\" \\n'", "x=#$Y \"${Z}\" \\n", ""},
		{"A='K=1\nK=2'\nK='one\n\n three '\nnot read", "one\n\n three ", ""},
		{"A='1'\r\nK='2'\r\n", "2", ""},
		{"A=   'x'\nK='2'", "2", ""},
		{"A='1'", "", "no such key"},
		{"K=''", "", "no such key"},
		{"K= 'x'\n", "", "no such key"},
		{"A = '1'\nK='2'", "", "line 1: space before ="},
		{"A='1\n2'\n='3'", "", "line 3: no name before ="},
		{"A='1'\nexport\nK='2'", "", "line 2: no = in it"},
		{"K=1", "", "line 1: the value is not in single quotes"},
		{"K=\"1\"", "", "line 1: the value is not in single quotes"},
		{"K=", "", "line 1: the value is not in single quotes"},
		{"K='1", "", "line 1: a single quote is not closed"},
		{"A='1'\nK='a''b'", "", "line 2: something follows the closing quote"},
	} {
		got, err := envValue(strings.ReplaceAll(c.text, "\r\n", "\n"), "K")
		if got != c.want || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%q: %q, %v, want %q %s", c.text, got, err, c.want, c.wrong)
		}
	}
}

// TestRootIsALink: the volumes of a pod go where /var/lib/kubelet is a link to
// another disk too.
func TestRootIsALink(t *testing.T) {
	root := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), root); err != nil {
		t.Fatal(err)
	}
	m := &Manager{RootDir: root, Log: slog.New(slog.DiscardHandler)}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "memory",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}}
	t.Cleanup(func() {
		if err := UnmountUnder(root); err != nil {
			t.Error(err)
		}
	})
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
}
