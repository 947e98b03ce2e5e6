package podspec

import (
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

func (s *scope) validateContainers(p *field.Path) (errs field.ErrorList) {
	at := p.Child("containers")
	if len(s.spec.Containers) == 0 {
		errs = append(errs, field.Required(at, ""))
	}
	names := sets.New[string]()
	for i := range s.spec.Containers {
		c, at := &s.spec.Containers[i], at.Index(i)
		errs = append(errs, s.validateContainer(c, at)...)
		if names.Has(c.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		}
		names.Insert(c.Name)
		errs = append(errs, s.validateLongRunning(c, at)...)
		errs = append(errs, validateRestart(c, at)...)
	}
	errs = append(errs, uniqueHostPorts(s.spec.Containers, at)...)
	errs = append(errs, s.validateInit(names, p.Child("initContainers"))...)
	return append(errs, s.validateEphemeral(names, p.Child("ephemeralContainers"))...)
}

// validateContainer checks what every sort of container has.
func (s *scope) validateContainer(c *corev1.Container, p *field.Path) (errs field.ErrorList) {
	if c.Name == "" {
		errs = append(errs, field.Required(p.Child("name"), ""))
	} else {
		errs = append(errs, dnsLabel(c.Name, p.Child("name"))...)
	}
	errs = append(errs, required(c.Image, p.Child("image"))...)
	errs = append(errs, OneOf(c.TerminationMessagePolicy, p.Child("terminationMessagePolicy"),
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)...)
	errs = append(errs, validatePorts(c.Ports, p.Child("ports"))...)
	errs = append(errs, validateEnv(c.Env, p.Child("env"))...)
	errs = append(errs, validateEnvFrom(c.EnvFrom, p.Child("envFrom"))...)
	errs = append(errs, s.validateMounts(c, p.Child("volumeMounts"))...)
	errs = append(errs, s.validateDevices(c, p.Child("volumeDevices"))...)
	errs = append(errs,
		OneOf(c.ImagePullPolicy, p.Child("imagePullPolicy"), corev1.PullAlways,
			corev1.PullIfNotPresent, corev1.PullNever)...)
	errs = append(errs, ValidateRequirements(&c.Resources, s.claims, p.Child("resources"))...)
	errs = append(errs, s.validateResizePolicy(c.ResizePolicy, p.Child("resizePolicy"))...)
	return append(errs, validateSecurity(c.SecurityContext, s.hostUsers(), p.Child("securityContext"))...)
}

func (s *scope) hostUsers() bool { return s.spec.HostUsers == nil || *s.spec.HostUsers }

// ValidateImages checks the images of containers. An update of a pod tells of them
// once more, beside what is wrong with its spec as a whole.
func ValidateImages(containers []corev1.Container, p *field.Path) (errs field.ErrorList) {
	for i := range containers {
		at := p.Index(i).Child("image")
		errs = append(errs, required(containers[i].Image, at)...)
		errs = append(errs, paddedImage(containers[i].Image, at)...)
	}
	return errs
}

// paddedImages checks what a template's containers need not keep to.
func paddedImages(containers []corev1.Container, p *field.Path) (errs field.ErrorList) {
	for i := range containers {
		errs = append(errs, paddedImage(containers[i].Image, p.Index(i).Child("image"))...)
	}
	return errs
}

func paddedImage(image string, p *field.Path) field.ErrorList {
	if strings.TrimSpace(image) != image {
		return field.ErrorList{field.Invalid(p, image, "must not have leading or trailing whitespace")}
	}
	return nil
}

// validateLongRunning checks what regular containers and sidecars may have.
func (s *scope) validateLongRunning(c *corev1.Container, p *field.Path) (errs field.ErrorList) {
	if c.Lifecycle != nil {
		errs = append(errs, s.validateLifecycle(c.Lifecycle, p.Child("lifecycle"))...)
	}
	errs = append(errs, validateProbe(c.LivenessProbe, p.Child("livenessProbe"), true)...)
	errs = append(errs, validateProbe(c.ReadinessProbe, p.Child("readinessProbe"), false)...)
	return append(errs, validateProbe(c.StartupProbe, p.Child("startupProbe"), true)...)
}

func (s *scope) validateInit(names sets.Set[string], p *field.Path) (errs field.ErrorList) {
	for i := range s.spec.InitContainers {
		c, at := &s.spec.InitContainers[i], p.Index(i)
		errs = append(errs, s.validateContainer(c, at)...)
		if c.RestartPolicy == nil && len(c.RestartPolicyRules) > 0 { // the rules are not looked at
			errs = append(errs, restartPolicyMissing(at))
		} else {
			errs = append(errs, validateRestart(c, at)...)
		}
		if names.Has(c.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		} else if c.Name != "" {
			names.Insert(c.Name)
		}
		errs = append(errs, uniqueHostPorts(s.spec.InitContainers[i:i+1], p)...)
		if IsSidecar(c) {
			errs = append(errs, s.validateLongRunning(c, at)...)
			continue
		}
		for _, f := range []struct {
			name string
			set  bool
		}{
			{"lifecycle", c.Lifecycle != nil},
			{"livenessProbe", c.LivenessProbe != nil},
			{"readinessProbe", c.ReadinessProbe != nil},
			{"startupProbe", c.StartupProbe != nil},
		} {
			if f.set {
				errs = append(errs, field.Forbidden(at.Child(f.name), "may not be set for init containers without restartPolicy=Always"))
			}
		}
		for j, r := range c.ResizePolicy {
			if r.RestartPolicy == corev1.RestartContainer {
				errs = append(errs,
					field.Invalid(at.Child("resizePolicy").Index(j).Child("restartPolicy"), r.RestartPolicy,
						"must not be set to 'RestartContainer' for non-sidecar initContainers"))
			}
		}
	}
	return errs
}

// ephemeralFields are those that a debug container may have.
var ephemeralFields = sets.New("Name", "Image", "Command", "Args", "WorkingDir", "EnvFrom", "Env", "VolumeMounts",
	"VolumeDevices", "TerminationMessagePath", "TerminationMessagePolicy", "ImagePullPolicy", "SecurityContext",
	"Stdin", "StdinOnce", "TTY")

func (s *scope) validateEphemeral(names sets.Set[string], p *field.Path) (errs field.ErrorList) {
	targets := names.Clone()
	for i := range s.spec.EphemeralContainers {
		e, at := &s.spec.EphemeralContainers[i], p.Index(i)
		errs = append(errs, s.validateContainer((*corev1.Container)(&e.EphemeralContainerCommon), at)...)
		if s.inPod() {
			errs = append(errs, paddedImage(e.Image, at.Child("image"))...)
		}
		if names.Has(e.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), e.Name))
		}
		names.Insert(e.Name)
		if e.TargetContainerName != "" && !targets.Has(e.TargetContainerName) {
			errs = append(errs, field.NotFound(at.Child("targetContainerName"), e.TargetContainerName))
		}
		errs = append(errs,
			onlyFields(e.EphemeralContainerCommon, ephemeralFields, "cannot be set for an Ephemeral Container", at)...)
		for j, m := range e.VolumeMounts {
			mount := at.Child("volumeMounts").Index(j)
			if m.SubPath != "" {
				errs = append(errs, field.Forbidden(mount.Child("subPath"), "cannot be set for an Ephemeral Container"))
			}
			if m.SubPathExpr != "" {
				errs = append(errs, field.Forbidden(mount.Child("subPathExpr"), "cannot be set for an Ephemeral Container"))
			}
		}
	}
	return errs
}

