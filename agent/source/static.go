package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/agent/dirwatch"
)

// Static runs the manifests of a directory, and of a server, and shows each in the API by a
// mirror pod.
type Static struct {
	// Dir holds the manifests, or is the only one; none when empty.
	Dir string
	// Every is how often Dir is read though the kernel tells of no change: it does not tell
	// of what others do on a network's file system, or behind a link. 0: never.
	Every time.Duration
	// Remote is the server; nil: none.
	Remote  *Remote
	Node    string
	Handler Handler
	// Client writes mirror pods; nil without an API.
	Client kubernetes.Interface
	// NodeUID owns mirror pods, empty while it is not known.
	NodeUID func() types.UID
	// Ending tells whether the node has a pod of a manifest of that name yet, other than
	// the one of the UID; nil: none ever. Poke is to be called when one is gone.
	Ending func(name types.NamespacedName, other types.UID) bool
	// Taken tells whether a pod of the API has a UID, as one does whose manifest was copied; nil:
	// none ever.
	Taken func(uid types.UID) bool
	// Changed is called when a static pod's mirror appeared.
	Changed func(uid types.UID)
	Log     *slog.Logger

	mu      sync.Mutex
	pods    map[types.NamespacedName]*corev1.Pod // nil before any manifest was read
	known   bool                                 // all manifests were read
	mirrors map[types.NamespacedName]*corev1.Pod
	wake    chan struct{}

	// Of Run's goroutine alone.
	// waiting are the pods that wait for the end of another of their name.
	waiting map[types.NamespacedName]*corev1.Pod
	files   map[string]*corev1.Pod // by path: what each manifest last was; nil before the directory was read
	removed map[string]bool        // by path: manifests that went since the directory was read
	remote  []*corev1.Pod          // what the server had last; nil before it had anything
	told    map[string]string
}

const (
	// quietFor is how long the directory must be quiet before it is read.
	quietFor = 100 * time.Millisecond
	// quietAtMost is when it is read though it never is.
	quietAtMost = 2 * time.Second
	// lookAgain is when a directory that cannot be watched is looked for again:
	// nothing tells that another was made in its place.
	lookAgain = 2 * time.Second
)

