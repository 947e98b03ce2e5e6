package pod

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/status"
	"github.com/shoal-project/shoal/tests/transcript"
)

// TestScenarios plays the files of testdata: a node with one pod that comes back in
// some way. A line "> command; command" is done; the lines up to the next one show
// what is new: the containers in the runtime, what the API has of the pod, and what it
// refused of what it was told. An empty line begins anew. The commands:
//
//	pod POLICY CONTAINER...  a new pod on the node: init:NAME, side:NAME, NAME, or pull:NAME,
//	                         whose image is not there; with all: in front, one that ends
//	                         with 42 restarts all
//	slow NAME SECONDS        the container takes so long to create; pull: images take to pull
//	debug NAME               an ephemeral container joins it
//	end NAME CODE            a container ends
//	wait SECONDS
//	delete GRACE             through the API
//	fail REASON              somebody else says in the API that the pod failed
//	evict REASON             the node ends it
//	away                     no agent runs
//	restart                  the agent, nothing else
//	reboot                   the machine: nothing runs any more, the agent's files are there
//	down                     as shoal down and up: containers and records are gone
//	lose runtime             the runtime's files and what ran are gone
//	lose records             the agent's records are gone, containers run on
func TestScenarios(t *testing.T) {
	transcript.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		var out strings.Builder
		for _, part := range strings.SplitAfter(text, "\n\n") {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) { out.WriteString(playAgain(t, dir, part)) })
		}
		return out.String()
	})
}

// playAgain does the commands of one part of a script, up to an empty line.
func playAgain(t *testing.T, dir, script string) string {
	r := &againRig{t: t, dir: dir, cri: newFakeCRI(), edges: &edges{records: map[string]*record.Pod{}}}
	r.up()
	defer func() { r.down() }()
	return transcript.Play(script, func(commands string) string {
		for one := range strings.SplitSeq(commands, ";") {
			r.do(strings.Fields(one))
		}
		return r.news()
	})
}

// againRig is a node, its runtime and the API, which outlive its agent.
type againRig struct {
	t      *testing.T
	dir    string
	cri    *fakeCRI
	edges  *edges
	m      *Manager
	status *status.Manager
	down   func()
	shown  string
	away   bool // there is no agent

	mu      sync.Mutex
	pod     *corev1.Pod // as the API has it, nil for none
	refused []string
}

// up starts an agent, which hears the API's pod at once.
func (r *againRig) up() {
	ctx, cancel := context.WithCancel(context.Background())
	r.status = &status.Manager{
		API: r,
		Facts: func(*corev1.Pod) status.Facts {
			return status.Facts{Scheme: "shoal://", QOS: corev1.PodQOSBestEffort, Restarts: Restarts, Now: metav1.Now()}
		},
		Mirror: func(*corev1.Pod) (*corev1.Pod, bool) { return nil, false },
		Log:    slog.New(slog.DiscardHandler),
	}
	r.status.Start(ctx)
	m, stop := startWith(r.t, r.dir, r.cri, r.edges, r.status)
	r.mu.Lock()
	r.m = m
	p := r.pod
	r.mu.Unlock()
	r.down = func() {
		cancel()
		stop()
		r.status.Wait()
	}
	known := map[types.UID]bool{}
	if p != nil {
		known[p.UID] = true
		m.Update(p.DeepCopy(), SourceAPI)
	}
	m.Prune(SourceAPI, known)
	synctest.Wait()
}

