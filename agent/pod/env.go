package pod

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/volume"
)

// Objects gives the ConfigMaps and Secrets that pods refer to. A missing one
// is an apimachinery not-found error.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// environment is what the variables of one container are made of.
type environment struct {
	objects  Objects
	services func(context.Context) ([]*v1.Service, bool)
	pod      *v1.Pod
	facts    volume.Facts
	// volumePath finds a volume of the pod on the host (fileKeyRef).
	volumePath func(name string) (string, error)
}

// build returns the container's variables: envFrom under env over the
// services' own.
func (e *environment) build(ctx context.Context, c *v1.Container) ([]*runtimeapi.KeyValue, error) {
	known, ok := e.services(ctx)
	if !ok && e.pod.Annotations["kubernetes.io/config.source"] != SourceFile {
		return nil, errors.New("services have not yet been read at least once, cannot construct envvars")
	}
	services := serviceEnv(known, e.pod.Namespace, e.pod.Spec.EnableServiceLinks == nil || *e.pod.Spec.EnableServiceLinks)
	vars := map[string]string{}
	var order []string
	set := func(k, v string) {
		if _, ok := vars[k]; !ok {
			order = append(order, k)
		}
		vars[k] = v
	}
	for i := range c.EnvFrom {
		if err := e.from(ctx, &c.EnvFrom[i], set); err != nil {
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
			value, ok, err = e.source(ctx, c, v.ValueFrom)
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
	var names []string
	for k := range services {
		if _, ok := vars[k]; !ok {
			names = append(names, k)
		}
	}
	sort.Strings(names)
	for _, k := range names {
		out = append(out, &runtimeapi.KeyValue{Key: k, Value: []byte(services[k])})
	}
	return out, nil
}

func (e *environment) from(ctx context.Context, f *v1.EnvFromSource, set func(k, v string)) error {
	switch {
	case f.ConfigMapRef != nil:
		cm, err := e.objects.ConfigMap(ctx, e.pod.Namespace, f.ConfigMapRef.Name)
		if err != nil {
			return unlessOptional(err, f.ConfigMapRef.Optional)
		}
		for _, k := range sorted(cm.Data) {
			set(f.Prefix+k, cm.Data[k])
		}
	case f.SecretRef != nil:
		s, err := e.objects.Secret(ctx, e.pod.Namespace, f.SecretRef.Name)
		if err != nil {
			return unlessOptional(err, f.SecretRef.Optional)
		}
		for _, k := range sorted(s.Data) {
			set(f.Prefix+k, string(s.Data[k]))
		}
	}
	return nil
}

func unlessOptional(err error, optional *bool) error {
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil
	}
	return err
}

// source resolves valueFrom; false when an optional source is missing.
func (e *environment) source(ctx context.Context, c *v1.Container, s *v1.EnvVarSource) (string, bool, error) {
	switch {
	case s.FieldRef != nil:
		v, err := volume.Field(e.pod, s.FieldRef.FieldPath, e.facts)
		return v, err == nil, err
	case s.ResourceFieldRef != nil:
		v, err := volume.Resource(e.pod, c.Name, s.ResourceFieldRef, e.facts)
		return v, err == nil, err
	case s.ConfigMapKeyRef != nil:
		return e.configMapKey(ctx, s.ConfigMapKeyRef)
	case s.SecretKeyRef != nil:
		return e.secretKey(ctx, s.SecretKeyRef)
	case s.FileKeyRef != nil:
		return e.fileKey(s.FileKeyRef)
	}
	return "", false, nil
}

func (e *environment) configMapKey(ctx context.Context, r *v1.ConfigMapKeySelector) (string, bool, error) {
	cm, err := e.objects.ConfigMap(ctx, e.pod.Namespace, r.Name)
	if err != nil {
		return "", false, unlessOptional(err, r.Optional)
	}
	if v, ok := cm.Data[r.Key]; ok {
		return v, true, nil
	}
	if r.Optional != nil && *r.Optional {
		return "", false, nil
	}
	return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", r.Key, e.pod.Namespace, r.Name)
}

func (e *environment) secretKey(ctx context.Context, r *v1.SecretKeySelector) (string, bool, error) {
	s, err := e.objects.Secret(ctx, e.pod.Namespace, r.Name)
	if err != nil {
		return "", false, unlessOptional(err, r.Optional)
	}
	if v, ok := s.Data[r.Key]; ok {
		return string(v), true, nil
	}
	if r.Optional != nil && *r.Optional {
		return "", false, nil
	}
	return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", r.Key, e.pod.Namespace, r.Name)
}

func (e *environment) fileKey(r *v1.FileKeySelector) (string, bool, error) {
	dir, err := e.volumePath(r.VolumeName)
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

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
