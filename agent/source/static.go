package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// Static runs the manifests of a directory and shows each in the API by a
// mirror pod.
type Static struct {
	// Dir holds the manifests; none when empty.
	Dir     string
	Node    string
	Handler Handler
	// Client writes mirror pods; nil without an API.
	Client kubernetes.Interface
	// NodeUID owns mirror pods, empty while it is not known.
	NodeUID func() types.UID
	// Changed is called when a static pod's mirror appeared.
	Changed func(uid types.UID)
	Log     *slog.Logger

	mu      sync.Mutex
	pods    map[types.NamespacedName]*v1.Pod
	mirrors map[types.NamespacedName]*v1.Pod
	wake    chan struct{}
	told    map[string]string
}

// settle is how long the directory must be quiet before it is read.
const settle = 100 * time.Millisecond

// Mirror returns the mirror of a static pod, nil when there is none; false for
// a pod that is not static.
func (s *Static) Mirror(p *v1.Pod) (*v1.Pod, bool) {
	if p.Annotations["kubernetes.io/config.source"] != nameFile {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mirrors[nameOf(p)], true
}

func nameOf(p *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// Run follows the directory until ctx ends.
func (s *Static) Run(ctx context.Context) error {
	if s.Dir == "" {
		s.Handler.Prune(nameFile, nil)
		<-ctx.Done()
		return nil
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return fmt.Errorf("static pods: %w", err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("static pods: %w", err)
	}
	defer w.Close()
	if err := w.Add(s.Dir); err != nil {
		return fmt.Errorf("static pods: %w", err)
	}
	wake := s.waker()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			timer.Reset(settle)
		case err := <-w.Errors:
			s.Log.Warn("static pod directory is read again", "error", err)
			timer.Reset(settle)
		case <-wake:
			s.mirror(ctx)
		case <-timer.C:
			s.read()
			s.mirror(ctx)
		}
	}
}

func (s *Static) waker() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wake == nil {
		s.wake = make(chan struct{}, 1)
	}
	return s.wake
}

// Poke makes mirrors be looked at again.
func (s *Static) Poke() {
	select {
	case s.waker() <- struct{}{}:
	default:
	}
}

// read takes all manifests in.
func (s *Static) read() {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		s.Log.Warn("static pods cannot be read", "error", err)
		return
	}
	pods := map[types.NamespacedName]*v1.Pod{}
	for _, e := range entries {
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(s.Dir, e.Name())
		p, err := s.load(path)
		if err != nil {
			s.complain(path, err)
			// A file that is broken now does not end the pod that it made.
			continue
		}
		pods[nameOf(p)] = p
	}
	s.mu.Lock()
	old := s.pods
	s.pods = pods
	s.mu.Unlock()
	desired := map[types.UID]bool{}
	for name, p := range pods {
		desired[p.UID] = true
		if q := old[name]; q == nil || q.UID != p.UID {
			s.Handler.Update(p, nameFile)
		}
	}
	s.Handler.Prune(nameFile, desired)
}

func (s *Static) complain(path string, err error) {
	if errors.Is(err, fs.ErrNotExist) || s.told[path] == err.Error() {
		return
	}
	if s.told == nil {
		s.told = map[string]string{}
	}
	s.told[path] = err.Error()
	s.Log.Error("a static pod manifest cannot be used", "file", path, "error", err)
}

// load reads one manifest and names the pod after the node.
func (s *Static) load(path string) (*v1.Pod, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p := &v1.Pod{}
	if err := yaml.UnmarshalStrict(data, p); err != nil {
		return nil, err
	}
	if p.Kind != "Pod" || p.APIVersion != "v1" {
		return nil, fmt.Errorf("kind %q of %q is not a v1 Pod", p.Kind, p.APIVersion)
	}
	if p.Name == "" || len(p.Spec.Containers) == 0 {
		return nil, errors.New("a name and at least one container are required")
	}
	p.TypeMeta = metav1.TypeMeta{}
	sum := sha256.Sum256(append([]byte(s.Node+"\x00"+path+"\x00"), data...))
	hash := hex.EncodeToString(sum[:16])
	p.Name += "-" + s.Node
	if p.Namespace == "" {
		p.Namespace = v1.NamespaceDefault
	}
	p.UID = types.UID(hash)
	p.Spec.NodeName = s.Node
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations["kubernetes.io/config.hash"] = hash
	p.Annotations["kubernetes.io/config.source"] = nameFile
	defaults(p)
	return p, nil
}

