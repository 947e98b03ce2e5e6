package probe

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilexec "k8s.io/utils/exec"
)

// script answers execs with one letter each: g good, b bad, e an error, then the last.
type script struct {
	mu  sync.Mutex
	say string
}

func (s *script) ExecSync(context.Context, string, []string, time.Duration) ([]byte, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.say[0]
	if len(s.say) > 1 {
		s.say = s.say[1:]
	}
	if now == 'e' {
		return nil, nil, errors.New("no such container")
	}
	if now == 'b' {
		return nil, nil, utilexec.CodeExitError{Err: errors.New("exit"), Code: 1}
	}
	return nil, nil, nil
}

type silent struct{}

func (silent) Event(*corev1.Pod, string, string, string, string) {}

// Thresholds and periods, in virtual time.
func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name, answers string
		kind          Kind
		ready         bool
		want          string // "second:verdict ..."
	}{
		{"ready_after_success", "bbg", Readiness, false, "2:true"},
		{"unready_after_three", "gbbb", Readiness, true, "3:false"},
		{"one_failure_is_nothing", "gbg", Readiness, true, ""},
		{"alive", "g", Liveness, false, ""},
		{"dead", "gbbb", Liveness, false, "3:false"},
		{"started", "bg", Startup, false, "1:true"},
		{"never_started", "bbb", Startup, false, "2:false"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var mu sync.Mutex
				var got []string
				m := &Manager{Exec: &script{say: c.answers}, Events: silent{}, Report: func(r Result) {
					mu.Lock()
					got = append(got, fmt.Sprintf("%d:%v", int(time.Since(began).Seconds()), r.Good))
					mu.Unlock()
				}}
				ctx, cancel := context.WithCancel(context.Background())
				m.Start(ctx)
				m.began = began.Add(-time.Minute) // this agent has seen the container start
				spec := &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 3, SuccessThreshold: 1}
				spec.Exec = &corev1.ExecAction{Command: []string{"x"}}
				target := Target{UID: "u", Pod: &corev1.Pod{}, Container: &corev1.Container{Name: "c"},
					ID: "c0", Started: began.Add(-2 * time.Second), Ready: c.ready}
				switch c.kind {
				case Startup:
					target.Startup = spec
				case Liveness:
					target.Liveness = spec
				default:
					target.Readiness = spec
				}
				m.Set("u", []Target{target})
				time.Sleep(9 * time.Second)
				m.Set("u", nil)
				cancel()
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				if s := strings.Join(got, " "); s != c.want {
					t.Errorf("got %q, want %q", s, c.want)
				}
			})
		})
	}
}

// told counts the events of a container.
type told struct {
	mu sync.Mutex
	n  int
}

func (e *told) Event(*corev1.Pod, string, string, string, string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.n++
}

// What a probe finds in a container's first second, and what cannot be asked, in
// virtual time.
func TestFirstProbes(t *testing.T) {
	for _, c := range []struct {
		name, answers string
		kind          Kind
		delay, period int32
		want          string // "milliseconds:verdict ..."
		events        int
		ahead         time.Duration // of the container's start before the clock was set back
	}{
		{"at_once", "g", Readiness, 0, 10, "0:true", 0, 0},
		{"soon", "bbg", Readiness, 0, 10, "500:true", 0, 0},
		{"after_the_first_second", "bbbbbg", Readiness, 0, 10, "11000:true", 1, 0},
		{"started_soon", "bg", Startup, 0, 10, "250:true", 0, 0},
		{"never_started", "b", Startup, 0, 1, "3000:false", 3, 0},
		{"alive_from_the_first_second_on", "bbb", Liveness, 0, 1, "3000:false", 3, 0},
		{"with_a_delay", "bg", Readiness, 2, 3, "5000:true", 1, 0},
		{"errors_do_not_count", "beeebb", Liveness, 0, 1, "6000:false", 6, 0},
		{"alive_though_the_clock_was_set_back", "bbb", Liveness, 0, 1, "3000:false", 3, time.Hour},
		{"with_a_delay_though_the_clock_was_set_back", "bg", Readiness, 2, 3, "5000:true", 1, time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var mu sync.Mutex
				var got []string
				events := &told{}
				m := &Manager{Exec: &script{say: c.answers}, Events: events, Report: func(r Result) {
					mu.Lock()
					got = append(got, fmt.Sprintf("%d:%v", time.Since(began).Milliseconds(), r.Good))
					mu.Unlock()
				}}
				ctx, cancel := context.WithCancel(context.Background())
				m.Start(ctx)
				spec := &corev1.Probe{
					InitialDelaySeconds: c.delay,
					PeriodSeconds:       c.period,
					FailureThreshold:    3,
					SuccessThreshold:    1,
				}
				spec.Exec = &corev1.ExecAction{Command: []string{"x"}}
				target := Target{
					UID:       "u",
					Pod:       &corev1.Pod{},
					Container: &corev1.Container{Name: "c"},
					ID:        "c0",
					Started:   began.Add(c.ahead),
				}
				switch c.kind {
				case Startup:
					target.Startup = spec
				case Liveness:
					target.Liveness = spec
				default:
					target.Readiness = spec
				}
				m.Set("u", []Target{target})
				time.Sleep(19 * time.Second)
				m.Set("u", nil)
				cancel()
				synctest.Wait()
				if s := strings.Join(got, " "); s != c.want || events.n != c.events {
					t.Errorf("got %q and %d events, want %q and %d", s, events.n, c.want, c.events)
				}
			})
		})
	}
}

