package audit

import (
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
)

// inMode makes requests wait for b, or not. Only blocking-strict lets a request
// fail that b cannot record.
func inMode(mode string, b audit.Backend, batch buffered.BatchConfig) audit.Backend {
	switch mode {
	case "blocking-strict":
		return b
	case "batch":
		return buffered.NewBackend(b, batch)
	}
	return lenient{b}
}

// lenient lets requests pass that could not be recorded: a full disk must not
// stop the API.
type lenient struct{ audit.Backend }

func (l lenient) ProcessEvents(events ...*auditinternal.Event) bool {
	l.Backend.ProcessEvents(events...)
	return true
}
