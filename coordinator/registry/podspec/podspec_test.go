package podspec

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func TestPullPolicy(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0", 64)
	for image, want := range map[string]corev1.PullPolicy{
		"busybox": corev1.PullAlways, "busybox:latest": corev1.PullAlways, "reg:5000/a/b": corev1.PullAlways,
		"busybox:1.36":    corev1.PullIfNotPresent,
		"reg:5000/a/b:v1": corev1.PullIfNotPresent, "a@sha256:0123": corev1.PullIfNotPresent,
		"a@" + digest: corev1.PullIfNotPresent, "a:latest@" + digest: corev1.PullAlways,
		"a:latest@sha256:0123": corev1.PullIfNotPresent, "": corev1.PullIfNotPresent, "a..b": corev1.PullIfNotPresent,
		strings.Repeat("a", 64): corev1.PullIfNotPresent, // what tells an image by its id
	} {
		if got := PullPolicy(image); got != want {
			t.Errorf("%q: %s, want %s", image, got, want)
		}
	}
}

func TestDefault(t *testing.T) {
	probe := func() *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}}}
	}
	p := &corev1.Pod{Spec: corev1.PodSpec{
		HostNetwork: true, DeprecatedServiceAccount: "sa",
		Containers: []corev1.Container{{
			Name: "c", Image: "a", LivenessProbe: probe(), Ports: []corev1.ContainerPort{{ContainerPort: 80}},
			Env: []corev1.EnvVar{
				{Name: "N", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1.00001")}},
		}},
		Volumes: []corev1.Volume{
			{Name: "e"},
			{Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}},
			{Name: "p",
				VolumeSource: corev1.VolumeSource{
					Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
						{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
					}}}},
		},
	}}
	DefaultPod(p)
	s, c := &p.Spec, &p.Spec.Containers[0]
	for name, ok := range map[string]bool{
		"serviceAccountName": s.ServiceAccountName == "sa",
		"restartPolicy":      s.RestartPolicy == corev1.RestartPolicyAlways,
		"dnsPolicy":          s.DNSPolicy == corev1.DNSClusterFirst,
		"schedulerName":      s.SchedulerName == "default-scheduler",
		"grace":              *s.TerminationGracePeriodSeconds == 30,
		"securityContext":    s.SecurityContext != nil,
		"enableServiceLinks": *s.EnableServiceLinks,
		"port":               c.Ports[0].Protocol == corev1.ProtocolTCP && c.Ports[0].HostPort == 80,
		"probe": c.LivenessProbe.PeriodSeconds == 10 && c.LivenessProbe.FailureThreshold == 3 &&
			c.LivenessProbe.HTTPGet.Path == "/" && c.LivenessProbe.HTTPGet.Scheme == "HTTP",
		"fieldRef":             c.Env[0].ValueFrom.FieldRef.APIVersion == "v1",
		"requests, rounded up": c.Resources.Requests.Cpu().String() == "1001m",
		"terminationMessage": c.TerminationMessagePath == "/dev/termination-log" &&
			c.TerminationMessagePolicy == corev1.TerminationMessageReadFile,
		"emptyDir":      s.Volumes[0].EmptyDir != nil,
		"hostPath type": *s.Volumes[1].HostPath.Type == corev1.HostPathUnset,
		"projected mode, token": *s.Volumes[2].Projected.DefaultMode == 0o644 &&
			*s.Volumes[2].Projected.Sources[0].ServiceAccountToken.ExpirationSeconds == 3600,
	} {
		if !ok {
			t.Errorf("%s is not defaulted", name)
		}
	}
	again := p.DeepCopy()
	DefaultPod(again)
	if !equality.Semantic.DeepEqual(p, again) {
		t.Error("defaulting twice differs")
	}
	template := corev1.PodTemplateSpec{
		Spec: corev1.PodSpec{HostNetwork: true,
			Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 80}}}}}}
	DefaultTemplate(&template)
	if template.Spec.EnableServiceLinks != nil || template.Spec.Containers[0].Ports[0].HostPort != 0 {
		t.Error("a template got what only pods get")
	}
}

