package volume

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/record"
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
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, k+"="+strconv.Quote(m[k]))
	}
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
	c := record.FindContainer(p, container)
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
	q := list[rn]
	if q.IsZero() && kind == "limits" && !strings.HasPrefix(name, corev1.ResourceHugePagesPrefix) {
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

// EnvFile returns one variable of a file of NAME='VALUE' lines in dir (KEP-3721).
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
	return envValue(strings.ReplaceAll(string(data), "\r\n", "\n"), key)
}

// envValue finds a variable among lines of NAME='VALUE', a part of what a shell takes: a
// value stands in single quotes, is taken as it is and may have several lines; comments
// begin with #. An empty one counts as missing, as with the kubelet. Errors show nothing of
// the file: it may hold secrets.
func envValue(text, key string) (string, error) {
	const blank = " \t"
	for number := 1; text != ""; number++ {
		wrong := func(why string) (string, error) { return "", fmt.Errorf("environment file: line %d: %s", number, why) }
		whole, next, _ := strings.Cut(text, "\n")
		line := strings.TrimLeft(whole, blank)
		if line == "" || line[0] == '#' {
			text = next
			continue
		}
		name, after, ok := strings.Cut(line, "=")
		switch {
		case !ok:
			return wrong("no = in it")
		case name == "":
			return wrong("no name before =")
		case strings.TrimRight(name, blank) != name:
			return wrong("space before =")
		}
		value := ""
		switch {
		case strings.HasPrefix(after, "'"):
			if value, after, ok = strings.Cut(text[len(whole)-len(after)+1:], "'"); !ok {
				return wrong("a single quote is not closed")
			}
			number += strings.Count(value, "\n")
			after, next, _ = strings.Cut(after, "\n")
			if after = strings.TrimLeft(after, blank); after != "" && after[0] != '#' {
				return wrong("something follows the closing quote")
			}
		case after == strings.TrimLeft(after, blank): // else it is empty, as in a shell
			return wrong("the value is not in single quotes")
		}
		if name == key {
			if value == "" {
				return "", ErrNoKey
			}
			return value, nil
		}
		text = next
	}
	return "", ErrNoKey
}
