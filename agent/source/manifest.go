package source

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/coordinator/auth/podref"
)

const (
	// hashAnnotation has the UID of a manifest's pod, which tells what is in the manifest unless
	// that gives it. manifestAnnotation tells it then.
	hashAnnotation     = "kubernetes.io/config.hash"
	manifestAnnotation = "shoal-project.io/manifest"
)

// manifestBytes bounds a manifest, as the kubelet does.
const manifestBytes = 10 << 20

// load reads one manifest: a file, for others may be without an end or wait for a writer.
func (s *Static) load(path string) (*corev1.Pod, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is no file: %s", info.Mode().Type())
	}
	data, err := io.ReadAll(io.LimitReader(f, manifestBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > manifestBytes {
		return nil, fmt.Errorf("it has more than %d bytes", manifestBytes)
	}
	return s.pod(data, nameFile, path)
}

// pod reads a manifest that was found at a place, and names the pod after the node.
func (s *Static) pod(data []byte, source, place string) (*corev1.Pod, error) {
	p, err := s.decode(data, place)
	if err != nil {
		return nil, err
	}
	if p.Kind != "Pod" || p.APIVersion != "v1" {
		return nil, fmt.Errorf("kind %q of %q is not a v1 Pod", p.Kind, p.APIVersion)
	}
	if p.Name == "" || len(p.Spec.Containers) == 0 {
		return nil, errors.New("a name and at least one container are required")
	}
	if err := check(p); err != nil {
		return nil, err
	}
	p.TypeMeta = metav1.TypeMeta{}
	sum := sha256.Sum256(append([]byte(s.Node+"\x00"+place+"\x00"), data...))
	hash := hex.EncodeToString(sum[:16])
	p.Name += "-" + strings.ToLower(s.Node)
	if p.Namespace == "" {
		p.Namespace = corev1.NamespaceDefault
	}
	p.Spec.NodeName = s.Node
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	delete(p.Annotations, manifestAnnotation)
	if p.UID == "" {
		p.UID = types.UID(hash)
	} else {
		p.Annotations[manifestAnnotation] = hash
	}
	p.Annotations[hashAnnotation] = string(p.UID)
	p.Annotations[sourceAnnotation] = source
	defaults(p)
	return p, nil
}

// decode reads a manifest. Fields that are not known are left out, as by the kubelet, and told.
func (s *Static) decode(data []byte, place string) (*corev1.Pod, error) {
	p := &corev1.Pod{}
	strict := yaml.UnmarshalStrict(data, p)
	if strict != nil {
		p = &corev1.Pod{}
		if err := yaml.Unmarshal(data, p); err != nil {
			return nil, err
		}
	}
	s.complain("a static pod manifest has what is not used", "place", place, strict)
	return p, nil
}

// check tells what is wrong with a pod that nobody else looks at before it runs.
func check(p *corev1.Pod) error {
	problems := validation.IsDNS1123Subdomain(p.Name)
	if p.Namespace != "" {
		problems = append(problems, validation.IsDNS1123Label(p.Namespace)...)
	}
	// Directories and control groups are named by it.
	if uid := strings.ToLower(string(p.UID)); uid != "" {
		for _, problem := range validation.IsDNS1123Label(uid) {
			problems = append(problems, "metadata.uid: "+problem)
		}
	}
	seen := map[string]bool{}
	record.EachContainer(p, func(c *corev1.Container) {
		problems = append(problems, validation.IsDNS1123Label(c.Name)...)
		if seen[c.Name] {
			problems = append(problems, fmt.Sprintf("there are two containers %q", c.Name))
		}
		seen[c.Name] = true
	})
	if len(problems) > 0 {
		return fmt.Errorf("invalid pod: %s", strings.Join(problems, "; "))
	}
	if len(p.Spec.EphemeralContainers) > 0 {
		return errors.New("invalid pod: it has ephemeral containers")
	}
	if r := podref.Needed(p); r != "" {
		return fmt.Errorf("static pods may not reference %s", r)
	}
	return nil
}

// defaults fills what the API would have filled.
func defaults(p *corev1.Pod) {
	sp := &p.Spec
	if sp.RestartPolicy == "" {
		sp.RestartPolicy = corev1.RestartPolicyAlways
	}
	if sp.DNSPolicy == "" {
		sp.DNSPolicy = corev1.DNSClusterFirst
	}
	if sp.TerminationGracePeriodSeconds == nil {
		grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
		sp.TerminationGracePeriodSeconds = &grace
	}
	if sp.EnableServiceLinks == nil {
		links := corev1.DefaultEnableServiceLinks
		sp.EnableServiceLinks = &links
	}
	no := false
	sp.AutomountServiceAccountToken = &no
	sp.Tolerations = append(sp.Tolerations,
		corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	for _, list := range [][]corev1.Container{sp.InitContainers, sp.Containers} {
		for i := range list {
			c := &list[i]
			if c.TerminationMessagePath == "" {
				c.TerminationMessagePath = corev1.TerminationMessagePathDefault
			}
			if c.TerminationMessagePolicy == "" {
				c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
			}
			for j := range c.Ports {
				if c.Ports[j].Protocol == "" {
					c.Ports[j].Protocol = corev1.ProtocolTCP
				}
				if sp.HostNetwork && c.Ports[j].HostPort == 0 {
					c.Ports[j].HostPort = c.Ports[j].ContainerPort
				}
			}
		}
	}
}
