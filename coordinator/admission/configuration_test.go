package admission

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

// A name or a configuration that would have no effect is an error that says so.
func TestPluginsAreChosen(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"
	limits := "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits: [{type: Server, qps: 1, burst: 1}]\n"
	file("limits.yaml", limits)
	for name, c := range map[string]struct {
		config Config
		want   string
		has    string
		hasNot string
	}{
		"default":     {config: Config{}, has: "*admission.podSecurity", hasNot: "admission.alwaysPullImages"},
		"enabled":     {config: Config{Enable: []string{"AlwaysPullImages", "DenyServiceExternalIPs"}}, has: "admission.denyExternalIPs"},
		"disabled":    {config: Config{Disable: []string{"PodSecurity"}}, hasNot: "*admission.podSecurity"},
		"two names":   {config: Config{Enable: []string{"CertificateSigning"}}},
		"unknown":     {config: Config{Enable: []string{"PodPresets"}}, want: `enableAdmissionPlugins: plugin "PodPresets" is unknown`},
		"unknown off": {config: Config{Disable: []string{"x"}}, want: `disableAdmissionPlugins: plugin "x" is unknown`},
		"both":        {config: Config{Enable: []string{"Priority"}, Disable: []string{"Priority"}}, want: "remove it from one"},
		"no limits":   {config: Config{Enable: []string{"EventRateLimit"}}, want: "plugin EventRateLimit: it needs a Configuration"},
		"limits": {
			config: Config{Enable: []string{"EventRateLimit"},
				ConfigFile: file("a.yaml", head+"- {name: EventRateLimit, path: limits.yaml}")}, has: "*admission.eventRateLimit"},
		"no file": {config: Config{ConfigFile: dir + "/absent"}, want: "admissionControlConfigFile"},
		"other plugin": {
			config: Config{ConfigFile: file("b.yaml", head+"- {name: NoSuchPlugin, configuration: {}}")}, want: `plugin "NoSuchPlugin" is unknown`},
		"takes none": {config: Config{ConfigFile: file("c.yaml", head+"- {name: Priority, configuration: {}}")},
			want: "plugin Priority takes no configuration"},
		"twice": {
			config: Config{
				ConfigFile: file("d.yaml",
					head+"- {name: EventRateLimit, path: limits.yaml}\n- {name: EventRateLimit, path: limits.yaml}")},
			want: "configured twice"},
		"bad field": {
			config: Config{ConfigFile: file("e.yaml", head+"- {name: EventRateLimit, file: limits.yaml}")}, want: `unknown field`},
		"bad podsec": {
			config: Config{
				ConfigFile: file("f.yaml",
					head+"- {name: PodSecurity, configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defalts: {}}}")},
			want: "plugin PodSecurity: "},
		"bad quota": {
			config: Config{
				ConfigFile: file("g.yaml",
					head+"- {name: ResourceQuota, configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration, limitedResources: [{}]}}")},
			want: "plugin ResourceQuota: "},
		"absent webhook": {
			config: Config{
				ConfigFile: file("h.yaml",
					head+"- {name: ValidatingAdmissionWebhook, configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: /absent}}")},
			want: "plugin ValidatingAdmissionWebhook: "},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			plugins, _, err := c.config.plugins()
			check(t, err, c.want)
			var types []string
			for _, p := range plugins {
				types = append(types, fmt.Sprintf("%T", p))
			}
			list := strings.Join(types, " ")
			if !strings.Contains(list, c.has) || c.hasNot != "" && strings.Contains(list, c.hasNot) {
				t.Errorf("got %s", list)
			}
		})
	}
}

