package pod

import (
	"context"
	"log/slog"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/registry"
)

// imageRecords keeps records in memory.
type imageRecords map[string]*record.Image

func (m imageRecords) All() (map[string]*record.Image, error) { return maps.Clone(m), nil }
func (m imageRecords) Put(key string, r *record.Image) error  { m[key] = r; return nil }
func (m imageRecords) Delete(key string) error                { delete(m, key); return nil }
func login(secret, uid, password string) credential {
	return credential{
		auth:   &criv1.AuthConfig{Username: "u", Password: password, ServerAddress: "r.example.com"},
		secret: record.ImagePullSecret{Namespace: "ns", Name: secret, UID: uid},
	}
}

const private = "r.example.com/team/app:1"

// newAccess has one image on the node, which is on it as what ids says.
func newAccess(t *testing.T, records imageRecords, policy VerifyPolicy) (*Access, *criv1.Image) {
	t.Helper()
	f := newFakeCRI()
	f.images = map[string]bool{private: true} // which is its ID and its tag
	a := &Access{Policy: policy, Records: records, Images: f, Log: slog.New(slog.DiscardHandler),
		Allowlist: []string{"r.example.com/base", "r.example.com/free/*", "hub/*"}}
	if err := a.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a, &criv1.Image{Id: private}
}

func (a *Access) pulledWith(t *testing.T, image, id string, c *credential) {
	t.Helper()
	if err := a.Begin(image); err != nil {
		t.Fatal(err)
	}
	if err := a.End(context.Background(), image, id, c); err != nil {
		t.Fatal(err)
	}
}

func TestCredentialsAreAskedAgain(t *testing.T) {
	records := imageRecords{}
	a, img := newAccess(t, records, "")
	if a.MustPull(private, img, nil) {
		t.Error("an image that was there before any pull is asked for")
	}
	own := login("pull", "1", "secret")
	a.pulledWith(t, private, img.Id, &own)
	for name, x := range map[string]struct {
		image string
		with  []credential
		must  bool
	}{
		"none":             {private, nil, true},
		"other":            {private, []credential{login("guess", "2", "wrong")}, true},
		"same":             {private, []credential{own}, false},
		"second":           {private, []credential{login("guess", "2", "wrong"), own}, false},
		"same-content":     {private, []credential{login("copy", "3", "secret")}, false},
		"rotated":          {private, []credential{login("pull", "1", "new")}, false},
		"same-name":        {private, []credential{login("pull", "9", "wrong")}, true},
		"by-id":            {"sha256:0123", nil, true},
		"other-tag":        {"r.example.com/team/app:2", []credential{own}, false},
		"other-repository": {"r.example.com/team/other:1", []credential{own}, true},
	} {
		b, img := newAccess(t, imageRecords{}, "")
		b.pulledWith(t, private, img.Id, &own)
		if got := b.MustPull(x.image, img, x.with); got != x.must {
			t.Errorf("%s: must pull %v", name, got)
		}
	}
	again, _ := newAccess(t, records, "")
	if again.MustPull(private, img, []credential{own}) || !again.MustPull(private, img, nil) {
		t.Error("the record does not outlive a restart")
	}
	for key, r := range records {
		for _, s := range r.Names[registry.Repository(private)].Secrets {
			if string(s.Hash) == "secret" || len(s.Hash) != 32 {
				t.Errorf("%s keeps %q", key, s.Hash)
			}
		}
	}
	again.pulledWith(t, private, img.Id, nil)
	if again.MustPull(private, img, nil) {
		t.Error("an image that needs no credentials is asked for")
	}
}

// TestPullUnderWayIsClosed: neither while a pull runs nor after a crash in it
// may another pod take the image.
func TestPullUnderWayIsClosed(t *testing.T) {
	records := imageRecords{}
	a, img := newAccess(t, records, "")
	if err := a.Begin(private); err != nil {
		t.Fatal(err)
	}
	img.RepoTags = []string{private}
	for _, image := range []string{private, "sha256:0123"} {
		if !a.MustPull(image, img, nil) {
			t.Errorf("%s is open during its pull", image)
		}
	}
	b, _ := newAccess(t, records, "")
	if !b.MustPull(private, img, nil) {
		t.Error("open after a crash in its pull")
	}
	if len(records) != 1 {
		t.Errorf("records %v", records)
	}
}