// onlyFields refuses fields of a struct that are set and not in allowed.
func onlyFields(value any, allowed sets.Set[string], detail string, p *field.Path) (errs field.ErrorList) {
	v := reflect.ValueOf(value)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; !allowed.Has(name) && !v.Field(i).IsZero() {
			errs = append(errs, field.Forbidden(p.Child(strings.ToLower(name[:1])+name[1:]), detail))
		}
	}
	return errs
}

// validateRestart checks a container's own restart policy and rules (KEP-5307).
func restartPolicyMissing(p *field.Path) *field.Error {
	return field.Required(p.Child("restartPolicy"), "must specify restartPolicy when restart rules are used")
}

func validateRestart(c *corev1.Container, p *field.Path) (errs field.ErrorList) {
	at := p.Child("restartPolicy")
	switch {
	case c.RestartPolicy != nil:
		errs = append(errs, Among(*c.RestartPolicy, at,
			corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever,
			corev1.ContainerRestartPolicyOnFailure)...)
	case len(c.RestartPolicyRules) > 0:
		errs = append(errs, restartPolicyMissing(p))
	}
	rules := p.Child("restartPolicyRules")
	if n := len(c.RestartPolicyRules); n > 20 {
		errs = append(errs, field.TooMany(rules, n, 20))
	}
	for i, r := range c.RestartPolicyRules {
		at := rules.Index(i)
		errs = append(errs, Among(r.Action, at.Child("action"),
			corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)...)
		if r.ExitCodes == nil {
			errs = append(errs, field.Required(at.Child("exitCodes"), "must be specified"))
			continue
		}
		errs = append(errs, Among(r.ExitCodes.Operator, at.Child("exitCodes", "operator"),
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)...)
		if n := len(r.ExitCodes.Values); n > 255 {
			errs = append(errs, field.TooMany(at.Child("exitCodes", "values"), n, 255))
		}
	}
	return errs
}