// Mirror returns the mirror of a static pod, nil when there is none; false for
// a pod that is not static.
func (s *Static) Mirror(p *corev1.Pod) (*corev1.Pod, bool) {
	if from := p.Annotations[sourceAnnotation]; from != nameFile && from != nameHTTP {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mirrors[nameOf(p)], true
}

// same tells whether two pods are of the same manifest.
func same(a, b *corev1.Pod) bool {
	return a.UID == b.UID && a.Annotations[manifestAnnotation] == b.Annotations[manifestAnnotation]
}

// shows tells whether a mirror is one of a pod.
func shows(m, p *corev1.Pod) bool {
	return m.Annotations[mirrorAnnotation] == string(p.UID) &&
		m.Annotations[manifestAnnotation] == p.Annotations[manifestAnnotation]
}

func nameOf(p *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// Run follows the directory and the server until ctx ends.
func (s *Static) Run(ctx context.Context) error {
	if s.Dir == "" && s.Remote == nil {
		s.Handler.Prune(nameFile, nil)
		<-ctx.Done()
		return nil
	}
	w := &dirwatch.Watcher{} // tells nothing
	timer := time.NewTimer(0)
	defer timer.Stop()
	if s.Dir == "" {
		timer.Stop()
	} else {
		_, err := os.Stat(s.Dir)
		if errors.Is(err, fs.ErrNotExist) {
			err = os.MkdirAll(s.Dir, 0o755)
		}
		if err != nil {
			return fmt.Errorf("static pods: %w", err)
		}
		if w, err = dirwatch.New(s.Log); err != nil {
			return fmt.Errorf("static pods: %w", err)
		}
		defer w.Close()
	}
	answers := make(chan answer)
	if s.Remote != nil {
		var following sync.WaitGroup
		defer following.Wait()
		following.Go(func() { s.Remote.follow(ctx, answers) })
	}
	wake := s.waker()
	var quiet bursts
	for {
		select {
		case <-ctx.Done():
			return nil
		case a := <-answers:
			s.take(a)
			s.mirror(ctx)
		case e := <-w.Events:
			s.note(e)
			timer.Reset(quiet.wait(time.Now()))
		case err := <-w.Errors:
			if !errors.Is(err, dirwatch.ErrLook) {
				s.Log.Warn("static pod directory is read again", "err", err)
			}
			timer.Reset(quiet.wait(time.Now()))
		case <-wake:
			s.begin()
			s.mirror(ctx)
		case <-timer.C:
			quiet = bursts{}
			if err := s.look(w); err != nil {
				timer.Reset(lookAgain)
			} else if s.Every > 0 {
				timer.Reset(s.Every)
			}
			s.mirror(ctx)
		}
	}
}

// bursts are changes that come one soon after the other.
type bursts struct{ since time.Time }

// wait is how long to wait for the end of a burst when there was a change.
func (b *bursts) wait(now time.Time) time.Duration {
	if b.since.IsZero() {
		b.since = now
	}
	return max(0, min(quietFor, quietAtMost-now.Sub(b.since)))
}

// note remembers a manifest that went: one that is back when the directory is read makes
// its pod anew, as with the kubelet.
func (s *Static) note(e fsnotify.Event) {
	if !e.Has(fsnotify.Remove) && !e.Has(fsnotify.Rename) {
		return
	}
	if s.removed == nil {
		s.removed = map[string]bool{}
	}
	s.removed[e.Name] = true
}

// look watches the directory, which may be another than before, and reads it.
func (s *Static) look(w *dirwatch.Watcher) error {
	err := errors.Join(w.Add(s.Dir), s.read())
	s.complain("the directory of static pods cannot be followed", "dir", s.Dir, err)
	return err
}

func (s *Static) waker() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wake == nil {
		s.wake = make(chan struct{}, 1)
	}
	return s.wake
}

// Poke makes mirrors, and pods that wait, be looked at again.
func (s *Static) Poke() {
	select {
	case s.waker() <- struct{}{}:
	default:
	}
}

// read takes all manifests in. While they cannot be read, the pods stay as they are.
func (s *Static) read() error {
	paths, err := s.paths()
	if err != nil {
		return err
	}
	files := map[string]*corev1.Pod{}
	for _, path := range paths {
		p, err := s.load(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		s.complain("a static pod manifest cannot be used", "file", path, err)
		if err != nil {
			// Half written, as may be: it does not end the pod that it made.
			p = s.files[path]
		}
		if p != nil {
			files[path] = p
		}
	}
	if left := s.left(files); left != nil {
		s.files = left
		s.run()
	}
	s.files, s.removed = files, nil
	s.run()
	return nil
}

// paths are those of the manifests that there may be.
func (s *Static) paths() (out []string, err error) {
	if info, err := os.Stat(s.Dir); err != nil {
		return nil, err
	} else if info.Mode().IsRegular() {
		return []string{s.Dir}, nil
	}
	entries, err := os.ReadDir(s.Dir)
	for _, e := range entries {
		if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			out = append(out, filepath.Join(s.Dir, e.Name()))
		}
	}
	return out, err
}

// left is what was there of manifests while those were away that are back; nil where none
// is.
func (s *Static) left(files map[string]*corev1.Pod) map[string]*corev1.Pod {
	left := maps.Clone(files)
	for path := range s.removed {
		delete(left, path)
	}
	if len(left) == len(files) {
		return nil
	}
	return left
}

// take takes what the server has. While it cannot be used, the pods stay as they are.
func (s *Static) take(a answer) {
	pods, err := []*corev1.Pod(nil), a.err
	if err == nil {
		pods, err = s.parse(a.data)
	}
	s.complain("static pods of a server cannot be used", "url", s.Remote.URL, err)
	if err == nil {
		s.remote = pods
		s.run()
	}
}

// run has the pods of all manifests run, and ends others once all are known.
func (s *Static) run() {
	if s.waiting == nil {
		s.waiting = map[types.NamespacedName]*corev1.Pod{}
	}
	pods := s.named()
	known := (s.Dir == "" || s.files != nil) && (s.Remote == nil || s.remote != nil)
	s.mu.Lock()
	old := s.pods
	s.pods, s.known = pods, known
	s.mu.Unlock()
	desired := map[types.UID]bool{}
	was := map[types.UID]*corev1.Pod{}
	for _, q := range old {
		was[q.UID] = q
	}
	for name, p := range pods {
		desired[p.UID] = true
		q := was[p.UID]
		if q != nil && nameOf(q) == name && same(p, q) {
			continue
		}
		if q != nil { // the manifest gives the UID, and is another now: the pod begins anew
			s.Handler.Remove(p.UID)
		}
		s.waiting[name] = p
	}
	for name := range s.waiting {
		if pods[name] == nil {
			delete(s.waiting, name)
		}
	}
	if known { // what ran before the agent's start may be of the other
		s.Handler.Prune(nameFile, desired)
	}
	s.begin()
}

// named are the pods that are to run. Of several of a name it is the one of the first file, or
// of a file at all, or the first that the server has.
func (s *Static) named() map[types.NamespacedName]*corev1.Pod {
	pods, uids := map[types.NamespacedName]*corev1.Pod{}, map[types.UID]bool{}
	add := func(p *corev1.Pod) (err error) {
		other := pods[nameOf(p)]
		switch {
		case other != nil && !same(other, p):
			err = fmt.Errorf("there is another of the pod %s", nameOf(p))
		case other == nil && uids[p.UID]:
			err = fmt.Errorf("another pod has the UID %s", p.UID)
		case other == nil && s.Taken != nil && s.Taken(p.UID):
			err = fmt.Errorf("a pod of the API has the UID %s", p.UID)
		case other == nil:
			pods[nameOf(p)], uids[p.UID] = p, true
		}
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(s.files)) {
		s.complain("a static pod manifest is left out", "file", path, add(s.files[path]))
	}
	for i, p := range s.remote {
		if pods[nameOf(p)] == nil || s.remoteHas(nameOf(p), i) {
			s.complain("a static pod of a server is left out", "item", strconv.Itoa(i), add(p))
		}
	}
	return pods
}

// remoteHas tells whether one of the first n pods of the server has a name.
func (s *Static) remoteHas(name types.NamespacedName, n int) bool {
	return slices.ContainsFunc(s.remote[:n], func(p *corev1.Pod) bool { return nameOf(p) == name })
}

// begin has those pods run that wait for no other of their name any more: two would have
// the same ports and files.
func (s *Static) begin() {
	for name, p := range s.waiting {
		if !s.ending(name, p.UID) {
			delete(s.waiting, name)
			s.Handler.Update(p, nameFile)
		}
	}
}

func (s *Static) ending(name types.NamespacedName, other types.UID) bool {
	return s.Ending != nil && s.Ending(name, other)
}

// complain tells of an error once, until it is over; key and of say what it is about.
func (s *Static) complain(what, key, of string, err error) {
	about := what + " " + of
	if err == nil {
		delete(s.told, about)
		return
	}
	if s.told[about] == err.Error() {
		return
	}
	if s.told == nil {
		s.told = map[string]string{}
	}
	s.told[about] = err.Error()
	s.Log.Error(what, key, of, "err", err)
}

// seen takes a mirror pod from the API.
func (s *Static) seen(m *corev1.Pod) {
	s.mu.Lock()
	if s.mirrors == nil {
		s.mirrors = map[types.NamespacedName]*corev1.Pod{}
	}
	known := s.mirrors[nameOf(m)]
	s.mirrors[nameOf(m)] = m
	p := s.pods[nameOf(m)]
	s.mu.Unlock()
	if p == nil || !shows(m, p) || m.DeletionTimestamp != nil {
		s.Poke()
	} else if known == nil && s.Changed != nil {
		s.Changed(p.UID)
	}
}

func (s *Static) lost(m *corev1.Pod) {
	s.mu.Lock()
	if old := s.mirrors[nameOf(m)]; old != nil && old.UID == m.UID {
		delete(s.mirrors, nameOf(m))
	}
	s.mu.Unlock()
	s.Poke()
}

func (s *Static) reset() {
	s.mu.Lock()
	s.mirrors = map[types.NamespacedName]*corev1.Pod{}
	s.mu.Unlock()
	s.Poke()
}

// mirror makes the API's mirror pods those of the manifests, once these are known.
func (s *Static) mirror(ctx context.Context) {
	if s.Client == nil {
		return
	}
	create, remove := s.mirrorPlan()
	zero := int64(0)
	for _, m := range remove {
		err := s.Client.CoreV1().Pods(m.Namespace).Delete(ctx, m.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &m.UID}})
		if apierrors.IsNotFound(err) {
			err = nil
		}
		s.retry(ctx, "mirror pod is not deleted", m, err)
	}
	for _, p := range create {
		s.createMirror(ctx, p)
	}
}

