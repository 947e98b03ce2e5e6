package launch

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/volume"
)

// environment sets the container's variables: env over envFrom over the
// services' own.
func environment(c *container) error {
	services, err := c.serviceLinks()
	if err != nil {
		return err
	}
	v := &variables{set: map[string]string{}, services: services}
	for i := range c.Container.EnvFrom {
		if err := c.envFrom(v, &c.Container.EnvFrom[i]); err != nil {
			return err
		}
	}
	for i := range c.Container.Env {
		e := &c.Container.Env[i]
		value, ok, err := volume.Expand(e.Value, v.lookup), true, error(nil)
		if e.Value == "" && e.ValueFrom != nil {
			value, ok, err = c.valueFrom(e.ValueFrom)
		}
		if err != nil {
			return err
		}
		if ok {
			v.add(e.Name, value)
		}
	}
	c.config.Envs = append(c.config.Envs, v.list()...)
	return nil
}

// variables are those that a container's spec sets, in its order, over those
// that services bring.
type variables struct {
	order         []string
	set, services map[string]string
}

func (v *variables) add(name, value string) {
	if _, ok := v.set[name]; !ok {
		v.order = append(v.order, name)
	}
	v.set[name] = value
}

func (v *variables) lookup(name string) (string, bool) {
	if value, ok := v.set[name]; ok {
		return value, true
	}
	value, ok := v.services[name]
	return value, ok
}

func (v *variables) list() []*criv1.KeyValue {
	out := make([]*criv1.KeyValue, 0, len(v.set)+len(v.services))
	for _, name := range v.order {
		out = append(out, &criv1.KeyValue{Key: name, Value: []byte(v.set[name])})
	}
	for _, name := range slices.Sorted(maps.Keys(v.services)) {
		if _, ok := v.set[name]; !ok {
			out = append(out, &criv1.KeyValue{Key: name, Value: []byte(v.services[name])})
		}
	}
	return out
}

// envFrom adds all of an object.
func (f *Facts) envFrom(v *variables, e *corev1.EnvFromSource) error {
	switch {
	case e.ConfigMapRef != nil:
		cm, err := f.ConfigMap(e.ConfigMapRef.Name)
		if err != nil {
			return unlessOptional(err, e.ConfigMapRef.Optional)
		}
		for _, k := range slices.Sorted(maps.Keys(cm.Data)) {
			v.add(e.Prefix+k, cm.Data[k])
		}
	case e.SecretRef != nil:
		s, err := f.Secret(e.SecretRef.Name)
		if err != nil {
			return unlessOptional(err, e.SecretRef.Optional)
		}
		for _, k := range slices.Sorted(maps.Keys(s.Data)) {
			v.add(e.Prefix+k, string(s.Data[k]))
		}
	}
	return nil
}

// valueFrom resolves one value; false when an optional source is missing.
func (f *Facts) valueFrom(s *corev1.EnvVarSource) (string, bool, error) {
	switch {
	case s.FieldRef != nil:
		v, err := volume.Field(f.Pod, s.FieldRef.FieldPath, f.downward())
		return v, err == nil, err
	case s.ResourceFieldRef != nil:
		v, err := volume.Resource(f.Pod, f.Container.Name, s.ResourceFieldRef, f.downward())
		return v, err == nil, err
	case s.ConfigMapKeyRef != nil:
		return f.configMapKey(s.ConfigMapKeyRef)
	case s.SecretKeyRef != nil:
		return f.secretKey(s.SecretKeyRef)
	case s.FileKeyRef != nil:
		return f.fileKey(s.FileKeyRef)
	}
	return "", false, nil
}

// downward is what the downward API tells beside the pod's metadata.
func (f *Facts) downward() volume.Facts {
	d := volume.Facts{
		NodeName:    f.Host.NodeName,
		HostIPs:     f.Host.IPs,
		PodIPs:      f.PodIPs,
		Allocatable: f.Host.Allocatable,
	}
	if f.Pod.Spec.HostNetwork {
		d.PodIPs = f.Host.IPs
	}
	return d
}

func (f *Facts) configMapKey(r *corev1.ConfigMapKeySelector) (string, bool, error) {
	cm, err := f.ConfigMap(r.Name)
	if err != nil {
		return "", false, unlessOptional(err, r.Optional)
	}
	if v, ok := cm.Data[r.Key]; ok || ptr.Deref(r.Optional, false) {
		return v, ok, nil
	}
	return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", r.Key, f.Pod.Namespace, r.Name)
}

func (f *Facts) secretKey(r *corev1.SecretKeySelector) (string, bool, error) {
	s, err := f.Secret(r.Name)
	if err != nil {
		return "", false, unlessOptional(err, r.Optional)
	}
	if v, ok := s.Data[r.Key]; ok || ptr.Deref(r.Optional, false) {
		return string(v), ok, nil
	}
	return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", r.Key, f.Pod.Namespace, r.Name)
}

func (f *Facts) fileKey(r *corev1.FileKeySelector) (string, bool, error) {
	v, err := f.EnvFile(r.VolumeName, filepath.Clean(r.Path), r.Key)
	switch {
	case !errors.Is(err, volume.ErrNoKey):
		return v, err == nil, err
	case ptr.Deref(r.Optional, false):
		return "", false, nil
	}
	return "", false, fmt.Errorf("environment variable key %q not found in file %q", r.Key, r.Path)
}

func unlessOptional(err error, optional *bool) error {
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		return nil
	}
	return err
}

// serviceLinks are the variables of services. A static pod may be what brings
// the API that would tell of them, so it does not wait.
func (f *Facts) serviceLinks() (map[string]string, error) {
	known, ok := f.Services()
	if !ok && !ofManifest(f.Pod) {
		return nil, errors.New("services have not yet been read at least once, cannot construct envvars")
	}
	return serviceEnv(known, f.Pod.Namespace, ptr.Deref(f.Pod.Spec.EnableServiceLinks, true)), nil
}

// serviceEnv is the variables of the services a pod may see: those of its
// namespace when it wants links, and the API's always.
func serviceEnv(services []*corev1.Service, namespace string, links bool) map[string]string {
	out := map[string]string{}
	var own []*corev1.Service
	for _, s := range services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone || len(s.Spec.Ports) == 0 {
			continue
		}
		if s.Namespace == corev1.NamespaceDefault && s.Name == "kubernetes" {
			serviceVars(out, s)
		} else if links && s.Namespace == namespace {
			own = append(own, s)
		}
	}
	for _, s := range own {
		serviceVars(out, s)
	}
	return out
}

func serviceVars(out map[string]string, s *corev1.Service) {
	name := strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
	ip := s.Spec.ClusterIP
	out[name+"_SERVICE_HOST"] = ip
	out[name+"_SERVICE_PORT"] = strconv.Itoa(int(s.Spec.Ports[0].Port))
	for i, p := range s.Spec.Ports {
		port := strconv.Itoa(int(p.Port))
		if p.Name != "" {
			out[name+"_SERVICE_PORT_"+strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_"))] = port
		}
		proto := string(p.Protocol)
		if proto == "" {
			proto = string(corev1.ProtocolTCP)
		}
		url := strings.ToLower(proto) + "://" + net.JoinHostPort(ip, port)
		if i == 0 {
			out[name+"_PORT"] = url
		}
		prefix := name + "_PORT_" + port + "_" + strings.ToUpper(proto)
		out[prefix] = url
		out[prefix+"_PROTO"] = strings.ToLower(proto)
		out[prefix+"_PORT"] = port
		out[prefix+"_ADDR"] = ip
	}
}
