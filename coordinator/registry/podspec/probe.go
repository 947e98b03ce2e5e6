package podspec

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

// handler is the union of probe and lifecycle handlers.
type handler struct {
	exec    *corev1.ExecAction
	httpGet *corev1.HTTPGetAction
	tcp     *corev1.TCPSocketAction
	grpc    *corev1.GRPCAction
	sleep   *corev1.SleepAction
	grace   *int64
}

// validateProbe checks a probe; kills says that its failure ends the container
// (liveness, startup), which needs exactly one success and may have a grace
// period.
func validateProbe(probe *corev1.Probe, p *field.Path, kills bool) field.ErrorList {
	if probe == nil {
		return nil
	}
	h := handler{exec: probe.Exec, httpGet: probe.HTTPGet, tcp: probe.TCPSocket, grpc: probe.GRPC}
	errs := h.validate(p)
	for _, n := range []struct {
		name  string
		value int32
	}{
		{"initialDelaySeconds", probe.InitialDelaySeconds},
		{"timeoutSeconds", probe.TimeoutSeconds},
		{"periodSeconds", probe.PeriodSeconds},
		{"successThreshold", probe.SuccessThreshold},
		{"failureThreshold", probe.FailureThreshold},
	} {
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(n.value), p.Child(n.name))...)
	}
	if t := probe.TerminationGracePeriodSeconds; t != nil && *t <= 0 {
		errs = append(errs, field.Invalid(p.Child("terminationGracePeriodSeconds"), *t, "must be greater than 0"))
	}
	if kills && probe.SuccessThreshold != 1 {
		errs = append(errs, field.Invalid(p.Child("successThreshold"), probe.SuccessThreshold, "must be 1"))
	}
	if !kills && probe.TerminationGracePeriodSeconds != nil {
		errs = append(errs,
			field.Invalid(p.Child("terminationGracePeriodSeconds"), probe.TerminationGracePeriodSeconds, "must not be set for readinessProbes"))
	}
	return errs
}

func (s *scope) validateLifecycle(l *corev1.Lifecycle, p *field.Path) (errs field.ErrorList) {
	for _, h := range []struct {
		name string
		h    *corev1.LifecycleHandler
	}{{"postStart", l.PostStart}, {"preStop", l.PreStop}} {
		if h.h != nil {
			check := handler{exec: h.h.Exec, httpGet: h.h.HTTPGet, tcp: h.h.TCPSocket, sleep: h.h.Sleep, grace: s.grace}
			errs = append(errs, check.validate(p.Child(h.name))...)
		}
	}
	return append(errs, validateStopSignal(l.StopSignal, s.spec.OS, p.Child("stopSignal"))...)
}

func validateStopSignal(signal *corev1.Signal, os *corev1.PodOS, p *field.Path) field.ErrorList {
	switch {
	case signal == nil:
		return nil
	case os == nil:
		return field.ErrorList{field.Forbidden(p, "may not be set for containers with empty `spec.os.name`")}
	case os.Name == corev1.Windows:
		return Among(*signal, p, corev1.SIGKILL, corev1.SIGTERM)
	}
	return nil
}

func (h handler) validate(p *field.Path) (errs field.ErrorList) {
	n := 0
	for _, a := range []struct {
		name  string
		set   bool
		check func(*field.Path) field.ErrorList
	}{
		{"exec", h.exec != nil, h.checkExec},
		{"httpGet", h.httpGet != nil, h.checkHTTP},
		{"tcpSocket", h.tcp != nil, func(p *field.Path) field.ErrorList { return ValidatePort(h.tcp.Port, p.Child("port")) }},
		{"grpc", h.grpc != nil, func(p *field.Path) field.ErrorList {
			return ValidatePort(intstr.FromInt32(h.grpc.Port), p.Child("port"))
		}},
		{"sleep", h.sleep != nil, h.checkSleep},
	} {
		switch {
		case !a.set:
		case n > 0:
			errs = append(errs, field.Forbidden(p.Child(a.name), "may not specify more than 1 handler type"))
		default:
			n++
			errs = append(errs, a.check(p.Child(a.name))...)
		}
	}
	if n == 0 {
		errs = append(errs, field.Required(p, "must specify a handler type"))
	}
	return errs
}

func (h handler) checkExec(p *field.Path) field.ErrorList {
	if len(h.exec.Command) == 0 {
		return field.ErrorList{field.Required(p.Child("command"), "")}
	}
	return nil
}

func (h handler) checkHTTP(p *field.Path) field.ErrorList {
	errs := required(h.httpGet.Path, p.Child("path"))
	errs = append(errs, ValidatePort(h.httpGet.Port, p.Child("port"))...)
	errs = append(errs, Among(h.httpGet.Scheme, p.Child("scheme"), corev1.URISchemeHTTP, corev1.URISchemeHTTPS)...)
	for _, header := range h.httpGet.HTTPHeaders {
		errs = append(errs,
			fieldrule.Invalid(p.Child("httpHeaders"), header.Name, validation.IsHTTPHeaderName(header.Name))...)
	}
	return errs
}

func (h handler) checkSleep(p *field.Path) field.ErrorList {
	if h.grace != nil && (h.sleep.Seconds < 0 || h.sleep.Seconds > *h.grace) {
		return field.ErrorList{field.Invalid(p, h.sleep.Seconds,
			fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", *h.grace))}
	}
	return nil
}
