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

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/volume"
)

// environment is the container's variables: envFrom under env over the
// services' own.
func (f *Facts) environment() ([]*runtimeapi.KeyValue, error) {
	c := f.Container
	known, ok := f.Services()
	if !ok && f.Pod.Annotations["kubernetes.io/config.source"] != "file" {
		return nil, errors.New("services have not yet been read at least once, cannot construct envvars")
	}
	services := serviceEnv(known, f.Pod.Namespace, f.Pod.Spec.EnableServiceLinks == nil || *f.Pod.Spec.EnableServiceLinks)
	vars := map[string]string{}
	var order []string
	set := func(k, v string) {
		if _, ok := vars[k]; !ok {
			order = append(order, k)
		}
		vars[k] = v
	}
	for i := range c.EnvFrom {
		if err := f.from(&c.EnvFrom[i], set); err != nil {
			return nil, err
		}
	}
	lookup := func(name string) (string, bool) {
		if v, ok := vars[name]; ok {
			return v, true
		}
		v, ok := services[name]
		return v, ok
	}
	for i := range c.Env {
		v := &c.Env[i]
		value, ok, err := volume.Expand(v.Value, lookup), true, error(nil)
		if v.Value == "" && v.ValueFrom != nil {
			value, ok, err = f.source(v.ValueFrom)
		}
		if err != nil {
			return nil, err
		}
		if ok {
			set(v.Name, value)
		}
	}
	out := make([]*runtimeapi.KeyValue, 0, len(vars)+len(services))
	for _, k := range order {
		out = append(out, &runtimeapi.KeyValue{Key: k, Value: []byte(vars[k])})
	}
	for _, k := range slices.Sorted(maps.Keys(services)) {
		if _, ok := vars[k]; !ok {
			out = append(out, &runtimeapi.KeyValue{Key: k, Value: []byte(services[k])})
		}
	}
	return out, nil
}

func (f *Facts) from(e *v1.EnvFromSource, set func(k, v string)) error {
	switch {
	case e.ConfigMapRef != nil:
		cm, err := f.ConfigMap(e.ConfigMapRef.Name)
		if err != nil {
			return unlessOptional(err, e.ConfigMapRef.Optional)
		}
		for _, k := range slices.Sorted(maps.Keys(cm.Data)) {
			set(e.Prefix+k, cm.Data[k])
		}
	case e.SecretRef != nil:
		s, err := f.Secret(e.SecretRef.Name)
		if err != nil {
			return unlessOptional(err, e.SecretRef.Optional)
		}
		for _, k := range slices.Sorted(maps.Keys(s.Data)) {
			set(e.Prefix+k, string(s.Data[k]))
		}
	}
	return nil
}

// downward is what the downward API tells beside the pod's metadata.
func (f *Facts) downward() volume.Facts {
	d := volume.Facts{NodeName: f.Host.NodeName, HostIPs: f.Host.IPs, PodIPs: f.PodIPs, Allocatable: f.Host.Allocatable}
	if f.Pod.Spec.HostNetwork {
		d.PodIPs = f.Host.IPs
	}
	return d
}

func unlessOptional(err error, optional *bool) error {
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil
	}
	return err
}

// source resolves valueFrom; false when an optional source is missing.
func (f *Facts) source(s *v1.EnvVarSource) (string, bool, error) {
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

func (f *Facts) configMapKey(r *v1.ConfigMapKeySelector) (string, bool, error) {
	cm, err := f.ConfigMap(r.Name)
	if err != nil {
		return "", false, unlessOptional(err, r.Optional)
	}
	if v, ok := cm.Data[r.Key]; ok {
		return v, true, nil
	}
	if r.Optional != nil && *r.Optional {
		return "", false, nil
	}
	return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", r.Key, f.Pod.Namespace, r.Name)
}

func (f *Facts) secretKey(r *v1.SecretKeySelector) (string, bool, error) {
	s, err := f.Secret(r.Name)
	if err != nil {
		return "", false, unlessOptional(err, r.Optional)
	}
	if v, ok := s.Data[r.Key]; ok {
		return string(v), true, nil
	}
	if r.Optional != nil && *r.Optional {
		return "", false, nil
	}
	return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", r.Key, f.Pod.Namespace, r.Name)
}

func (f *Facts) fileKey(r *v1.FileKeySelector) (string, bool, error) {
	dir, err := f.Volume(r.VolumeName)
	if err != nil {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", r.VolumeName)
	}
	v, err := volume.EnvFile(dir, filepath.Clean(r.Path), r.Key)
	if errors.Is(err, volume.ErrNoKey) {
		if r.Optional != nil && *r.Optional {
			return "", false, nil
		}
		return "", false, fmt.Errorf("environment variable key %q not found in file %q", r.Key, r.Path)
	}
	return v, err == nil, err
}

// serviceEnv is the variables of the services a pod may see: those of its
// namespace when it wants links, and the API's always.
func serviceEnv(services []*v1.Service, namespace string, links bool) map[string]string {
	out := map[string]string{}
	var own []*v1.Service
	for _, s := range services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == v1.ClusterIPNone || len(s.Spec.Ports) == 0 {
			continue
		}
		if s.Namespace == v1.NamespaceDefault && s.Name == "kubernetes" {
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

func serviceVars(out map[string]string, s *v1.Service) {
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
			proto = string(v1.ProtocolTCP)
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