// TestImportedStaysOpen: a pull of the same content under another name takes an
// imported image from nobody, before or after its import.
func TestImportedStaysOpen(t *testing.T) {
	a, img := newAccess(t, imageRecords{}, "")
	img.RepoTags = []string{"localhost/base:1", private}
	own := login("pull", "1", "secret")
	a.pulledWith(t, private, img.Id, &own)
	for image, must := range map[string]bool{"localhost/base:1": false, "sha256:0123": false, private: true} {
		if got := a.MustPull(image, img, nil); got != must {
			t.Errorf("%s: must pull %v", image, got)
		}
	}
}

func TestVerifyPolicies(t *testing.T) {
	for _, x := range []struct {
		policy            VerifyPolicy
		preloaded, pulled bool
	}{
		{NeverVerify, false, false}, {NeverVerifyPreloadedImages, false, true},
		{NeverVerifyAllowlistedImages, true, true}, {AlwaysVerify, true, true},
	} {
		a, img := newAccess(t, imageRecords{}, x.policy)
		if got := a.MustPull(private, img, nil); got != x.preloaded {
			t.Errorf("%s: a preloaded image must be pulled: %v", x.policy, got)
		}
		own := login("pull", "1", "secret")
		a.pulledWith(t, private, img.Id, &own)
		if got := a.MustPull(private, img, nil); got != x.pulled {
			t.Errorf("%s: a pulled image must be pulled: %v", x.policy, got)
		}
	}
	a, img := newAccess(t, imageRecords{}, NeverVerifyAllowlistedImages)
	for image, want := range map[string]bool{
		"r.example.com/base:9": false, "r.example.com/free/a/b": false, "hub/x": false, "r.example.com/base2:9": true,
		"r.example.com/freeze/a": true,
	} {
		if got := a.MustPull(image, img, nil); got != want {
			t.Errorf("%s: %v", image, got)
		}
	}
}

func TestAccessIsBounded(t *testing.T) {
	records := imageRecords{}
	a, img := newAccess(t, records, "")
	for i := range 3 * maxAccessSecrets {
		c := login("s", string(rune('a'+i)), string(rune('a'+i)))
		a.pulledWith(t, private, img.Id, &c)
		a.pulledWith(t, "r.example.com/n"+string(rune('a'+i%26))+"/x", img.Id, &c)
	}
	r := a.byRef[img.Id]
	if len(r.Names) > maxAccessNames {
		t.Errorf("%d names", len(r.Names))
	}
	for n, access := range r.Names {
		if len(access.Secrets) > maxAccessSecrets {
			t.Errorf("%s: %d secrets", n, len(access.Secrets))
		}
	}
}

// TestBorrowedImage: a pod without the secret pulls by itself, also where its
// policy finds the image on the node, and gets none with the policy Never.
func TestBorrowedImage(t *testing.T) {
	records := imageRecords{}
	a, img := newAccess(t, records, "")
	own := login("pull", "1", "secret")
	a.pulledWith(t, private, img.Id, &own)
	f := a.Images.(*fakeCRI)
	e := &edges{records: map[string]*record.Pod{}}
	m := &Manager{Images: f, Access: a, Objects: e, Events: e, ctx: t.Context(),
		Host: &launch.Host{RootDir: t.TempDir(), CgroupParent: func(*corev1.Pod) string { return "/x" }}}
	ensure := func(policy corev1.PullPolicy, volume bool) string {
		p := testPod(corev1.RestartPolicyAlways, "a")
		c := &p.Spec.Containers[0]
		c.Image, c.ImagePullPolicy = private, policy
		if volume {
			f.images["open"], c.Image = true, "open"
			p.Spec.Volumes = []corev1.Volume{
				{Name: "v",
					VolumeSource: corev1.VolumeSource{
						Image: &corev1.ImageVolumeSource{Reference: private, PullPolicy: policy}}}}
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		}
		if v := m.ensureImages(t.Context(), &launch.Facts{Pod: p, Container: c}); v != nil {
			return v.Reason
		}
		return ""
	}
	for _, volume := range []bool{false, true} {
		if got := ensure(corev1.PullIfNotPresent, volume); got != "ErrImagePull" {
			t.Errorf("IfNotPresent: %q", got)
		}
		if got := ensure(corev1.PullNever, volume); got != "ErrImageNeverPull" {
			t.Errorf("Never: %q", got)
		}
	}
	f.pullable = map[string]bool{private: true}
	// the registry asks for nothing
	for _, policy := range []corev1.PullPolicy{corev1.PullIfNotPresent, corev1.PullNever} {
		if got := ensure(policy, false); got != "" {
			t.Errorf("%s after an open pull: %q", policy, got)
		}
	}
}