// A negative grace period is 1 in a pod, and stays as it is in a template.
func TestDefaultNegativeGrace(t *testing.T) {
	p, template := &corev1.Pod{}, &corev1.PodTemplateSpec{}
	p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](-1)
	template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](-1)
	DefaultPod(p)
	DefaultTemplate(template)
	if got := *p.Spec.TerminationGracePeriodSeconds; got != 1 {
		t.Errorf("pod: %d", got)
	}
	if got := *template.Spec.TerminationGracePeriodSeconds; got != -1 {
		t.Errorf("template: %d", got)
	}
}

func sound(change func(*corev1.PodSpec)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "a:1"}}}}
	change(&p.Spec)
	DefaultPod(p)
	return p
}

// TestValidate compares with upstream's texts.
func TestValidate(t *testing.T) {
	list := func(name corev1.ResourceName, value string) corev1.ResourceList {
		return corev1.ResourceList{name: resource.MustParse(value)}
	}
	yes, no := true, false
	always := corev1.ContainerRestartPolicyAlways
	first := func(change func(*corev1.Container)) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) { change(&s.Containers[0]) }
	}
	volume := func(source corev1.VolumeSource) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) { s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} }
	}
	for _, c := range []struct {
		change func(*corev1.PodSpec)
		want   string // "" for none
	}{
		{func(*corev1.PodSpec) {}, ""},
		{func(s *corev1.PodSpec) { s.Containers = nil }, "spec.containers: Required value"},
		{first(func(c *corev1.Container) { c.Image = "" }), "spec.containers[0].image: Required value"},
		{first(func(c *corev1.Container) { c.Image = " a" }), `spec.containers[0].image: Invalid value: " a": must not have leading or trailing whitespace`},
		{func(s *corev1.PodSpec) { s.Containers = append(s.Containers, s.Containers[0]) }, `spec.containers[1].name: Duplicate value: "c"`},
		{func(s *corev1.PodSpec) { s.RestartPolicy = "Sometimes" }, `spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"`},
		{first(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 70000}} }),
			"spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive"},
		{first(func(c *corev1.Container) {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 1, HostPort: 8}, {ContainerPort: 2, HostPort: 8}}
		}), `spec.containers[0].ports[1].hostPort: Duplicate value: "TCP//8"`},
		{first(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "a=b"}} }), "spec.containers[0].env[0].name: Invalid value"},
		{first(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "a", ValueFrom: &corev1.EnvVarSource{}}} }),
			"spec.containers[0].env[0].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"},
		{first(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{
				{Name: "a", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.phase"}}}}
		}), `spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: "status.phase"`},
		{first(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{
				{Name: "a", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['x/y']"}}}}
		}), ""},
		{first(func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{{Name: "x", MountPath: "/x"}} }),
			`spec.containers[0].volumeMounts[0].name: Not found: "x"`},
		{first(func(c *corev1.Container) {
			c.Resources.Requests = list("cpu", "2")
			c.Resources.Limits = list("cpu", "1")
		}),
			`spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1`},
		{first(func(c *corev1.Container) { c.Resources.Limits = list("cpus", "1") }), `spec.containers[0].resources.limits[cpus]: Invalid value: "cpus": must be a standard resource type or fully qualified`},
		{first(func(c *corev1.Container) { c.Resources.Limits = list("example.com/gpu", "500m") }), `spec.containers[0].resources.limits[example.com/gpu]: Invalid value: "500m": must be an integer`},
		{first(func(c *corev1.Container) { c.Resources.Limits = list("hugepages-2Mi", "3Mi") }), "3Mi is not positive integer multiple of hugepages-2Mi"},
		{first(func(c *corev1.Container) { c.Resources.Limits = list("hugepages-2Mi", "4Mi") }), "spec.containers[0].resources: Forbidden: HugePages require cpu or memory"},
		{first(func(c *corev1.Container) { c.LivenessProbe = &corev1.Probe{} }), "spec.containers[0].livenessProbe: Required value: must specify a handler type"},
		{first(func(c *corev1.Container) {
			c.LivenessProbe = &corev1.Probe{SuccessThreshold: 2,
				ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"a"}}}}
		}), "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1"},
		{first(func(c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{Privileged: &yes, AllowPrivilegeEscalation: &no}
		}),
			"cannot set `allowPrivilegeEscalation` to false and `privileged` to true"},
		{volume(
			corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}, HostPath: &corev1.HostPathVolumeSource{Path: "/"}}),
			"spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"},
		{volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/a/../b"}}), `spec.volumes[0].hostPath.path: Invalid value: "/a/../b": must not contain '..'`},
		{volume(
			corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "m"},
					Items: []corev1.KeyToPath{{Key: "k", Path: "..x"}}}}),
			`spec.volumes[0].configMap.items[0].path: Invalid value: "..x": must not start with '..'`},
		{func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{{Name: "i", Image: "a:1", Lifecycle: &corev1.Lifecycle{}}}
		}, "spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always"},
		{func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{
				{Name: "i", Image: "a:1", RestartPolicy: &always, Lifecycle: &corev1.Lifecycle{}}}
		}, ""},
		{func(s *corev1.PodSpec) { s.Tolerations = []corev1.Toleration{{Operator: "Equal"}} },
			`spec.tolerations[0].operator: Invalid value: "Equal": operator must be Exists when ` + "`key` is empty, which means \"match all values and all keys\""},
		{func(s *corev1.PodSpec) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
				{MaxSkew: 0, TopologyKey: "z", WhenUnsatisfiable: "DoNotSchedule"}}
		}, "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero"},
		{func(s *corev1.PodSpec) { s.DNSPolicy = corev1.DNSNone }, "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"},
		{func(s *corev1.PodSpec) { s.HostAliases = []corev1.HostAlias{{IP: "1.2.3"}} }, "spec.hostAliases[0].ip: Invalid value"},
		{func(s *corev1.PodSpec) {
			s.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "foo-"}}}
		}, `spec.securityContext.sysctls[0].name: Invalid value: "foo-": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`},
		{func(s *corev1.PodSpec) { s.HostUsers, s.HostPID = &no, true }, "spec.HostPID: Forbidden: when `hostUsers` is false"},
		{func(s *corev1.PodSpec) { s.OS = &corev1.PodOS{Name: "windows"}; s.HostPID = true }, "spec.hostPID: Forbidden: cannot be set for a windows pod"},
		{func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{
				NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}
		}, "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term"},
		{func(s *corev1.PodSpec) { s.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "a b"}} }, "spec.readinessGates[0].conditionType: Invalid value"},
	} {
		p := sound(c.change)
		got := Validate(&p.Spec, &p.ObjectMeta, field.NewPath("spec")).ToAggregate()
		switch {
		case c.want == "" && got != nil:
			t.Errorf("unexpected: %v", got)
		case c.want != "" && (got == nil || !strings.Contains(got.Error(), c.want)):
			t.Errorf("got  %v\nwant %s", got, c.want)
		}
	}
}