// defaults fills what the API would have filled.
func defaults(p *v1.Pod) {
	sp := &p.Spec
	if sp.RestartPolicy == "" {
		sp.RestartPolicy = v1.RestartPolicyAlways
	}
	if sp.DNSPolicy == "" {
		sp.DNSPolicy = v1.DNSClusterFirst
	}
	if sp.TerminationGracePeriodSeconds == nil {
		grace := int64(v1.DefaultTerminationGracePeriodSeconds)
		sp.TerminationGracePeriodSeconds = &grace
	}
	no := false
	sp.EnableServiceLinks = &no
	sp.AutomountServiceAccountToken = &no
	sp.Tolerations = append(sp.Tolerations, v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute})
	for _, list := range [][]v1.Container{sp.InitContainers, sp.Containers} {
		for i := range list {
			c := &list[i]
			if c.TerminationMessagePath == "" {
				c.TerminationMessagePath = v1.TerminationMessagePathDefault
			}
			if c.TerminationMessagePolicy == "" {
				c.TerminationMessagePolicy = v1.TerminationMessageReadFile
			}
			for j := range c.Ports {
				if c.Ports[j].Protocol == "" {
					c.Ports[j].Protocol = v1.ProtocolTCP
				}
				if sp.HostNetwork && c.Ports[j].HostPort == 0 {
					c.Ports[j].HostPort = c.Ports[j].ContainerPort
				}
			}
		}
	}
}

// seen takes a mirror pod from the API.
func (s *Static) seen(m *v1.Pod) {
	s.mu.Lock()
	if s.mirrors == nil {
		s.mirrors = map[types.NamespacedName]*v1.Pod{}
	}
	known := s.mirrors[nameOf(m)]
	s.mirrors[nameOf(m)] = m
	p := s.pods[nameOf(m)]
	s.mu.Unlock()
	if p == nil || m.Annotations[mirrorAnnotation] != string(p.UID) || m.DeletionTimestamp != nil {
		s.Poke()
	} else if known == nil && s.Changed != nil {
		s.Changed(p.UID)
	}
}

func (s *Static) lost(m *v1.Pod) {
	s.mu.Lock()
	if old := s.mirrors[nameOf(m)]; old != nil && old.UID == m.UID {
		delete(s.mirrors, nameOf(m))
	}
	s.mu.Unlock()
	s.Poke()
}

func (s *Static) reset() {
	s.mu.Lock()
	s.mirrors = map[types.NamespacedName]*v1.Pod{}
	s.mu.Unlock()
	s.Poke()
}

// mirror makes the API's mirror pods those of the manifests.
func (s *Static) mirror(ctx context.Context) {
	if s.Client == nil {
		return
	}
	s.mu.Lock()
	var create []*v1.Pod
	var remove []*v1.Pod
	for name, p := range s.pods {
		m := s.mirrors[name]
		if m == nil {
			create = append(create, p)
		} else if m.Annotations[mirrorAnnotation] != string(p.UID) || m.DeletionTimestamp != nil {
			remove = append(remove, m)
		}
	}
	for name, m := range s.mirrors {
		if s.pods[name] == nil {
			remove = append(remove, m)
		}
	}
	s.mu.Unlock()
	zero := int64(0)
	for _, m := range remove {
		err := s.Client.CoreV1().Pods(m.Namespace).Delete(ctx, m.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &m.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			s.retry(ctx, "mirror pod is not deleted", m, err)
		}
	}
	for _, p := range create {
		s.createMirror(ctx, p)
	}
}

func (s *Static) createMirror(ctx context.Context, p *v1.Pod) {
	uid := s.NodeUID()
	if uid == "" {
		s.retry(ctx, "mirror pod waits for the node", p, nil)
		return
	}
	m := p.DeepCopy()
	m.UID, m.ResourceVersion = "", ""
	m.Annotations[mirrorAnnotation] = string(p.UID)
	yes := true
	m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: s.Node, UID: uid, Controller: &yes}}
	_, err := s.Client.CoreV1().Pods(p.Namespace).Create(ctx, m, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		s.retry(ctx, "mirror pod is not created", p, err)
	}
}

func (s *Static) retry(ctx context.Context, what string, p *v1.Pod, err error) {
	if err != nil && ctx.Err() == nil {
		s.complain(what+nameOf(p).String(), err)
	}
	time.AfterFunc(2*time.Second, s.Poke)
}
