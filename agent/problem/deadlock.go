package problem

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/shoal-project/shoal/agent/host"
)

const (
	// maxTasks bounds the hung tasks that are looked after. When a disk is gone all that
	// write to it hang; the kernel itself tells of ten (kernel.hung_task_warnings).
	maxTasks = 64
	// lockupFor is how long a processor counts as stuck after the kernel said so: it says
	// so again after 20 seconds to four minutes as long as it lasts, and not when it ends.
	lockupFor = 5 * time.Minute
	// maxShown bounds what a condition shows of a line.
	maxShown = 256
)

// deadlock is what the kernel said of tasks and processors that do not go on.
type deadlock struct {
	tasks  map[int]hung
	due    time.Time // when to look at them
	stuck  string    // the kernel's words of a processor
	until  time.Time // when they are old
	readBy func(id int) (host.Task, error)
}

// hung is a task that waits without an end.
type hung struct {
	host.Task
	text string
}

// hang takes what the kernel said of a task at a time after the boot. A line that is
// read later says nothing of a task that went on meanwhile, or of another that has its
// number now; it is false then.
func (d *deadlock) hang(id int, text string, written time.Duration, now time.Time) bool {
	if _, known := d.tasks[id]; len(d.tasks) >= maxTasks && !known {
		return true // the condition holds
	}
	t, err := d.readBy(id)
	if err != nil || !t.Waiting || t.Started > written {
		return false
	}
	if len(d.tasks) == 0 {
		d.tasks, d.due = map[int]hung{}, now.Add(taskEvery)
	}
	d.tasks[id] = hung{t, shown(text)}
	return true
}

// lock takes what the kernel said of a processor.
func (d *deadlock) lock(text string, written time.Time) {
	if until := written.Add(lockupFor); until.After(d.until) {
		d.stuck, d.until = shown(text), until
	}
}

// look drops what is over.
func (d *deadlock) look(now time.Time) {
	if !d.due.After(now) {
		maps.DeleteFunc(d.tasks, func(id int, was hung) bool {
			t, err := d.readBy(id)
			return err != nil || t != was.Task
		})
		d.due = now.Add(taskEvery)
	}
	if !d.until.After(now) {
		d.stuck = ""
	}
}

// next is when to look again, zero when there is nothing to look at.
func (d *deadlock) next() time.Time {
	switch {
	case len(d.tasks) > 0:
		return d.due
	case d.stuck != "":
		return d.until
	}
	return time.Time{}
}

// state is the reason of the condition, "" when all is well. The message stays the same
// as long as the same is wrong.
func (d *deadlock) state() (reason, message string) {
	if len(d.tasks) == 0 {
		if d.stuck == "" {
			return "", ""
		}
		return reasonLockup, "the kernel says: " + d.stuck
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(d.tasks)), cmp.Compare[int])
	message = "the kernel says: " + d.tasks[first].text
	if n := len(d.tasks) - 1; n > 0 {
		message += fmt.Sprintf(" (and of %d more)", n)
	}
	return reasonTaskHung, message
}

// shown is a line cut to what a condition or an event shows of it.
func shown(text string) string { return text[:min(len(text), maxShown)] }