func TestValidateTemplate(t *testing.T) {
	deadline := int64(5)
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: " "}}, RestartPolicy: corev1.RestartPolicyNever,
			ActiveDeadlineSeconds: &deadline,
		},
	}
	DefaultTemplate(&template)
	errs := ValidateTemplateForWorkload(&template, labels.SelectorFromSet(labels.Set{"a": "c"}),
		"ReplicaSet", field.NewPath("spec", "template")).ToAggregate()
	for _, want := range []string{
		"spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`",
		`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`,
		"spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported",
	} {
		if errs == nil || !strings.Contains(errs.Error(), want) {
			t.Errorf("got  %v\nwant %s", errs, want)
		}
	}
	if strings.Contains(errs.Error(), "whitespace") {
		t.Error("a template's image may be padded")
	}
}

func TestWarnings(t *testing.T) {
	negative := int64(-1)
	s := &corev1.PodSpec{
		TerminationGracePeriodSeconds: &negative, ImagePullSecrets: []corev1.LocalObjectReference{{}},
		Containers: []corev1.Container{
			{Ports: []corev1.ContainerPort{{Name: "a", ContainerPort: 80, Protocol: "TCP"}},
				Env: []corev1.EnvVar{{Name: "X", Value: "1"}, {Name: "X", Value: "$(X)2"}, {Name: "X", Value: "3"}}},
			{Ports: []corev1.ContainerPort{{Name: "a", ContainerPort: 80, Protocol: "TCP"}}},
		},
	}
	got := Warnings(&metav1.ObjectMeta{}, s, nil)
	want := []string{
		`spec.imagePullSecrets[0].name: invalid empty name ""`,
		`spec.containers[0].env[2]: hides previous definition of "X", which may be dropped when using apply`,
		"spec.containers[1].ports[0]: duplicate port definition with spec.containers[0].ports[0]",
		`spec.containers[1].ports[0]: duplicate port name "a" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]`,
		"spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
	}
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestQOS(t *testing.T) {
	resources := func(requests, limits string) corev1.ResourceRequirements {
		r := corev1.ResourceRequirements{}
		for _, f := range []struct {
			text string
			to   *corev1.ResourceList
		}{{requests, &r.Requests}, {limits, &r.Limits}} {
			for _, pair := range strings.Fields(f.text) {
				name, value, _ := strings.Cut(pair, "=")
				*f.to = with(*f.to, corev1.ResourceName(name), resource.MustParse(value))
			}
		}
		return r
	}
	for _, c := range []struct {
		containers []corev1.ResourceRequirements
		want       corev1.PodQOSClass
	}{
		{[]corev1.ResourceRequirements{{}}, corev1.PodQOSBestEffort},
		{[]corev1.ResourceRequirements{resources("example.com/gpu=1", "example.com/gpu=1")}, corev1.PodQOSBestEffort},
		{[]corev1.ResourceRequirements{resources("cpu=1", "")}, corev1.PodQOSBurstable},
		{[]corev1.ResourceRequirements{resources("cpu=1 memory=1Gi", "cpu=1 memory=1Gi")}, corev1.PodQOSGuaranteed},
		{[]corev1.ResourceRequirements{resources("cpu=1 memory=1Gi", "cpu=1 memory=1Gi"), {}}, corev1.PodQOSBurstable},
		{[]corev1.ResourceRequirements{resources("cpu=1 memory=1Gi", "cpu=2 memory=1Gi")}, corev1.PodQOSBurstable},
		{[]corev1.ResourceRequirements{resources("memory=0", "")}, corev1.PodQOSBestEffort},
	} {
		s := &corev1.PodSpec{}
		for _, r := range c.containers {
			s.Containers = append(s.Containers, corev1.Container{Resources: r})
		}
		if got := QOS(s); got != c.want {
			t.Errorf("%v: %s, want %s", c.containers, got, c.want)
		}
	}
}

func BenchmarkDefaultAndValidate(b *testing.B) {
	p := sound(func(s *corev1.PodSpec) {
		s.Volumes = []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}
		s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		s.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
	})
	b.ReportAllocs()
	for b.Loop() {
		DefaultPod(p)
		if errs := Validate(&p.Spec, &p.ObjectMeta, field.NewPath("spec")); len(errs) > 0 {
			b.Fatal(errs)
		}
	}
}

// A source that is in no order would never be checked.
func TestSourceOrderIsWhole(t *testing.T) {
	source := reflect.TypeFor[corev1.VolumeSource]()
	if len(sourceOrder) != source.NumField() {
		t.Errorf("%d sources in order, %d in the API", len(sourceOrder), source.NumField())
	}
	for _, name := range sourceOrder {
		if _, ok := source.FieldByName(name); !ok {
			t.Errorf("no source %s", name)
		}
	}
}