func (r *againRig) do(words []string) {
	r.t.Helper()
	switch words[0] {
	case "pod":
		p := testPod(corev1.RestartPolicy(words[1]), words[2:]...)
		grace := int64(30)
		p.Spec.TerminationGracePeriodSeconds = &grace
		p.ResourceVersion, p.Generation = "1", 1
		r.change(func(q *corev1.Pod) { *q = *p })
	case "debug":
		r.change(func(p *corev1.Pod) {
			p.Generation++
			p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: words[1], Image: "i:1"}})
		})
	case "slow":
		s, err := strconv.Atoi(words[2])
		if err != nil {
			r.t.Fatal(err)
		}
		r.cri.mu.Lock()
		r.cri.slow[words[1]], r.cri.pullable["i:2"] = time.Duration(s)*time.Second, true
		r.cri.mu.Unlock()
	case "end":
		code, err := strconv.Atoi(words[2])
		if err != nil {
			r.t.Fatal(err)
		}
		r.cri.end(words[1], int32(code))
	case "wait":
		s, err := strconv.Atoi(words[1])
		if err != nil {
			r.t.Fatal(err)
		}
		time.Sleep(time.Duration(s) * time.Second)
	case "delete":
		grace, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			r.t.Fatal(err)
		}
		now := metav1.Now()
		r.change(func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
			p.Generation++
		})
	case "fail":
		r.change(func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, words[1] })
	case "evict":
		r.m.Evict("u", record.Verdict{Phase: corev1.PodFailed, Reason: words[1]}, nil, 0)
	case "away":
		r.down()
		r.away = true
	case "restart", "reboot", "down", "lose":
		if !r.away {
			r.down()
		}
		r.away = false
		r.lose(words)
		r.up()
	default:
		r.t.Fatalf("unknown command %q", words)
	}
	time.Sleep(2 * time.Second) // statuses gather for a moment
	synctest.Wait()
}

// lose takes away what the node does not have any more when it comes back.
func (r *againRig) lose(words []string) {
	what := strings.Join(words, " ")
	r.cri.mu.Lock()
	defer r.cri.mu.Unlock()
	switch what {
	case "reboot": // containers have ended, nobody saw how
		for _, s := range r.cri.sandboxes {
			s.State = criv1.PodSandboxState_SANDBOX_NOTREADY
		}
		for _, c := range r.cri.containers {
			if c.State == criv1.ContainerState_CONTAINER_RUNNING {
				c.State, c.ExitCode = criv1.ContainerState_CONTAINER_EXITED, 255
			}
		}
	case "down", "lose runtime":
		clear(r.cri.sandboxes)
		clear(r.cri.containers)
	}
	if what == "down" || what == "lose records" {
		clear(r.edges.records)
	}
}

// change is a write to the pod by others than the node, who is told of it.
func (r *againRig) change(f func(p *corev1.Pod)) {
	r.mu.Lock()
	if r.pod == nil {
		r.pod = &corev1.Pod{}
	}
	p := r.pod.DeepCopy()
	f(p)
	r.mu.Unlock()
	r.store(p)
}

func (r *againRig) store(p *corev1.Pod) {
	r.mu.Lock()
	n, _ := strconv.Atoi(p.ResourceVersion)
	p.ResourceVersion = strconv.Itoa(n + 1)
	r.pod = p
	m := r.m
	r.mu.Unlock()
	if !r.away {
		m.Update(p.DeepCopy(), SourceAPI)
	}
}

// PatchStatus implements status.Pods with the API's rules.
func (r *againRig) PatchStatus(_ context.Context, _, _ string, patch []byte) (*corev1.Pod, error) {
	r.mu.Lock()
	old := r.pod
	r.mu.Unlock()
	body, err := json.Marshal(old)
	if err == nil {
		body, err = strategicpatch.StrategicMergePatch(body, patch, &corev1.Pod{})
	}
	var p corev1.Pod
	if err == nil {
		err = json.Unmarshal(body, &p)
	}
	if err != nil {
		return nil, err
	}
	if err := mayBecome(old, &p); err != nil {
		r.mu.Lock()
		if !slices.Contains(r.refused, err.Error()) {
			r.refused = append(r.refused, err.Error())
		}
		r.mu.Unlock()
		return nil, err
	}
	r.store(&p)
	return p.DeepCopy(), nil
}

