package nodettl

import (
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// steps are upstream's: a cluster with more than max nodes goes to the next one,
// with fewer than min to that before. They overlap, so that a node more and a node
// less do not have all annotations written again.
var steps = []struct{ min, max, seconds int }{
	{0, 100, 0},
	{90, 500, 15},
	{450, 1000, 30},
	{900, 2000, 60},
	{1800, math.MaxInt, 300},
}

// size is how many nodes there are, and the step that they are at.
type size struct{ nodes, step int }

// add counts nodes (-1: one is gone) and tells whether the step is another now.
func (s *size) add(n int) (stepped bool) {
	s.nodes += n
	before := s.step
	if s.nodes > steps[s.step].max {
		s.step++
	} else if s.nodes < steps[s.step].min {
		s.step--
	}
	return s.step != before
}

// seconds is what the annotation should say.
func (s *size) seconds() int { return steps[s.step].seconds }

// says tells whether a node's annotation has a number of seconds.
func says(node *corev1.Node, seconds int) bool {
	n, err := strconv.Atoi(node.Annotations[corev1.ObjectTTLAnnotationKey])
	return err == nil && n == seconds
}