func validatePorts(ports []corev1.ContainerPort, p *field.Path) (errs field.ErrorList) {
	names := sets.New[string]()
	for i, port := range ports {
		at := p.Index(i)
		if port.Name != "" {
			bad := fieldrule.Invalid(at.Child("name"), port.Name, validation.IsValidPortName(port.Name))
			if len(bad) == 0 && names.Has(port.Name) {
				bad = append(bad, field.Duplicate(at.Child("name"), port.Name))
			}
			errs = append(errs, bad...)
			names.Insert(port.Name)
		}
		if port.ContainerPort == 0 {
			errs = append(errs, field.Required(at.Child("containerPort"), ""))
		} else {
			errs = append(errs,
				fieldrule.Invalid(at.Child("containerPort"), port.ContainerPort,
					validation.IsValidPortNum(int(port.ContainerPort)))...)
		}
		if port.HostPort != 0 {
			errs = append(errs,
				fieldrule.Invalid(at.Child("hostPort"), port.HostPort, validation.IsValidPortNum(int(port.HostPort)))...)
		}
		errs = append(errs,
			OneOf(port.Protocol, at.Child("protocol"), corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)...)
	}
	return errs
}

func uniqueHostPorts(containers []corev1.Container, p *field.Path) (errs field.ErrorList) {
	var seen sets.Set[string]
	for i := range containers {
		for j, port := range containers[i].Ports {
			if port.HostPort == 0 {
				continue
			}
			key := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
			if seen.Has(key) {
				errs = append(errs, field.Duplicate(p.Index(i).Child("ports").Index(j).Child("hostPort"), key))
			}
			if seen == nil {
				seen = sets.New[string]()
			}
			seen.Insert(key)
		}
	}
	return errs
}

// validateHostPorts: on the host's network a container port is a host port.
func (s *scope) validateHostPorts(p *field.Path) (errs field.ErrorList) {
	if !s.spec.HostNetwork {
		return nil
	}
	for i := range s.spec.Containers {
		for j, port := range s.spec.Containers[i].Ports {
			if (s.inPod() || port.HostPort != 0) && port.HostPort != port.ContainerPort {
				errs = append(errs, field.Invalid(p.Index(i).Child("ports").Index(j).Child("hostPort"), port.HostPort,
					"must match `containerPort` when `hostNetwork` is true"))
			}
		}
	}
	return errs
}

func (s *scope) validateResizePolicy(policies []corev1.ContainerResizePolicy, p *field.Path) (errs field.ErrorList) {
	seen := sets.New[corev1.ResourceName]()
	for i, r := range policies {
		if seen.Has(r.ResourceName) {
			errs = append(errs, field.Duplicate(p.Index(i), r.ResourceName))
		}
		seen.Insert(r.ResourceName)
		errs = append(errs, OneOf(r.ResourceName, p, corev1.ResourceCPU, corev1.ResourceMemory)...)
		errs = append(errs, OneOf(r.RestartPolicy, p, corev1.NotRequired, corev1.RestartContainer)...)
		if s.spec.RestartPolicy == corev1.RestartPolicyNever && r.RestartPolicy != corev1.NotRequired {
			errs = append(errs, field.Invalid(p, r.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'"))
		}
	}
	return errs
}