// mirrorPlan is the pods that lack a mirror, and the mirrors that are none. One that shows a
// pod that ends stays as long as that.
func (s *Static) mirrorPlan() (create, remove []*corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods == nil {
		return nil, nil
	}
	for name, p := range s.pods {
		m := s.mirrors[name]
		if s.ending(name, p.UID) && (m == nil || m.DeletionTimestamp == nil) {
			continue
		}
		if m == nil {
			create = append(create, p)
		} else if !shows(m, p) || m.DeletionTimestamp != nil {
			remove = append(remove, m)
		}
	}
	for name, m := range s.mirrors {
		if s.pods[name] == nil && s.known && (m.DeletionTimestamp != nil || !s.ending(name, "")) {
			remove = append(remove, m)
		}
	}
	return create, remove
}

func (s *Static) createMirror(ctx context.Context, p *corev1.Pod) {
	uid := s.NodeUID()
	if uid == "" {
		time.AfterFunc(mirrorAgain, s.Poke) // the node's object comes soon
		return
	}
	m := p.DeepCopy()
	m.UID, m.ResourceVersion = "", ""
	m.Annotations[mirrorAnnotation] = string(p.UID)
	yes := true
	m.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: s.Node, UID: uid, Controller: &yes}}
	_, err := s.Client.CoreV1().Pods(p.Namespace).Create(ctx, m, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	s.retry(ctx, "mirror pod is not created", p, err)
}

// mirrorAgain is when a mirror pod that could not be written is tried again.
const mirrorAgain = 2 * time.Second

// retry tells of an error, and has mirror pods looked at again.
func (s *Static) retry(ctx context.Context, what string, p *corev1.Pod, err error) {
	if ctx.Err() != nil {
		return
	}
	s.complain(what, "pod", nameOf(p).String(), err)
	if err != nil {
		time.AfterFunc(mirrorAgain, s.Poke)
	}
}
