package launch

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/agent/volume"
	"github.com/shoal-project/shoal/tests/transcript"
)

// around is what a scenario says of what is around its pod (facts.yaml).
type around struct {
	// Host is laid over the one of newFacts.
	Host       Host
	Image      struct{ UID, Username string }
	Attempt    uint32
	Target     string
	Users      Users
	PodIPs     []string
	ConfigMaps map[string]map[string]string
	Secrets    map[string]map[string]string
	// Groups are those of volumes.
	Groups map[string]int64
	// EnvFiles are the variables of every file in a volume.
	EnvFiles map[string]string
	Services []*corev1.Service
	// Plugged is what comes with the devices of device plugins.
	Plugged *criv1.ContainerConfig
	// ServicesUnknown: the agent has not read them yet.
	ServicesUnknown     bool
	NodeHosts, Resolver string
}

// TestScenarios: each file of testdata is a pod, and what its first container
// and its sandbox become. plain.txtar shows all of both; the others show only
// the fields that are not as there: "- field: value" is what plain.txtar has,
// "+ field: value" what this one has.
//
// After a wanted change: go test ./agent/pod/launch -update, and read the diff.
func TestScenarios(t *testing.T) {
	plainText := text(t, "testdata/plain.txtar")
	plain := outcome(t, plainText)
	transcript.Files(t, "testdata/*.txtar", func(t *testing.T, scenario string) string {
		got := outcome(t, scenario)
		if scenario != plainText {
			got["container"] = beside(got["container"], plain["container"])
			got["sandbox"] = beside(got["sandbox"], plain["sandbox"])
			if slices.Equal(got["files"], plain["files"]) {
				delete(got, "files")
			}
		}
		a := txtar.Parse([]byte(scenario))
		a.Files = slices.DeleteFunc(a.Files, func(f txtar.File) bool { return !strings.HasSuffix(f.Name, ".yaml") })
		for _, name := range slices.Sorted(maps.Keys(got)) {
			if len(got[name]) > 0 {
				a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(strings.Join(got[name], "\n") + "\n")})
			}
		}
		return string(txtar.Format(a))
	})
}