// An agent that takes over asks its containers one by one.
func TestProbesAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asked := map[time.Duration]bool{}
		began := time.Now()
		m := &Manager{Exec: asking(func() {
			mu.Lock()
			asked[time.Since(began)] = true
			mu.Unlock()
		}), Events: silent{}, Report: func(Result) {}}
		ctx, cancel := context.WithCancel(context.Background())
		m.Start(ctx)
		spec := &corev1.Probe{PeriodSeconds: 10}
		spec.Exec = &corev1.ExecAction{Command: []string{"x"}}
		for i := range 100 {
			uid := types.UID(fmt.Sprint(i))
			m.Set(uid, []Target{{
				UID:       uid,
				Pod:       &corev1.Pod{},
				Container: &corev1.Container{Name: "c"},
				ID:        "c" + fmt.Sprint(i),
				Started:   began.Add(-time.Hour),
				Ready:     true,
				Readiness: spec,
			}})
		}
		time.Sleep(10 * time.Second)
		cancel()
		synctest.Wait()
		if len(asked) < 90 {
			t.Errorf("100 containers were asked at %d moments", len(asked))
		}
	})
}

// asking is an executor that tells of each command.
type asking func()

func (f asking) ExecSync(context.Context, string, []string, time.Duration) ([]byte, []byte, error) {
	f()
	return nil, nil, nil
}

// heard keeps the events of a container.
type heard []string

func (h *heard) Event(_ *corev1.Pod, container, kind, reason, message string) {
	*h = append(*h, fmt.Sprint(container, " ", kind, " ", reason, ": ", message))
}

// Where a server sends a probe to: to itself, or to another host, whose health is
// not the container's.
func TestRedirects(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/well", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "well") }))
	mux.Handle("/sick", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }))
	mux.Handle("/to-well", http.RedirectHandler("/well", http.StatusFound))
	mux.Handle("/to-sick", http.RedirectHandler("/sick", http.StatusFound))
	mux.Handle("/away", http.RedirectHandler("http://0.0.0.0/", http.StatusFound))
	server := httptest.NewServer(mux)
	defer server.Close()
	address, err := netip.ParseAddrPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		good bool
		want string // event
	}{
		{"/well", true, ""},
		{"/sick", false, "c Warning Unhealthy: Liveness probe failed: HTTP probe failed with statuscode: 500"},
		{"/to-well", true, ""},
		{"/to-sick", false, "c Warning Unhealthy: Liveness probe failed: HTTP probe failed with statuscode: 500"},
		{"/away", true, "c Warning ProbeWarning: Liveness probe warning: Probe terminated redirects, " +
			"Response body: <a href=\"http://0.0.0.0/\">Found</a>.\n\n"},
	} {
		var events heard
		spec := &corev1.Probe{TimeoutSeconds: 30}
		spec.HTTPGet = &corev1.HTTPGetAction{Path: c.path, Port: intstr.FromInt32(int32(address.Port()))}
		w := &watch{m: &Manager{Events: &events}, kind: Liveness, spec: spec,
			t: Target{Container: &corev1.Container{Name: "c"}, IPs: []string{address.Addr().String()}}}
		good, output, err := w.m.probe(t.Context(), w)
		w.events(good, output, err)
		if got := strings.Join(events, "; "); good != c.good || err != nil || got != c.want {
			t.Errorf("%s: good %v, %v, events %q; want %v, %q", c.path, good, err, got, c.good, c.want)
		}
	}
}
