package gateway

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// verdict is a condition's status with its reason.
type verdict struct {
	ok      bool
	reason  string
	message string
}

func yes[T ~string](reason T) verdict { return verdict{true, string(reason), ""} }

func no[T ~string](reason T, message string) verdict { return verdict{false, string(reason), message} }

// set makes a condition say what holds now; its time changes only with its status.
func (c *compiler) set(list *[]metav1.Condition, generation int64, name string, v verdict) {
	next := metav1.Condition{
		Type:               name,
		Status:             metav1.ConditionFalse,
		Reason:             v.reason,
		Message:            v.message,
		ObservedGeneration: generation,
		LastTransitionTime: c.now,
	}
	if v.ok {
		next.Status = metav1.ConditionTrue
	}
	i := slices.IndexFunc(*list, func(old metav1.Condition) bool { return old.Type == name })
	if i < 0 {
		*list = append(*list, next)
		return
	}
	if (*list)[i].Status == next.Status {
		next.LastTransitionTime = (*list)[i].LastTransitionTime
	}
	(*list)[i] = next
}

func unset(list *[]metav1.Condition, name string) {
	*list = slices.DeleteFunc(*list, func(c metav1.Condition) bool { return c.Type == name })
}