func text(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// outcome translates the pod of a scenario.
func outcome(t *testing.T, scenario string) map[string][]string {
	t.Helper()
	f, s := read(t, scenario)
	out := map[string][]string{}
	config, files, err := Container(f)
	if err != nil {
		out["error"] = append(out["error"], "container: "+err.Error())
	} else {
		out["container"] = fields(t, config)
		out["files"] = []string{fmt.Sprintf("%d files", len(files))}
	}
	for _, file := range files {
		out["files"] = append(out["files"], fmt.Sprintf("%s, %s:", file.Path, file.Mode))
		for line := range strings.Lines(string(file.Data)) {
			out["files"] = append(out["files"], "  "+strings.TrimSpace(strings.ReplaceAll(line, "\t", " ")))
		}
	}
	sandbox, err := Sandbox(s)
	if err != nil {
		out["error"] = append(out["error"], "sandbox: "+err.Error())
	} else {
		out["sandbox"] = fields(t, sandbox)
	}
	return out
}

// read makes facts of a scenario's pod.yaml and facts.yaml.
func read(t *testing.T, scenario string) (*Facts, *SandboxFacts) {
	t.Helper()
	p := &corev1.Pod{}
	p.Name, p.Namespace, p.UID = "p", "ns", "u"
	w := &around{Host: testHost(), PodIPs: []string{"10.0.0.5"}, Resolver: "nameserver 192.0.2.53\nsearch example.com\n"}
	for _, f := range txtar.Parse([]byte(scenario)).Files {
		into := map[string]any{"pod.yaml": p, "facts.yaml": w}[f.Name]
		if into == nil {
			continue
		}
		if err := yaml.UnmarshalStrict(f.Data, into); err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
	}
	return w.facts(p), &SandboxFacts{Host: &w.Host, Pod: p, Attempt: w.Attempt, Users: w.Users,
		NodeResolver: func() ([]byte, error) { return []byte(w.Resolver), nil }, Warn: func(string, string) {}}
}

// testHost is the node of all scenarios.
func testHost() Host {
	return Host{
		NodeName:      "node",
		Hostname:      "machine",
		IPs:           []string{"192.0.2.1"},
		MemoryBytes:   4 << 30,
		RootDir:       "/kubelet",
		PodLogsDir:    "/logs",
		ClusterDNS:    []string{"10.96.0.10"},
		ClusterDomain: "cluster.local",
		CgroupParent:  func(p *corev1.Pod) string { return "/kubepods/pod" + string(p.UID) },
	}
}

// facts are those of the pod's first container; with init or ephemeral ones,
// of the first of these.
func (w *around) facts(p *corev1.Pod) *Facts {
	c := p.Spec.Containers[0]
	if len(p.Spec.InitContainers) > 0 {
		c = p.Spec.InitContainers[0]
	}
	if len(p.Spec.EphemeralContainers) > 0 {
		c = corev1.Container(p.Spec.EphemeralContainers[0].EphemeralContainerCommon)
	}
	image := &criv1.Image{Id: "sha256:1", Username: w.Image.Username}
	if w.Image.UID != "" {
		image.Uid = &criv1.Int64Value{}
		fmt.Sscan(w.Image.UID, &image.Uid.Value)
	}
	return &Facts{
		Host: &w.Host, Pod: p, Container: &c, Attempt: w.Attempt, Image: image,
		PodIPs: w.PodIPs, Target: w.Target, Users: w.Users,
		Sources: Sources{
			ConfigMap: func(name string) (*corev1.ConfigMap, error) {
				if data, ok := w.ConfigMaps[name]; ok {
					return &corev1.ConfigMap{Data: data}, nil
				}
				return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
			},
			Secret: func(name string) (*corev1.Secret, error) {
				s := &corev1.Secret{Data: map[string][]byte{}}
				for k, v := range w.Secrets[name] {
					s.Data[k] = []byte(v)
				}
				if w.Secrets[name] != nil {
					return s, nil
				}
				return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
			},
			Services:  func() ([]*corev1.Service, bool) { return w.Services, !w.ServicesUnknown },
			Volume:    func(name string) (string, error) { return "/volumes/" + name, nil },
			SubPath:   func(s volume.SubPath) (string, error) { return "/subpaths/" + s.Volume + "/" + s.Path, nil },
			Group:     w.group,
			EnvFile:   func(_, _, key string) (string, error) { return w.envFile(key) },
			Plugged:   func(*corev1.Container) (*criv1.ContainerConfig, error) { return w.Plugged, nil },
			NodeHosts: func() ([]byte, error) { return []byte(w.NodeHosts), nil },
		},
	}
}

func (w *around) group(volume string) (gid int64, ok bool) {
	gid, ok = w.Groups[volume]
	return gid, ok
}

func (w *around) envFile(key string) (string, error) {
	if v, ok := w.EnvFiles[key]; ok {
		return v, nil
	}
	return "", volume.ErrNoKey
}

// fields shows a message one line a field.
func fields(t *testing.T, m proto.Message) []string {
	t.Helper()
	data, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	var out []string
	walk("", v, &out)
	return out
}

// walk names the elements of lists by their key, where they have one.
func walk(path string, v any, out *[]string) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			walk(strings.TrimPrefix(path+"."+k, "."), v[k], out)
		}
	case []any:
		var names []string
		for i, e := range v {
			m, ok := e.(map[string]any)
			if id, mapping := m["hostId"]; mapping {
				names = append(names, fmt.Sprintf("%v+%v", id, m["length"]))
				continue
			}
			if !ok {
				names = append(names, fmt.Sprint(e))
				continue
			}
			name := fmt.Sprint(i)
			for _, key := range []string{"key", "containerPath", "pageSize"} {
				if s, ok := m[key].(string); ok {
					name = s
					delete(m, key)
				}
			}
			if path == "envs" {
				value, _ := base64.StdEncoding.DecodeString(fmt.Sprint(m["value"]))
				m = map[string]any{"value": string(value)}
			}
			names = append(names, name)
			walk(path+"["+name+"]", m, out)
		}
		*out = append(*out, path+": "+strings.Join(names, " "))
	default:
		*out = append(*out, fmt.Sprintf("%s: %v", path, v))
	}
}

// beside shows what differs from plain, by field.
func beside(got, plain []string) []string {
	if got == nil {
		return nil // it was refused
	}
	var out []string
	for _, line := range plain {
		if !slices.Contains(got, line) {
			out = append(out, "- "+line)
		}
	}
	for _, line := range got {
		if !slices.Contains(plain, line) {
			out = append(out, "+ "+line)
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return key(out[i]) < key(out[j]) })
	return out
}

func key(line string) string {
	name, _, _ := strings.Cut(line[2:], ": ")
	return name
}
