package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/shoal-project/shoal/tests/transcript"
)

// handler writes down what it is told, and keeps the pods that it is to run, as
// package pod does.
type handler struct {
	mu   sync.Mutex
	pods map[types.UID]handled
	said []string
	news chan struct{} // holds a token when something was said
}

type handled struct{ name, source string }

func newHandler() *handler {
	return &handler{pods: map[types.UID]handled{}, news: make(chan struct{}, 1)}
}

func (h *handler) say(format string, args ...any) {
	h.said = append(h.said, fmt.Sprintf(format, args...))
	select {
	case h.news <- struct{}{}:
	default:
	}
}

func (h *handler) Update(p *corev1.Pod, source string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	verb := "updated"
	if _, known := h.pods[p.UID]; !known {
		verb = "runs"
	}
	if p.DeletionTimestamp != nil {
		verb = "ends"
	}
	h.pods[p.UID] = handled{p.Name, source}
	h.say("%s %s", p.Name, verb)
}

func (h *handler) Remove(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(uid)
}

func (h *handler) remove(uid types.UID) {
	if p, known := h.pods[uid]; known {
		delete(h.pods, uid)
		h.say("%s is removed", p.name)
	}
}

func (h *handler) Prune(source string, desired map[types.UID]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	uids := slices.SortedFunc(maps.Keys(h.pods), func(a, b types.UID) int {
		return strings.Compare(h.pods[a].name, h.pods[b].name)
	})
	for _, uid := range uids {
		if h.pods[uid].source == source && !desired[uid] {
			h.remove(uid)
		}
	}
}

// heard returns what was said since the last call, sorted within it: the order of
// manifests does not matter.
func (h *handler) heard() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	said := h.said
	h.said = nil
	slices.Sort(said)
	return said
}

// await waits until something of this beginning was said.
func (h *handler) await(t *testing.T, what string) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		h.mu.Lock()
		said := strings.Join(h.said, "\n")
		h.mu.Unlock()
		if strings.Contains(said, what) {
			return
		}
		select {
		case <-h.news:
		case <-late:
			t.Fatalf("%q was not said, but:\n%s", what, said)
		}
	}
}

// TestStaticPods plays the files of testdata/static. A line "> command" is done; the
// lines up to the next one are what follows from it: what the pods' manager is told,
// what comes into the log, and how the API's mirror pods change. The commands:
//
//	write FILE POD [IMAGE]  the manifest of a pod
//	spoil FILE              it is half written
//	remove FILE
//	directory goes|comes
//	node registered         the API has the Node: until then nobody can own a mirror
//	api heard               the API's mirror pods come, as by a new watch
//	api has POD             somebody else has made a mirror pod
//	api deletes POD         somebody deletes one
//	agent restarts
//	slow POD                it takes its time to end
//	ended POD               it has ended
func TestStaticPods(t *testing.T) {
	transcript.Files(t, "testdata/static/*.txt", func(t *testing.T, text string) string {
		m := newManifests(t)
		return transcript.Play(text, func(command string) string {
			m.do(strings.Fields(command))
			return m.outcome()
		})
	})
}

// manifests is a directory of static pods with all around it.
type manifests struct {
	t       *testing.T
	dir     string
	handler *handler
	client  *fake.Clientset
	static  *Static
	api     *API
	node    types.UID
	log     bytes.Buffer
	created int
	mirrors map[types.UID]string // that were shown: their names
	ending  map[string]types.UID // pods that end slowly, by name
}

func newManifests(t *testing.T) *manifests {
	m := &manifests{
		t:       t,
		dir:     filepath.Join(t.TempDir(), "manifests"),
		handler: newHandler(),
		client:  fake.NewClientset(),
		mirrors: map[types.UID]string{},
		ending:  map[string]types.UID{},
	}
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		m.created++
		a.(clienttesting.CreateAction).GetObject().(*corev1.Pod).UID = types.UID(fmt.Sprint("mirror-", m.created))
		return false, nil, nil
	})
	m.begin()
	return m
}

// begin is an agent's start: it knows nothing of what the last one knew.
func (m *manifests) begin() {
	plain := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == "err" {
			return slog.Attr{}
		}
		return a
	}
	m.static = &Static{
		Dir:     m.dir,
		Node:    "n1",
		Handler: m.handler,
		Client:  m.client,
		NodeUID: func() types.UID { return m.node },
		Ending: func(name types.NamespacedName, other types.UID) bool {
			return m.ending[name.Name] != "" && m.ending[name.Name] != other
		},
		Log: slog.New(slog.NewTextHandler(&m.log, &slog.HandlerOptions{ReplaceAttr: plain})),
	}
	m.api = &API{Client: m.client, Node: "n1", Handler: m.handler, Mirrors: m.static, Log: m.static.Log}
	m.api.Synced()
}

