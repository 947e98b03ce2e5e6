package connect

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/component-base/metrics"
)

// logREST streams a container's log from its agent.
type logREST struct{ kubelets }

var (
	_ rest.GetterWithOptions = &logREST{}
	_ rest.StorageMetadata   = &logREST{}
)

func (r *logREST) New() runtime.Object                    { return &corev1.Pod{} }
func (r *logREST) Destroy()                               {}
func (r *logREST) ProducesMIMETypes(string) []string      { return []string{"text/plain"} }
func (r *logREST) ProducesObject(string) any              { return "" }
func (r *logREST) OverrideMetricsVerb(verb string) string { return connectVerb(verb) }
func (r *logREST) NewGetOptions() (runtime.Object, bool, string) {
	return &corev1.PodLogOptions{}, false, ""
}

// connectVerb counts a long GET among the connections.
func connectVerb(verb string) string {
	if verb == "GET" {
		return "CONNECT"
	}
	return verb
}

func (r *logREST) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	o, ok := options.(*corev1.PodLogOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options object: %#v", options)
	}
	if errs := validateLogOptions(o); len(errs) > 0 {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), name, errs)
	}
	params := logParams(o)
	p, err := r.pod(ctx, name)
	if err != nil {
		if p, err = r.pastPod(ctx, name, err); err != nil {
			return nil, err
		}
		params.Set("uid", string(p.UID))
		warnPast(ctx, p)
	}
	container, err := chooseContainer(p, o.Container)
	if err != nil {
		return nil, err
	}
	var location *url.URL // stays nil for a pod without a node: an empty log
	if p.Spec.NodeName != "" {
		if location, err = r.location(ctx, p, "containerLogs", container, params); err != nil {
			return nil, err
		}
	}
	return &genericrest.LocationStreamer{
		Location:    location,
		Transport:   r.transport(p.Spec.NodeName),
		ContentType: "text/plain",
		Flush:       o.Follow,
		ResponseChecker: genericrest.NewGenericHttpResponseChecker(corev1.Resource("pods/log"),
			name),
		RedirectChecker:                       genericrest.PreventRedirects,
		TLSVerificationErrorCounter:           uncounted,
		DeprecatedTLSVerificationErrorCounter: uncounted,
	}, nil
}

// uncounted takes the place of upstream's counter of TLS failures.
var uncounted = metrics.NewCounter(&metrics.CounterOpts{Name: "pod_logs_backend_tls_failure_total", Help: "Log requests that failed to verify the agent's certificate."})

func logParams(o *corev1.PodLogOptions) url.Values {
	v := url.Values{}
	for _, f := range []struct {
		name string
		set  bool
	}{{"follow", o.Follow}, {"previous", o.Previous}, {"timestamps", o.Timestamps}} {
		if f.set {
			v.Set(f.name, "true")
		}
	}
	for _, f := range []struct {
		name  string
		value *int64
	}{{"sinceSeconds", o.SinceSeconds}, {"tailLines", o.TailLines}, {"limitBytes", o.LimitBytes}} {
		if f.value != nil {
			v.Set(f.name, strconv.FormatInt(*f.value, 10))
		}
	}
	if o.SinceTime != nil {
		v.Set("sinceTime", o.SinceTime.Format(time.RFC3339))
	}
	return v
}

func validateLogOptions(o *corev1.PodLogOptions) (errs field.ErrorList) {
	if o.TailLines != nil && *o.TailLines < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *o.TailLines, "must be greater than or equal to 0"))
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *o.LimitBytes, "must be greater than 0"))
	}
	switch {
	case o.SinceSeconds != nil && o.SinceTime != nil:
		errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case o.SinceSeconds != nil && *o.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be greater than 0"))
	}
	if o.Stream != nil { // of the gate PodLogsQuerySplitStreams, which is off in v1.36
		errs = append(errs, field.Forbidden(field.NewPath("stream"), "may not be specified"))
	}
	return errs
}
