package admission

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
)

// plugin is one that can run, by upstream's name.
type plugin struct {
	name string
	// off plugins run only when they are enabled.
	off bool
	// configurable ones take a configuration; nil stands for their default.
	configurable bool
	build        func(config io.Reader) (admission.Interface, error)
}

// fixed is the build function of a plugin without a configuration.
func fixed[P admission.Interface](make func() P) func(io.Reader) (admission.Interface, error) {
	return func(io.Reader) (admission.Interface, error) { return make(), nil }
}

// known lists all plugins in upstream's order.
func (c *Config) known() []plugin {
	list := []plugin{
		{name: "NamespaceLifecycle",
			build: func(io.Reader) (admission.Interface, error) { return lifecycle.NewLifecycle(immortal) }},
		{name: "LimitPodHardAntiAffinityTopology", off: true, build: fixed(newHardAntiAffinity)},
		{name: "LimitRanger", build: fixed(newLimitRanger)},
		{name: "ServiceAccount", build: fixed(newServiceAccount)},
		{name: "NodeRestriction", build: fixed(newNodeRestriction)},
		{name: "TaintNodesByCondition", build: fixed(newTaintNodes)},
		{name: "AlwaysPullImages", off: true, build: fixed(newAlwaysPullImages)},
		{name: "ImagePolicyWebhook", off: true, configurable: true, build: newImagePolicy},
		{name: "PodSecurity", configurable: true, build: newPodSecurity},
		{name: "PodNodeSelector", off: true, configurable: true, build: newPodNodeSelector},
		{name: "Priority", build: fixed(newPriority)},
		{name: "DefaultTolerationSeconds", build: fixed(newDefaultTolerationSeconds)},
		{name: "PodTolerationRestriction", off: true, configurable: true, build: newTolerationRestriction},
		{name: "EventRateLimit", off: true, configurable: true, build: newEventRateLimit},
		{name: "ExtendedResourceToleration", off: true, build: fixed(newExtendedToleration)},
		{name: "DefaultStorageClass", build: fixed(newDefaultStorageClass)},
		{name: "StorageObjectInUseProtection", build: fixed(newStorageProtection)},
		{name: "PersistentVolumeClaimResize", build: fixed(newClaimResize)},
		{name: "RuntimeClass", build: fixed(newRuntimeClass)},
		{name: "CertificateApproval", build: fixed(newCertificateRights)},
		{name: "CertificateSubjectRestriction", build: fixed(newCertificateSubjects)},
		{name: "DefaultIngressClass", build: fixed(newDefaultIngressClass)},
		{name: "DenyServiceExternalIPs", off: true, build: fixed(newDenyExternalIPs)},
		{name: "PodTopologyLabels", build: fixed(newTopologyLabels)},
		{name: "NodeDeclaredFeatureValidator", build: fixed(newNodeFeatures)},
		{name: "PodResizeValidator", build: fixed(newPodResize)},
		{name: "PodIsolationPolicy", build: fixed(func() *isolationPolicy { return newIsolationPolicy(c.WhenIsolated) })},
		{name: "NetworkPolicyEnforcement", build: fixed(func() *idlePolicies { return newIdlePolicies(c.PoliciesIdle) })},
		{name: "MutatingAdmissionPolicy", configurable: true, build: func(config io.Reader) (admission.Interface, error) {
			return newMutatingPolicies(c.Stop, config)
		}},
		{name: "MutatingAdmissionWebhook", configurable: true, build: func(config io.Reader) (admission.Interface, error) {
			return mutating.NewMutatingWebhook(config)
		}},
		{name: "ValidatingAdmissionPolicy", configurable: true,
			build: func(config io.Reader) (admission.Interface, error) {
				return validatingpolicy.NewPlugin(config)
			}},
		{name: "ValidatingAdmissionWebhook", configurable: true,
			build: func(config io.Reader) (admission.Interface, error) {
				return validating.NewValidatingAdmissionWebhook(config)
			}},
		{name: "ResourceQuota", configurable: true, build: newResourceQuota},
	}
	if c.Dynamic == nil {
		list = slices.DeleteFunc(list, func(p plugin) bool { return strings.HasSuffix(p.name, "AdmissionPolicy") })
	}
	return list
}

// plugins builds those that run, and tells their names.
func (c *Config) plugins() (plugins []admission.Interface, names []string, err error) {
	known := c.known()
	if err := c.checkNames(known); err != nil {
		return nil, nil, err
	}
	configs, err := readConfigurations(c.ConfigFile, known)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range known {
		if slices.Contains(c.Disable, p.name) || p.off && !slices.Contains(c.Enable, p.name) {
			continue
		}
		built, err := p.build(configs.of(p.name))
		if err != nil {
			return nil, nil, fmt.Errorf("plugin %s: %w", p.name, err)
		}
		plugins, names = append(plugins, built), append(names, p.name)
	}
	return plugins, names, nil
}

// checkNames refuses names that would enable or disable nothing.
func (c *Config) checkNames(known []plugin) error {
	names := make([]string, 0, len(known))
	for _, p := range known {
		names = append(names, p.name)
	}
	var errs []error
	check := func(field string, list []string) {
		for _, name := range list {
			// One plugin here does what upstream's two do.
			if !slices.Contains(names, name) && name != "CertificateSigning" {
				errs = append(errs,
					fmt.Errorf("%s: plugin %q is unknown, give some of %s", field, name, strings.Join(names, ", ")))
			}
		}
	}
	check("enableAdmissionPlugins", c.Enable)
	check("disableAdmissionPlugins", c.Disable)
	for _, name := range c.Enable {
		if slices.Contains(c.Disable, name) {
			errs = append(errs,
				fmt.Errorf("%s is in enableAdmissionPlugins and in disableAdmissionPlugins, remove it from one", name))
		}
	}
	return errors.Join(errs...)
}
