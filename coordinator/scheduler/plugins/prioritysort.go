package plugins

import "github.com/shoal-project/shoal/coordinator/scheduler/framework"

// prioritySort takes pods of higher priority first, older ones among equals.
type prioritySort struct{}

func (prioritySort) Name() string { return PrioritySortName }

func (prioritySort) Less(a, b *framework.QueuedPod) bool {
	if a.Priority != b.Priority {
		return a.Priority > b.Priority
	}
	return a.Timestamp.Before(b.Timestamp)
}