func (m *manifests) do(command []string) {
	m.t.Helper()
	check := func(err error) {
		m.t.Helper()
		if err != nil {
			m.t.Fatalf("%q: %v", command, err)
		}
	}
	path := filepath.Join(m.dir, command[1])
	switch command[0] {
	case "write":
		image := "i:1"
		if len(command) > 3 {
			image = command[3]
		}
		check(os.WriteFile(path, []byte(manifest(command[2], image)), 0o600))
	case "spoil":
		check(os.WriteFile(path, []byte(manifest("x", "")+"  - {"), 0o600))
	case "remove":
		check(os.Remove(path))
	case "directory":
		if command[1] == "goes" {
			check(os.RemoveAll(m.dir))
		} else {
			check(os.Mkdir(m.dir, 0o755))
		}
	case "slow": // the pod of this name takes its time to end
		for _, p := range m.static.pods {
			if p.Name == command[1]+"-n1" {
				m.ending[p.Name] = p.UID
			}
		}
	case "ended":
		delete(m.ending, command[1]+"-n1")
		m.static.begin()
		m.static.mirror(m.t.Context())
		return
	case "node":
		m.node = "node-uid"
	case "api":
		m.tell(command[1:])
		m.static.mirror(m.t.Context())
		return
	case "agent":
		m.begin()
	default:
		m.t.Fatalf("command %q", command)
	}
	m.static.complain("the directory of static pods cannot be followed", "dir", "manifests", m.static.read())
	m.static.mirror(m.t.Context())
}

// manifest is what an administrator writes.
func manifest(pod, image string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: ns}\n"+
		"spec:\n  containers:\n  - {name: c, image: %q}\n", pod, image)
}

func (m *manifests) tell(command []string) {
	pods := m.client.CoreV1().Pods("ns")
	switch command[0] {
	case "heard":
		list, err := pods.List(m.t.Context(), metav1.ListOptions{})
		if err != nil {
			m.t.Fatal(err)
		}
		var all []any
		for i := range list.Items {
			all = append(all, &list.Items[i])
		}
		if err := m.api.Replace(all, ""); err != nil {
			m.t.Fatal(err)
		}
	case "has":
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: command[1], Namespace: "ns",
			Annotations: map[string]string{mirrorAnnotation: "of-an-older-manifest"},
		}}
		p, err := pods.Create(m.t.Context(), p, metav1.CreateOptions{})
		if err == nil {
			m.mirrors[p.UID] = p.Name
			err = m.api.Add(p)
		}
		if err != nil {
			m.t.Fatal(err)
		}
	case "deletes":
		p, err := pods.Get(m.t.Context(), command[1], metav1.GetOptions{})
		if err == nil {
			err = pods.Delete(m.t.Context(), command[1], metav1.DeleteOptions{})
		}
		if err == nil {
			delete(m.mirrors, p.UID)
			err = m.api.Delete(p)
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
}

