package joining

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	bootstrap "k8s.io/cluster-bootstrap/token/api"

	"github.com/shoal-project/shoal/coordinator/joinapi"
)

const (
	// keepUsedUp is how long a token that is used up lives on: its last machine still
	// has to read what it asked for, and to try again where an answer got lost.
	keepUsedUp = 10 * time.Minute
	// maxCounted bounds the list of who was counted. It is read when what followed the
	// count got lost, which soon is tried again.
	maxCounted = 64
)

// Counted tells whether a use of a token was counted before, by whom it was made.
func Counted(s *corev1.Secret, by string) bool { return slices.Contains(counted(s), by) }

func counted(s *corev1.Secret) []string {
	return strings.FieldsFunc(string(s.Data[joinapi.CountedKey]), func(c rune) bool { return c == ',' })
}

// UsedUp tells whether a token is for so many machines, and none is left.
func UsedUp(s *corev1.Secret) bool {
	left, limited := s.Data[joinapi.UsesKey]
	n, err := strconv.Atoi(string(left))
	return limited && (err != nil || n < 1)
}

// CountUse is the token's Secret with one use less; nil when there is nothing to count.
// The last use shortens the token's life.
func CountUse(s *corev1.Secret, by string, now time.Time) *corev1.Secret {
	uses, err := strconv.Atoi(string(s.Data[joinapi.UsesKey]))
	if err != nil || Counted(s, by) {
		return nil
	}
	s = s.DeepCopy()
	s.Data[joinapi.UsesKey] = []byte(strconv.Itoa(uses - 1))
	list := append(counted(s), by)
	s.Data[joinapi.CountedKey] = []byte(strings.Join(list[max(0, len(list)-maxCounted):], ","))
	if last := now.Add(keepUsedUp); uses <= 1 && expires(s).After(last) {
		s.Data[bootstrap.BootstrapTokenExpirationKey] = []byte(last.UTC().Format(time.RFC3339))
	}
	return s
}

// expires is when a token ends by itself; in a thousand years when never.
func expires(s *corev1.Secret) time.Time {
	at, err := time.Parse(time.RFC3339, string(s.Data[bootstrap.BootstrapTokenExpirationKey]))
	if err != nil {
		return time.Now().AddDate(1000, 0, 0)
	}
	return at
}
