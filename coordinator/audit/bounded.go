package audit

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
)

// bounded keeps short what a request says of itself. Headers may have a megabyte
// before anybody is known: a neighbour without a credential could fill a log of
// a gigabyte with a thousand requests, and so roll over what it tells of others.
type bounded struct{ audit.Backend }

const (
	maxURI = 4 << 10
	// maxField is more than any name has (253, RFC 1123).
	maxField = 512
	// maxSources is of X-Forwarded-For, and at its end the address itself.
	maxSources    = 16
	truncatedMark = "...TRUNCATED" // upstream's, of user agents
)

func (b bounded) ProcessEvents(events ...*auditinternal.Event) bool {
	short := make([]*auditinternal.Event, len(events))
	for i, e := range events {
		short[i] = shorten(e)
	}
	return b.Backend.ProcessEvents(short...)
}

// shorten copies an event only where it is too long: others hold it too.
func shorten(e *auditinternal.Event) *auditinternal.Event {
	if len(e.RequestURI) <= maxURI && len(e.AuditID) <= maxField && len(e.Verb) <= maxField &&
		len(e.SourceIPs) <= maxSources {
		return e // the fields of ObjectRef are parts of the URI
	}
	c := *e
	c.RequestURI, c.Verb, c.AuditID = truncated(e.RequestURI, maxURI), truncated(e.Verb,
		maxField), types.UID(truncated(string(e.AuditID), maxField))
	if n := len(e.SourceIPs); n > maxSources {
		c.SourceIPs = slices.Concat(e.SourceIPs[:maxSources/2], e.SourceIPs[n-maxSources/2:])
	}
	if e.ObjectRef != nil {
		ref := *e.ObjectRef
		for _, field := range []*string{&ref.Resource, &ref.Namespace, &ref.Name, &ref.APIGroup,
			&ref.APIVersion, &ref.Subresource} {
			*field = truncated(*field, maxField)
		}
		c.ObjectRef = &ref
	}
	return &c
}

func truncated(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit-len(truncatedMark)], "") + truncatedMark
}
