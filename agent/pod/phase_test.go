package pod

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// TestPhases: the table of doc.go's diagram.
func TestPhases(t *testing.T) {
	got := []string{"            claimed   disowned  let-run   cleaned"}
	for p := held; p <= gone; p++ {
		line := fmt.Sprintf("%-12s", p)
		for c := claimed; c <= cleaned; c++ {
			line += fmt.Sprintf("%-10s", p.after(c))
		}
		got = append(got, strings.TrimSpace(line))
	}
	want := []string{
		"            claimed   disowned  let-run   cleaned",
		"held        wanted    removed   wanted    gone",
		"wanted      wanted    removed   wanted    gone",
		"removed     wanted    removed   removed   gone",
		"found       wanted    abandoned found     gone",
		"abandoned   wanted    abandoned abandoned gone",
		"gone        gone      gone      gone      gone",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// at shows the phase of a pod's worker, "none" when it has none.
func at(m *Manager, uid types.UID) string {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w == nil {
		return "none"
	}
	return w.at().String()
}

// TestPhasesOfALife: a pod's worker over two restarts of its agent, the second
// without its record.
func TestPhasesOfALife(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		expectPhase := func(when, want string) {
			t.Helper()
			synctest.Wait()
			if got := at(m, "u"); got != want {
				t.Errorf("%s: %s, want %s", when, got, want)
			}
		}
		p := testPod(corev1.RestartPolicyAlways, "a")
		expectPhase("before", "none")
		m.Update(p, SourceAPI)
		expectPhase("from its source", "wanted")
		stop()

		m, stop = start(t, dir, f, e)
		expectPhase("running when the agent began", "wanted")
		stop()

		f.mu.Lock()
		for _, s := range f.sandboxes {
			s.State = criv1.PodSandboxState_SANDBOX_NOTREADY // the machine was off
		}
		f.mu.Unlock()
		m, stop = start(t, dir, f, e)
		expectPhase("not running when the agent began", "held")
		m.PokeAll()
		expect(t, f, "a#0=run")
		m.Unhold()
		expectPhase("the API is away", "wanted")
		stop()

		e.records = map[string]*record.Pod{}
		m, stop = start(t, dir, f, e)
		defer func() { stop() }()
		expectPhase("without a record", "found")
		m.Unhold()
		m.PokeAll()
		expectPhase("without a record, and the API is away", "found")
		e.reports = 0
		f.mu.Lock()
		f.stubborn = true
		f.mu.Unlock()
		m.Prune(SourceAPI, nil)
		expectPhase("while it ends, for no source has it", "abandoned")
		time.Sleep(time.Minute)
		expectPhase("when nothing is left", "none")
		expect(t, f, "")
		if e.reports > 0 || len(e.finished) > 0 {
			t.Errorf("%d reports of it, %q deleted in the API, which had none", e.reports, e.finished)
		}
	})
}
