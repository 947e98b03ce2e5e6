package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilexec "k8s.io/utils/exec"
)

// script answers execs with one letter each: g good, b bad, then the last.
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
				spec := &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 3, SuccessThreshold: 1}
				spec.Exec = &corev1.ExecAction{Command: []string{"x"}}
				target := Target{UID: "u", Pod: &corev1.Pod{}, Container: &corev1.Container{Name: "c"},
					ID: "c0", Started: began, Ready: c.ready}
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