// PSA-9: exempt namespaces and users, and defaults where a namespace says nothing.
func TestPodSecurityConfiguration(t *testing.T) {
	built, err := newPodSecurity(strings.NewReader(`
apiVersion: pod-security.admission.config.k8s.io/v1
kind: PodSecurityConfiguration
defaults: {enforce: baseline}
exemptions: {namespaces: [trusted], usernames: [root]}
`))
	if err != nil {
		t.Fatal(err)
	}
	namespace := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	p, _ := connect(t, built, namespace("ns"), namespace("trusted"))
	if err := p.(admission.InitializationValidator).ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	yes := true
	pod := newPod(func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	})
	check(t, admit(p, request{resource: "pods", namespace: "ns", obj: pod}), `violates PodSecurity "baseline:latest"`)
	check(t, admit(p, request{resource: "pods", namespace: "trusted", obj: pod}), "")
	check(t, admit(p, request{resource: "pods", namespace: "ns", obj: pod, user: &user.DefaultInfo{Name: "root"}}), "")
}

func TestDenyServiceExternalIPs(t *testing.T) {
	service := func(ips ...string) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{ExternalIPs: ips}}
	}
	for name, c := range map[string]struct {
		old, obj *corev1.Service
		want     string
	}{
		"none":    {obj: service()},
		"new":     {obj: service("10.96.0.10"), want: "Use of external IPs is denied by admission control"},
		"kept":    {old: service("192.0.2.1", "192.0.2.2"), obj: service("192.0.2.2")},
		"changed": {old: service("192.0.2.1"), obj: service("192.0.2.2"), want: "denied"},
	} {
		t.Run(name, func(t *testing.T) {
			r := request{resource: "services", namespace: "ns", obj: c.obj}
			if c.old != nil {
				r.old, r.operation = c.old, admission.Update
			}
			check(t, admit(newDenyExternalIPs(), r), c.want)
		})
	}
}

func TestAlwaysPullImages(t *testing.T) {
	p := newAlwaysPullImages()
	pod := newPod(func(p *corev1.Pod) {
		p.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		p.Spec.Volumes = []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "i"}}}}
	})
	check(t, admitPod(p, pod), "")
	if pod.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways ||
		pod.Spec.InitContainers[0].ImagePullPolicy != corev1.PullAlways ||
		pod.Spec.Volumes[0].Image.PullPolicy != corev1.PullAlways {
		t.Errorf("got %+v", pod.Spec)
	}

	// What was there before keeps its policy, unless it brings another image.
	old := newPod(func(p *corev1.Pod) {
		for i := range p.Spec.Containers {
			p.Spec.Containers[i].Image, p.Spec.Containers[i].ImagePullPolicy = "old", corev1.PullNever
		}
		p.Spec.InitContainers = nil
	})
	update := request{resource: "pods", namespace: "ns", obj: old.DeepCopy(), old: old, operation: admission.Update}
	check(t, admit(p, update), "")
	swapped := old.DeepCopy()
	swapped.Spec.Containers[0].Image = "private"
	update.obj = swapped
	check(t, admit(p, update), `spec.containers[0].imagePullPolicy: Unsupported value: "Never"`)
	debugged := old.DeepCopy()
	debugged.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "d", Image: "private",
			ImagePullPolicy: corev1.PullIfNotPresent}}}
	check(t,
		admit(p,
			request{resource: "pods/ephemeralcontainers", namespace: "ns", obj: debugged, old: old,
				operation: admission.Update}), "")
	if debugged.Spec.EphemeralContainers[0].ImagePullPolicy != corev1.PullAlways ||
		debugged.Spec.Containers[0].ImagePullPolicy != corev1.PullNever {
		t.Errorf("got %+v", debugged.Spec)
	}
}