// outcome is what followed, one line each.
func (m *manifests) outcome() string {
	m.t.Helper()
	lines := m.handler.heard()
	for line := range strings.Lines(m.log.String()) {
		lines = append(lines, "log: "+strings.ReplaceAll(strings.TrimSpace(line), m.dir+"/", ""))
	}
	m.log.Reset()
	list, err := m.client.CoreV1().Pods("ns").List(m.t.Context(), metav1.ListOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	now := map[types.UID]string{}
	for i := range list.Items {
		p := &list.Items[i]
		now[p.UID] = p.Name
		if m.mirrors[p.UID] == "" {
			owner := p.OwnerReferences[0]
			lines = append(lines, fmt.Sprintf("mirror of %s is created, owned by %s %s", p.Name, owner.Kind, owner.UID))
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(m.mirrors)) {
		if now[uid] == "" {
			lines = append(lines, "mirror of "+m.mirrors[uid]+" is deleted")
		}
	}
	m.mirrors = now
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}

// TestStaticDirectoryIsFollowed: changes are heard, also of a directory that was
// made anew in the place of the first.
func TestStaticDirectoryIsFollowed(t *testing.T) {
	h := newHandler()
	dir := filepath.Join(t.TempDir(), "manifests")
	s := &Static{Dir: dir, Node: "n1", Handler: h, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	write := func(file, pod string) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		err := os.WriteFile(filepath.Join(dir, file), []byte(manifest(pod, "i:1")), 0o600)
		for os.IsNotExist(err) && time.Now().Before(deadline) { // Run makes the directory
			time.Sleep(time.Millisecond)
			err = os.WriteFile(filepath.Join(dir, file), []byte(manifest(pod, "i:1")), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("a.yaml", "a")
	h.await(t, "a-n1 runs")
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write("b.yaml", "b")
	h.await(t, "b-n1 runs")
	h.await(t, "a-n1 is removed")
	write("c.yaml", "c")
	h.await(t, "c-n1 runs")
	// Removed and written again at once, it runs anew; replaced by the same, it runs on.
	h.heard()
	if err := os.Remove(filepath.Join(dir, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	write("c.yaml", "c")
	h.await(t, "c-n1 is removed")
	h.await(t, "c-n1 runs")
	h.heard()
	write(".c.yaml", "c")
	if err := os.Rename(filepath.Join(dir, ".c.yaml"), filepath.Join(dir, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	write("d.yaml", "d")
	h.await(t, "d-n1 runs")
	if heard := h.heard(); slices.Contains(heard, "c-n1 is removed") {
		t.Errorf("a manifest that was replaced: %q", heard)
	}
}

// TestNoStaticPods: without a directory nothing is wanted of it, which ends what an
// earlier configuration had.
func TestNoStaticPods(t *testing.T) {
	h := newHandler()
	h.pods["u"] = handled{"a", nameFile}
	h.pods["v"] = handled{"b", nameAPI}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &Static{Handler: h, Log: slog.New(slog.DiscardHandler)}
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
	if got := strings.Join(h.heard(), "\n"); got != "a is removed" {
		t.Errorf("got %q", got)
	}
}

// TestMirrorOf: a static pod shows what its mirror tells; others have none.
func TestMirrorOf(t *testing.T) {
	m := newManifests(t)
	m.node = "node-uid"
	m.do([]string{"write", "a.yaml", "a"})
	m.do([]string{"api", "heard"})
	pods := m.static.pods
	if len(pods) != 1 {
		t.Fatalf("%d pods", len(pods))
	}
	for name, p := range pods {
		if mirror, static := m.static.Mirror(p); !static || mirror == nil || nameOf(mirror) != name {
			t.Errorf("got %v, %v", mirror, static)
		}
	}
	if _, static := m.static.Mirror(&corev1.Pod{}); static {
		t.Error("a pod of the API is static")
	}
}

// TestManifests: what is not a pod is refused, and what the API would have filled is
// filled.
func TestManifests(t *testing.T) {
	var log bytes.Buffer
	s := &Static{Node: "n1", Log: slog.New(slog.NewTextHandler(&log, nil))}
	path := filepath.Join(t.TempDir(), "p.yaml")
	load := func(text string) (*corev1.Pod, error) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return s.load(path)
	}
	for text, want := range map[string]string{
		"":                                   "is not a v1 Pod",
		"apiVersion: v1\nkind: Service\n":    "is not a v1 Pod",
		"apiVersion: apps/v1\nkind: Pod\n":   "is not a v1 Pod",
		"apiVersion: v1\nkind: Pod\n":        "a name and at least one container are required",
		"{":                                  "error converting YAML to JSON",
		manifest("A", "i"):                   "invalid pod: a lowercase RFC 1123 subdomain",
		manifest("x/../y", "i"):              "invalid pod: a lowercase RFC 1123 subdomain",
		manifest("a", "i") + "  - {name: c}": `invalid pod: there are two containers "c"`,
		manifest("a", "i") + "  - {name: C}": "invalid pod: a lowercase RFC 1123 label",
		strings.Replace(manifest("a", "i"), "name: a", "uid: ../x, name: a", 1): "invalid pod: metadata.uid: a lowercase",
		manifest("a", strings.Repeat("i", manifestBytes)):                       "it has more than 10485760 bytes",
	} {
		if p, err := load(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want %q", text, p, err, want)
		}
	}
	// Fields that are not known are left out, as by the kubelet.
	if p, err := load(manifest("a", "i") + "  colour: red"); err != nil || p.Name != "a-n1" {
		t.Errorf("%v, %v", p, err)
	}
	if !strings.Contains(log.String(), `unknown field \"colour\"`) {
		t.Errorf("told: %s", &log)
	}
	text := strings.Replace(manifest("a", "i"), ", namespace: ns", "", 1) +
		"    ports: [{containerPort: 80}]\n  hostNetwork: true\n"
	p, err := load(strings.Replace(text, `- {name: c, image: "i"}`, "- name: c\n    image: i", 1))
	if err != nil {
		t.Fatal(err)
	}
	c := p.Spec.Containers[0]
	got := fmt.Sprintln(p.Namespace, p.Name, p.Spec.NodeName, p.Spec.RestartPolicy, p.Spec.DNSPolicy,
		*p.Spec.TerminationGracePeriodSeconds, *p.Spec.EnableServiceLinks, *p.Spec.AutomountServiceAccountToken,
		p.Spec.Tolerations[0].Operator, c.TerminationMessagePath, c.TerminationMessagePolicy,
		c.Ports[0].Protocol, c.Ports[0].HostPort, p.Annotations["kubernetes.io/config.source"])
	want := "default a-n1 n1 Always ClusterFirst 30 true false Exists /dev/termination-log File TCP 80 file\n"
	if got != want {
		t.Errorf("got  %swant %s", got, want)
	}
	again, err := s.load(path)
	if err != nil || again.UID != p.UID {
		t.Errorf("the same manifest makes another pod: %s, %s, %v", p.UID, again.UID, err)
	}
	if hash := p.Annotations[hashAnnotation]; hash != string(p.UID) {
		t.Errorf("the hash is %s, and the UID %s", hash, p.UID)
	}
	s.Node = "N2"
	other, err := s.load(path)
	if err != nil || other.UID == p.UID {
		t.Errorf("two nodes have one pod: %s, %v", other.UID, err)
	}
	given, err := load(strings.Replace(manifest("a", "i")+"  enableServiceLinks: false\n", "name: a",
		"uid: U-1, name: a", 1))
	if err != nil {
		t.Fatal(err)
	}
	if given.UID != "U-1" || *given.Spec.EnableServiceLinks || given.Annotations[hashAnnotation] != "U-1" {
		t.Errorf("what the manifest says is not so: %+v", given)
	}
}

// TestManifestReferences: a pod of a manifest refers to nothing that only the API has, in the
// kubelet's words.
func TestManifestReferences(t *testing.T) {
	s := &Static{Node: "n1", Log: slog.New(slog.DiscardHandler)}
	volume := func(v string) string { return "  volumes: [{name: v, " + v + "}]\n" }
	for text, want := range map[string]string{
		"  serviceAccountName: a\n":                                               "serviceaccounts",
		"  imagePullSecrets: [{name: a}]\n":                                       "secrets",
		"    envFrom: [{secretRef: {name: a}}]\n":                                 "secrets",
		"    env: [{name: A, valueFrom: {secretKeyRef: {name: a, key: k}}}]\n":    "secrets",
		volume("secret: {secretName: a}"):                                         "secrets",
		volume("projected: {sources: [{secret: {name: a}}]}"):                     "secrets",
		volume("csi: {driver: d, nodePublishSecretRef: {name: a}}"):               "secrets",
		"    envFrom: [{configMapRef: {name: a}}]\n":                              "configmaps",
		"    env: [{name: A, valueFrom: {configMapKeyRef: {name: a, key: k}}}]\n": "configmaps",
		volume("configMap: {name: a}"):                                            "configmaps",
		volume("projected: {sources: [{configMap: {name: a}}]}"):                  "configmaps",
		"  resourceClaims: [{name: a, resourceClaimName: a}]\n":                   "resourceclaims",
		volume("persistentVolumeClaim: {claimName: a}"):                           "persistentvolumeclaims",
		volume("ephemeral: {}"):                                                   "persistentvolumeclaims (via ephemeral volumes)",
		volume("csi: {driver: d}"):                                                "csidrivers (via CSI volumes)",
		volume("projected: {sources: [{serviceAccountToken: {path: a}}]}"):        "serviceaccounts (via projected volumes)",
		volume("projected: {sources: [{clusterTrustBundle: {path: a}}]}"):         "clustertrustbundles",
		volume("projected: {sources: [{podCertificate: {}}]}"):                    "podcertificates",
	} {
		text = strings.Replace(manifest("a", "i"), `- {name: c, image: "i"}`, "- name: c\n    image: i", 1) + text
		p, err := s.pod([]byte(text), nameFile, "p")
		if err == nil || err.Error() != "static pods may not reference "+want {
			t.Errorf("%s: %v, %v, want %s", text, p, err, want)
		}
	}
	for _, fine := range []string{"hostPath: {path: /}", "emptyDir: {}", "downwardAPI: {}", "image: {reference: i}",
		"projected: {sources: [{downwardAPI: {}}]}"} {
		if _, err := s.pod([]byte(manifest("a", "i")+volume(fine)), nameFile, "p"); err != nil {
			t.Errorf("%s: %v", fine, err)
		}
	}
}

// TestManifestsAreFiles: what is no file, or has no end, holds up no other manifest, and one
// file may be all.
func TestManifestsAreFiles(t *testing.T) {
	h := newHandler()
	dir := t.TempDir()
	file := filepath.Join(dir, "z.yaml")
	if err := errors.Join(
		syscall.Mkfifo(filepath.Join(dir, "a"), 0o600),
		os.Symlink("/dev/zero", filepath.Join(dir, "b")),
		os.Symlink(dir, filepath.Join(dir, "c")),
		os.WriteFile(file, []byte(manifest("p", "i")), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{dir, file} {
		s := &Static{Dir: place, Node: "n1", Handler: h, Log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		h.await(t, map[string]string{dir: "p-n1 runs", file: "p-n1 updated"}[place])
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestManifestsOfABusyDirectory: a directory that is written to all the time is read nevertheless.
func TestManifestsOfABusyDirectory(t *testing.T) {
	var b bursts
	now := time.Now()
	for range 100 {
		wait := b.wait(now)
		if wait == 0 {
			break
		}
		now = now.Add(quietFor / 2)
	}
	if waited := now.Sub(b.since); waited != quietAtMost {
		t.Errorf("read after %v", waited)
	}
}

// TestGivenUID: the UID of a manifest is the pod's. When the manifest is changed, its pod is
// removed and begins anew, and so does its mirror; a UID that is another pod's makes none.
func TestGivenUID(t *testing.T) {
	m := newManifests(t)
	m.node = "node-uid"
	write := func(file, uid, name, image string) {
		t.Helper()
		text := strings.Replace(manifest(name, image), "name: "+name, "uid: "+uid+", name: "+name, 1)
		if err := os.WriteFile(filepath.Join(m.dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var done []string
	m.static.Handler = handlerFuncs{
		update: func(p *corev1.Pod) {
			done = append(done, fmt.Sprint("run ", p.Name, " ", p.UID, " ", p.Spec.Containers[0].Image))
		},
		remove: func(uid types.UID) { done = append(done, fmt.Sprint("remove ", uid)) },
	}
	m.static.Taken = func(uid types.UID) bool { return uid == "of-api" }
	read := func(want ...string) {
		t.Helper()
		done = nil
		if err := m.static.read(); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(done, want) {
			t.Errorf("done is %q, not %q", done, want)
		}
	}
	write("a.yaml", "u-1", "a", "i:1")
	read("run a-n1 u-1 i:1")
	create, _ := m.static.mirrorPlan()
	if len(create) != 1 {
		t.Fatalf("mirrors of %v are made", create)
	}
	mirror := create[0].DeepCopy()
	mirror.UID, mirror.Annotations[mirrorAnnotation] = "m", string(create[0].UID)
	m.static.seen(mirror)
	read()
	if create, remove := m.static.mirrorPlan(); len(create)+len(remove) > 0 {
		t.Error("the mirror is not the pod's")
	}
	write("a.yaml", "u-1", "a", "i:2")
	read("remove u-1", "run a-n1 u-1 i:2")
	if _, remove := m.static.mirrorPlan(); len(remove) != 1 {
		t.Error("the mirror shows the manifest of before")
	}
	write("a.yaml", "u-1", "b", "i:2") // another name
	read("remove u-1", "run b-n1 u-1 i:2")
	write("c.yaml", "u-1", "c", "i:1")
	write("d.yaml", "of-api", "d", "i:1")
	read()
	for _, want := range []string{"c.yaml", "d.yaml"} {
		if !strings.Contains(m.log.String(), want) {
			t.Errorf("of %s nothing is told: %s", want, &m.log)
		}
	}
}

// handlerFuncs tell of what they are called with.
type handlerFuncs struct {
	update func(*corev1.Pod)
	remove func(types.UID)
}

func (h handlerFuncs) Update(p *corev1.Pod, _ string)   { h.update(p) }
func (h handlerFuncs) Remove(uid types.UID)             { h.remove(uid) }
func (h handlerFuncs) Prune(string, map[types.UID]bool) {}
