package cronjob

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
)

const (
	// manyMissed is the number of missed times above which a user is warned.
	manyMissed = 100
	// late is added to the next time, for clocks that are set back a little.
	late = 100 * time.Millisecond
)

// parse reads the schedule in the CronJob's time zone. The parser panics on
// some malformed zones.
func parse(spec *batchv1.CronJobSpec) (schedule cron.Schedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	text := spec.Schedule
	if spec.TimeZone != nil && !strings.Contains(text, "TZ") {
		text = "TZ=" + *spec.TimeZone + " " + text
	}
	return cron.ParseStandard(text)
}

// times are what a schedule says about now.
type times struct {
	// from is when counting begins: the last time that was acted on, the
	// CronJob's creation, or the starting deadline.
	from time.Time
	// last is the newest time after from that is not after now; zero for none.
	last time.Time
	// missed estimates how many times there were, last included; 0 when last was the
	// only one.
	missed int64
}

// timesOf finds them. It does not walk through all missed times, for these may
// be years of minutes.
func timesOf(cj *batchv1.CronJob, schedule cron.Schedule, now time.Time, withDeadline bool) (times, error) {
	t := times{from: cj.CreationTimestamp.Time}
	if cj.Status.LastScheduleTime != nil {
		t.from = cj.Status.LastScheduleTime.Time
	}
	if deadline := cj.Spec.StartingDeadlineSeconds; withDeadline && deadline != nil {
		if earliest := now.Add(-time.Duration(*deadline) * time.Second); earliest.After(t.from) {
			t.from = earliest
		}
	}
	first := schedule.Next(t.from)
	second := schedule.Next(first)
	if now.Before(first) {
		return t, nil
	}
	if now.Before(second) {
		t.last = first
		return t, nil
	}
	// A date that never comes, such as 31 February, has the zero time as next.
	period := second.Sub(first).Round(time.Second)
	if period < time.Second {
		return t, errors.New("time difference between two schedules is less than 1 second")
	}
	t.missed = int64(now.Sub(first)/period) + 1
	for at := schedule.Next(first.Add(time.Duration(t.missed-2) * period)); !at.After(now) &&
		!at.IsZero(); at = schedule.Next(at) {
		t.last = at
	}
	return t, nil
}

// untilNext is the time from now to when the CronJob is to be looked at again;
// 0 when its schedule has no further time.
func untilNext(cj *batchv1.CronJob, schedule cron.Schedule, now time.Time) time.Duration {
	t, err := timesOf(cj, schedule, now, false)
	at := t.last
	switch {
	case err != nil, at.IsZero() && t.missed > 0:
		at = now
	case at.IsZero():
		at = t.from
	}
	next := schedule.Next(at)
	if next.IsZero() {
		return 0
	}
	return max(next.Add(late).Sub(now), time.Millisecond)
}
