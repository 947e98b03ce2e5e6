package volume

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shoal-project/shoal/agent/beneath"
)

// Facts is what the downward API tells that is not in the pod's metadata.
type Facts struct {
	NodeName    string
	HostIPs     []string
	PodIPs      []string
	Allocatable corev1.ResourceList
}

// Expand replaces $(NAME) by what lookup gives. $$ is a literal $; a name
// that is not known stays as it was written.
func Expand(s string, lookup func(string) (string, bool)) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i+2:], ')')
			if end < 0 {
				b.WriteByte('$')
				continue
			}
			name := s[i+2 : i+2+end]
			if v, ok := lookup(name); ok {
				b.WriteString(v)
			} else {
				b.WriteString("$(" + name + ")")
			}
			i += 2 + end
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}

// Field returns the value of a downward API field.
func Field(p *corev1.Pod, path string, f Facts) (string, error) {
	if base, key, ok := subscript(path); ok {
		switch base {
		case "metadata.labels":
			return p.Labels[key], nil
		case "metadata.annotations":
			return p.Annotations[key], nil
		}
		return "", fmt.Errorf("fieldPath %q does not support subscript", path)
	}
	switch path {
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	case "metadata.labels":
		return quoted(p.Labels), nil
	case "metadata.annotations":
		return quoted(p.Annotations), nil
	case "spec.nodeName":
		return f.NodeName, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(f.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(f.HostIPs, ","), nil
	case "status.podIP":
		return first(f.PodIPs), nil
	case "status.podIPs":
		return strings.Join(f.PodIPs, ","), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

func subscript(path string) (base, key string, ok bool) {
	base, rest, ok := strings.Cut(path, "['")
	if !ok || !strings.HasSuffix(rest, "']") {
		return "", "", false
	}
	return base, strings.TrimSuffix(rest, "']"), true
}

func quoted(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for k, v := range m {
		lines = append(lines, k+"="+strconv.Quote(v))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

// Resource returns a container's request or limit in units of the divisor,
// rounded up. A limit that is not set is the pod's (KEP-2837), or what the node can give.
func Resource(p *corev1.Pod, container string, r *corev1.ResourceFieldSelector, f Facts) (string, error) {
	if r.ContainerName != "" {
		container = r.ContainerName
	}
	var c *corev1.Container
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == container {
				c = &list[i]
			}
		}
	}
	if c == nil {
		return "", fmt.Errorf("container %s not found", container)
	}
	kind, name, ok := strings.Cut(r.Resource, ".")
	if !ok || kind != "limits" && kind != "requests" {
		return "", fmt.Errorf("unsupported container resource : %v", r.Resource)
	}
	rn := corev1.ResourceName(name)
	list := c.Resources.Requests
	if kind == "limits" {
		list = c.Resources.Limits
	}
	q, found := list[rn]
	if !found && kind == "limits" {
		q = f.Allocatable[rn]
		if whole := p.Spec.Resources; whole != nil {
			if limit, set := whole.Limits[rn]; set {
				q = limit
			}
		}
	}
	return scaled(q, r.Divisor, rn == corev1.ResourceCPU), nil
}

func scaled(q, divisor resource.Quantity, milli bool) string {
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if milli {
		return strconv.FormatInt(int64(math.Ceil(float64(q.MilliValue())/float64(divisor.MilliValue()))), 10)
	}
	return strconv.FormatInt(int64(math.Ceil(float64(q.Value())/float64(divisor.Value()))), 10)
}

// ErrNoKey: the environment file has no such variable.
var ErrNoKey = errors.New("no such key")

// maxEnvFile bounds a file of environment variables: as much as a ConfigMap may
// hold.
const maxEnvFile = 1 << 20

// EnvFile returns one variable of a file of NAME=VALUE lines in dir (KEP-3721).
// A container wrote it: links lead nowhere but inside the volume.
func EnvFile(dir, path, key string) (string, error) {
	d, err := beneath.Open(dir)
	if err != nil {
		return "", err
	}
	defer d.Close()
	data, err := d.ReadFile(strings.TrimPrefix(path, "/"), maxEnvFile, beneath.LinksInside)
	if errors.Is(err, os.ErrNotExist) {
		return "", ErrNoKey
	}
	if err != nil {
		return "", err
	}
	return envValue(data, key)
}

// envValue finds a variable among lines of NAME=VALUE.
func envValue(data []byte, key string) (string, error) {
	for text := range strings.Lines(string(data)) {
		line := strings.TrimSpace(text)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		if !ok {
			return "", fmt.Errorf("invalid line in environment file: %q", shortened(line))
		}
		if strings.TrimSpace(name) == key {
			value = strings.TrimSpace(value)
			if len(value) > 1 && (value[0] == '\'' || value[0] == '"') && value[len(value)-1] == value[0] {
				value = value[1 : len(value)-1]
			}
			return value, nil
		}
	}
	return "", ErrNoKey
}

// shortened keeps a message short whatever the file holds.
func shortened(line string) string {
	const most = 128
	if len(line) > most {
		return line[:most] + "..."
	}
	return line
}