func TestEventRateLimit(t *testing.T) {
	build := func(limits string) admission.Interface {
		t.Helper()
		p, err := newEventRateLimit(
			strings.NewReader("apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits: " +
				limits))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	event := func(namespace, who, object string) request {
		return request{resource: "events", namespace: namespace, user: &user.DefaultInfo{Name: who},
			obj: &corev1.Event{InvolvedObject: corev1.ObjectReference{Name: object}}}
	}
	for limit, other := range map[string]request{
		"Namespace": event("b", "anna", "o"), "User": event("a", "bert", "o"), "SourceAndObject": event("a", "anna", "p"),
	} {
		t.Run(limit, func(t *testing.T) {
			p := build("[{type: " + limit + ", qps: 1, burst: 2}]")
			for range 2 {
				check(t, admit(p, event("a", "anna", "o")), "")
			}
			err := admit(p, event("a", "anna", "o"))
			check(t, err, "limit reached on type "+limit)
			if !apierrors.IsTooManyRequests(err) {
				t.Errorf("not 429: %v", err)
			}
			check(t, admit(p, other), "")
			check(t, admit(p, request{resource: "pods", namespace: "a", obj: newPod(nil)}), "")
		})
	}
	t.Run("Server", func(t *testing.T) {
		p := build("[{type: Server, qps: 1, burst: 1}]")
		check(t, admit(p, event("a", "anna", "o")), "")
		newer := event("b", "bert", "p")
		newer.group = "events.k8s.io"
		check(t, admit(p, newer), "limit reached on type Server")
	})
	for text, want := range map[string]string{
		"[]":                                     "must not be empty",
		"[{type: Node, qps: 1, burst: 1}]":       "limits[0].type: Unsupported value",
		"[{type: Server}]":                       "limits[0].qps: Invalid value: 0: must be positive",
		"[{type: User, qps: 1, burst: 1, x: 1}]": "unknown field",
	} {
		_, err := newEventRateLimit(
			strings.NewReader("apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits: " +
				text))
		check(t, err, want)
	}
}

// EXT-10: the service decides, is asked once, and its absence is what the
// configuration says.
func TestImagePolicyWebhook(t *testing.T) {
	asked := 0
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked++
		var review imagepolicyv1alpha1.ImageReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		if _, ok := review.Spec.Annotations["mine.image-policy.k8s.io/ticket"]; !ok ||
			len(review.Spec.Annotations) != 1 || review.Spec.Namespace != "ns" {
			t.Errorf("asked %+v", review.Spec)
		}
		review.Status.Allowed = review.Spec.Containers[0].Image != "bad"
		review.Status.Reason = "it is bad"
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(
		`{"clusters": [{"name": "a", "cluster": {"server": %q}}], "contexts": [{"name": "a", "context": {"cluster": "a"}}], "current-context": "a"}`,
		service.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	build := func(extra string) admission.Interface {
		t.Helper()
		p, err := newImagePolicy(
			strings.NewReader(fmt.Sprintf("imagePolicy: {kubeConfigFile: %s, retryBackoff: 1%s}", kubeconfig, extra)))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	pod := func(image string) *corev1.Pod {
		return newPod(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"mine.image-policy.k8s.io/ticket": "1", "other": "2"}
			p.Spec.Containers[0].Image = image
		})
	}
	p := build("")
	check(t, admitPod(p, pod("good")), "")
	check(t, admitPod(p, pod("good")), "")
	check(t, admitPod(p, pod("bad")), "image policy webhook backend denied one or more images: it is bad")
	if asked != 2 {
		t.Errorf("asked %d times, want 2", asked)
	}
	service.Close()
	check(t, admitPod(p, pod("unknown")), "forbidden")
	open := pod("unknown")
	check(t, admitPod(build(", defaultAllow: true"), open), "")
	if open.Annotations[failedOpenAnnotation] != "true" {
		t.Errorf("annotations: %v", open.Annotations)
	}
	_, err := newImagePolicy(strings.NewReader("imagePolicy: {kubeConfigFile: /absent, allowTTL: 3600}"))
	check(t, err, "imagePolicy.allowTTL 3600: give -1 for none")
	_, err = newImagePolicy(strings.NewReader("imagePolicy: {kubeConfigFile: /absent}"))
	check(t, err, `imagePolicy.kubeConfigFile "/absent"`)
}