// mayBecome is what the API refuses of a status, and that a count never falls.
func mayBecome(old, p *corev1.Pod) error {
	if terminal(old) && old.Status.Phase != p.Status.Phase {
		return fmt.Errorf("phase: from %s to %s", old.Status.Phase, p.Status.Phase)
	}
	for _, was := range allStatuses(old) {
		found := false
		for _, is := range allStatuses(p) {
			if is.Name != was.Name {
				continue
			}
			found = true
			if is.RestartCount < was.RestartCount {
				return fmt.Errorf("%s: restarts fall from %d to %d", is.Name, was.RestartCount, is.RestartCount)
			}
			t := was.State.Terminated
			if t != nil && is.State.Terminated == nil && !comesBack(p, is.Name, t.ExitCode) {
				return fmt.Errorf("%s: may not be transitioned to non-terminated state", is.Name)
			}
		}
		if !found {
			return fmt.Errorf("%s: its status is gone", was.Name)
		}
	}
	return nil
}

func comesBack(p *corev1.Pod, name string, code int32) bool {
	for _, c := range p.Spec.EphemeralContainers {
		if c.Name == name {
			return false
		}
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if len(c.RestartPolicyRules) > 0 {
			return true
		}
	}
	c := record.FindContainer(p, name)
	return record.Sidecar(c) || p.Spec.RestartPolicy == corev1.RestartPolicyAlways ||
		p.Spec.RestartPolicy == corev1.RestartPolicyOnFailure && code != 0
}

func allStatuses(p *corev1.Pod) []corev1.ContainerStatus {
	s := &p.Status
	return slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses)
}

// Delete implements status.Pods.
func (r *againRig) Delete(context.Context, string, string, types.UID) error {
	r.mu.Lock()
	r.pod = nil
	m := r.m
	r.mu.Unlock()
	m.Remove("u")
	return nil
}

// news is what there is now, nothing when it is as it was.
func (r *againRig) news() string {
	var b strings.Builder
	fmt.Fprintf(&b, "runs: %s\n", r.cri)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pod == nil {
		b.WriteString("api: no pod\n")
	} else {
		fmt.Fprintf(&b, "api: %s\n", strings.TrimSpace(string(r.pod.Status.Phase)+" "+r.pod.Status.Reason))
		for _, s := range allStatuses(r.pod) {
			line := fmt.Sprintf("  %s: restarts %d, %s", s.Name, s.RestartCount, stateText(s.State))
			if s.LastTerminationState.Terminated != nil {
				line += ", last " + stateText(s.LastTerminationState)
			}
			b.WriteString(line + "\n")
		}
	}
	text := b.String()
	if text == r.shown {
		text = ""
	} else {
		r.shown = text
	}
	for _, why := range r.refused {
		text += "refused: " + why + "\n"
	}
	r.refused = nil
	return text
}

func stateText(s corev1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("%s %d", s.Terminated.Reason, s.Terminated.ExitCode)
	case s.Waiting != nil:
		return s.Waiting.Reason
	}
	return "nothing"
}

// startWith is start with another reporter.
func startWith(t *testing.T, dir string, f *fakeCRI, e *edges, reporter Reporter) (m *Manager, stop func()) {
	t.Helper()
	m = &Manager{
		Runtime: f, Images: f, Volumes: e, Objects: e, Probes: e, Reporter: reporter, Records: e, Events: e,
		Services: noServices,
		Host:     &launch.Host{RootDir: dir, PodLogsDir: dir, CgroupParent: func(*corev1.Pod) string { return "/x" }},
		Dead:     DeadLimits{PerContainer: 1, Node: -1},
		Log:      slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	m.Steps = []Step{{Name: "sandbox", Ensure: m.EnsureSandbox, Release: m.ReleaseSandbox}}
	ctx, cancel := context.WithCancel(context.Background())
	e.mu.Lock()
	records := map[string]*record.Pod{}
	for k, r := range e.records {
		records[k] = r
	}
	e.mu.Unlock()
	if err := m.Restore(ctx, records); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()
	return m, func() { cancel(); <-done }
}
