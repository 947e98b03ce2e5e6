package core

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

func podColumns() []metav1.TableColumnDefinition {
	spec, status := corev1.PodSpec{}.SwaggerDoc(), corev1.PodStatus{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Ready", "string", "The aggregate readiness state of this pod for accepting traffic."),
		kind.Column("Status", "string", "The aggregate status of the containers in this pod."),
		kind.Column("Restarts", "string", "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted."),
		kind.AgeColumn(),
		kind.Wide("IP", "string", status["podIP"]),
		kind.Wide("Node", "string", spec["nodeName"]),
		kind.Wide("Nominated Node", "string", status["nominatedNodeName"]),
		kind.Wide("Readiness Gates", "string", spec["readinessGates"]),
	}
}

// podSummary is what a pod's table row tells of its containers.
type podSummary struct {
	reason   string
	ready    int
	total    int
	restarts int
	last     metav1.Time // of the newest restart
}

func podRow(p *corev1.Pod) []any {
	s := summarize(p)
	restarts := strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.last.IsZero() {
		restarts = fmt.Sprintf("%d (%s ago)", s.restarts, kind.Age(s.last))
	}
	ip := ""
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return []any{
		p.Name, fmt.Sprintf("%d/%d", s.ready, s.total), s.reason, restarts, kind.Age(p.CreationTimestamp),
		orNone(ip), orNone(p.Spec.NodeName), orNone(p.Status.NominatedNodeName), readinessGates(p),
	}
}

// podRowConditions tell of a pod that is over: clients may leave it out.
func podRowConditions(p *corev1.Pod) []metav1.TableRowCondition {
	over := metav1.TableRowCondition{Type: metav1.RowCompleted, Status: metav1.ConditionTrue,
		Reason: string(p.Status.Phase)}
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		over.Message = "The pod has completed successfully."
	case corev1.PodFailed:
		over.Message = "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{over}
}

func readinessGates(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return "<none>"
	}
	passed := 0
	for _, g := range p.Spec.ReadinessGates {
		if conditionTrue(&p.Status, g.ConditionType) {
			passed++
		}
	}
	return fmt.Sprintf("%d/%d", passed, len(p.Spec.ReadinessGates))
}

func conditionTrue(s *corev1.PodStatus, t corev1.PodConditionType) bool {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return s.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

func summarize(p *corev1.Pod) podSummary {
	s := podSummary{reason: string(p.Status.Phase), total: len(p.Spec.Containers)}
	if p.Status.Reason != "" {
		s.reason = p.Status.Reason
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.reason = corev1.PodReasonSchedulingGated
		}
	}
	sidecars := map[string]bool{}
	for i := range p.Spec.InitContainers {
		if podspec.IsSidecar(&p.Spec.InitContainers[i]) {
			sidecars[p.Spec.InitContainers[i].Name] = true
			s.total++
		}
	}
	if !s.addInit(p, sidecars) || conditionTrue(&p.Status, corev1.PodInitialized) {
		s.restarts, s.last = 0, metav1.Time{}
		for i := range p.Status.InitContainerStatuses {
			if c := &p.Status.InitContainerStatuses[i]; sidecars[c.Name] {
				s.addRestarts(c)
			}
		}
		s.addRegular(p)
	}
	terminal := p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
	switch {
	case p.DeletionTimestamp != nil && p.Status.Reason == "NodeLost":
		s.reason = "Unknown"
	case p.DeletionTimestamp != nil && !terminal:
		s.reason = "Terminating"
	}
	return s
}

func (s *podSummary) addRestarts(c *corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && s.last.Before(&t.FinishedAt) {
		s.last = t.FinishedAt
	}
}

// addInit counts init containers and reports whether one is not through yet.
func (s *podSummary) addInit(p *corev1.Pod, sidecars map[string]bool) (initializing bool) {
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		s.addRestarts(c)
		switch t, w := c.State.Terminated, c.State.Waiting; {
		case t != nil && t.ExitCode == 0:
			continue
		case sidecars[c.Name] && deref(c.Started):
			if c.Ready {
				s.ready++
			}
			continue
		case t != nil:
			s.reason = "Init:" + terminationReason(t)
		case w != nil && w.Reason != "" && w.Reason != "PodInitializing":
			s.reason = "Init:" + w.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		return true
	}
	return false
}

func terminationReason(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", t.ExitCode)
}

// addRegular goes from the last container to the first, so that the first one
// that is not running gives the reason.
func (s *podSummary) addRegular(p *corev1.Pod) {
	running, failure := false, ""
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &p.Status.ContainerStatuses[i]
		s.addRestarts(c)
		switch t := c.State.Terminated; {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.reason = c.State.Waiting.Reason
		case t != nil:
			s.reason = terminationReason(t)
			if t.ExitCode != 0 {
				failure = s.reason
			}
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.reason != "Completed" {
		return
	}
	switch {
	case running && conditionTrue(&p.Status, corev1.PodReady):
		s.reason = "Running"
	case failure != "":
		s.reason = failure
	case running:
		s.reason = "NotReady"
	}
}
