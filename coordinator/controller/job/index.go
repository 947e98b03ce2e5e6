package job

import (
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// span is a run of indexes, both ends included.
type span struct{ first, last int }

// indexes is an ordered set of completion indexes as runs, as the status has
// them ("1,3-5,7").
type indexes []span

func parseIndexes(s string, completions int) indexes {
	var out indexes
	for part := range strings.SplitSeq(s, ",") {
		first, last, isRun := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		if err != nil || a >= completions {
			continue
		}
		b := a
		if isRun {
			if b, err = strconv.Atoi(last); err != nil {
				continue
			}
		}
		out = out.append(span{a, min(b, completions-1)})
	}
	return out
}

// append adds a run that does not begin before the last one.
func (s indexes) append(r span) indexes {
	if n := len(s); n > 0 && r.first <= s[n-1].last+1 {
		s[n-1].last = max(s[n-1].last, r.last)
		return s
	}
	return append(s, r)
}

func (s indexes) union(more indexes) indexes {
	all := slices.Concat(s, more)
	slices.SortFunc(all, func(a, b span) int { return a.first - b.first })
	var out indexes
	for _, r := range all {
		out = out.append(r)
	}
	return out
}

func indexesOf(list []int) indexes {
	var s indexes
	for _, i := range slices.Sorted(slices.Values(list)) {
		s = s.append(span{i, i})
	}
	return s
}

func (s indexes) has(i int) bool {
	_, found := slices.BinarySearchFunc(s, i, func(r span, i int) int {
		switch {
		case r.last < i:
			return -1
		case r.first > i:
			return 1
		}
		return 0
	})
	return found
}

func (s indexes) total() (n int) {
	for _, r := range s {
		n += r.last - r.first + 1
	}
	return n
}

// common is how many indexes both sets have.
func (s indexes) common(o indexes) (n int) {
	for i, j := 0, 0; i < len(s) && j < len(o); {
		n += max(min(s[i].last, o[j].last)-max(s[i].first, o[j].first)+1, 0)
		if s[i].last < o[j].last {
			i++
		} else {
			j++
		}
	}
	return n
}

// missing returns the first count indexes below completions that are not in s.
func (s indexes) missing(count, completions int) []int {
	var out []int
	next := 0
	for _, r := range append(slices.Clone(s), span{completions, completions}) {
		for ; next < min(r.first, completions) && len(out) < count; next++ {
			out = append(out, next)
		}
		next = max(next, r.last+1)
	}
	return out
}

func (s indexes) String() string {
	var b strings.Builder
	for _, r := range s {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(r.first))
		if r.last > r.first {
			sep := byte('-')
			if r.last == r.first+1 {
				sep = ','
			}
			b.WriteByte(sep)
			b.WriteString(strconv.Itoa(r.last))
		}
	}
	return b.String()
}

const noIndex = -1

func indexOf(p *corev1.Pod) int {
	i, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || i < 0 {
		return noIndex
	}
	return i
}

func indexed(j *batchv1.Job) bool {
	return j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion &&
		j.Spec.Completions != nil
}

func perIndex(j *batchv1.Job) bool { return indexed(j) && j.Spec.BackoffLimitPerIndex != nil }

func count(p *corev1.Pod, annotation string) int {
	n, err := strconv.Atoi(p.Annotations[annotation])
	if err != nil || n < 0 {
		return 0
	}
	return n
}
