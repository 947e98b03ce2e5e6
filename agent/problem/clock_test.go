package problem

import (
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/host"
)

func TestClockAgainstTheCoordinators(t *testing.T) {
	base := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(s float64) time.Time { return base.Add(time.Duration(s * float64(time.Second))) }
	var c clock
	now := at(0)
	for i, step := range []struct {
		date, sent, received float64
		changed              bool
		want                 string // of the message
	}{
		{0, -50, 50, false, "not known"}, // an answer that took long, and proves nothing
		{0, 0.2, 0.3, true, ""},
		{0, 9, 9.1, false, ""},
		{0, 45.2, 45.3, true, "40s or more ahead"},
		{0, 52, 52.1, false, "40s or more ahead"}, // some seconds more change nothing
		{0, -50, 50, false, "40s or more ahead"},
		{0, 80, 80.1, true, "1m10s or more ahead"},
		{60, 0, 0.1, true, "50s or more behind"},
		{10, 0.2, 0.3, false, "50s or more behind"}, // neither proves
		{5, 0.2, 0.3, true, ""},
	} {
		if got := c.heard(at(step.date), at(step.sent), at(step.received)); got != step.changed {
			t.Errorf("%d: changed %v", i, got)
		}
		reason, message, known := c.state(now)
		if known != (step.want != "not known") || known && !strings.Contains(message, step.want) ||
			(reason == "") != (step.want == "" || !known) {
			t.Errorf("%d: %q %q %v, want %q", i, reason, message, known, step.want)
		}
	}
}

// A machine that never had a time service is left alone; one that loses it is not.
func TestClockIsKeptRight(t *testing.T) {
	var c clock
	now := time.Now()
	ill := func() bool { reason, _, _ := c.state(now); return reason == reasonClockFree }
	after := func(d time.Duration, kept bool) {
		now = now.Add(d)
		c.kept(kept, now)
	}
	for range 3 {
		if after(time.Hour, false); ill() {
			t.Fatal("nothing ever kept it right")
		}
	}
	after(time.Hour, true)
	after(time.Minute, false)
	after(clockFreeFor-time.Second, false)
	if ill() {
		t.Error("too early")
	}
	if after(time.Second, false); !ill() {
		t.Error("not told")
	}
	if after(time.Second, true); ill() {
		t.Error("still told when it is kept right again")
	}
}

func TestClockSteps(t *testing.T) {
	var c clock
	wall := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for i, step := range []struct {
		wall, boot, want time.Duration
	}{
		{0, 0, 0}, // the first
		{time.Hour, time.Hour, 0},
		{3 * time.Hour, 2 * time.Hour, time.Hour},
		{3*time.Hour + 500*time.Millisecond, 2 * time.Hour, 0},
		{0, 2 * time.Hour, -3*time.Hour - 500*time.Millisecond},
	} {
		if got := c.set(host.Instant{Wall: wall.Add(step.wall), Boot: step.boot}); got != step.want {
			t.Errorf("%d: %v, want %v", i, got, step.want)
		}
	}
}
