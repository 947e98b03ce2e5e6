package scheduler

import (
	"errors"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

var errNoNodes = errors.New("no nodes available to schedule pods")

// fitError sums up why no node was feasible.
func (c *cycle) fitError() *framework.FitError {
	e := &framework.FitError{NumAllNodes: c.p.snap.Len(), Reasons: map[string]int{}, RejectedBy: sets.New[string](),
		PendingOn: sets.New[string]()}
	if st := c.class.refused; st != nil {
		e.PreFilter = st.Message()
		e.Blame(st)
		e.RejectedBy = e.RejectedBy.Union(c.class.onlyBy)
		return e
	}
	e.RejectedBy = e.RejectedBy.Union(c.class.onlyBy)
	type verdict struct {
		st *framework.Status
		by string
	}
	counts := map[verdict]int{}
	for _, n := range c.p.snap.Slots() {
		if n == nil {
			continue
		}
		if lane := c.class.lane(int32(n.Slot)); lane >= 0 {
			if st := &c.class.node[lane]; st.verdict != nil {
				counts[verdict{st.verdict, c.class.local[st.by].name}]++
				continue
			}
		}
		if st := c.Verdict(n); st != nil {
			counts[verdict{st, st.Plugin}]++
		}
	}
	for v, n := range counts {
		for _, r := range v.st.Reasons {
			e.Reasons[r] += n
		}
		e.Blame(v.st.By(v.by))
	}
	return e
}
