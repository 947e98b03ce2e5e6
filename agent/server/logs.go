package server

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/record"
)

// logOptions are the API's PodLogOptions.
type logOptions struct {
	logs.Options
	previous bool
	limit    int64 // bytes, -1 for all
}

// maxSince is longer ago, in seconds, than any log; a time.Duration holds it.
const maxSince = 100 * 365 * 24 * 3600

func parseLogOptions(q url.Values, now time.Time) (logOptions, error) {
	o := logOptions{Options: logs.Options{Tail: -1, Stdout: true, Stderr: true}, limit: -1}
	var errs []error
	flag := func(name string) bool {
		v := q.Get(name)
		if v == "" {
			return false
		}
		b, err := strconv.ParseBool(v)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %q is not a boolean", name, v))
		}
		return b
	}
	number := func(name string) int64 {
		v := q.Get(name)
		if v == "" || v == "all" {
			return -1
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 0 {
			errs = append(errs, fmt.Errorf("%s: %q is not a number", name, v))
		}
		return n
	}
	o.Follow, o.previous, o.Timestamps = flag("follow"), flag("previous"), flag("timestamps")
	o.Tail, o.limit = number("tailLines"), number("limitBytes")
	if n := number("sinceSeconds"); n >= 0 {
		o.Since = now.Add(-time.Duration(min(n, maxSince)) * time.Second)
	}
	if v := q.Get("sinceTime"); v != "" {
		t, err := time.Parse(time.RFC3339, v)
		if err != nil {
			errs = append(errs, fmt.Errorf("sinceTime: %w", err))
		}
		o.Since = t
	}
	switch q.Get("stream") {
	case "Stdout":
		o.Stderr = false
	case "Stderr":
		o.Stdout = false
	}
	return o, errors.Join(errs...)
}

func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	opts, err := parseLogOptions(r.URL.Query(), time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ns, name, container := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	p, ok := s.Pods.Find(ns, name)
	past := Past{ns, name, r.URL.Query().Get("uid"), container, opts.previous}
	if past.UID != "" && (!ok || string(p.Pod.UID) != past.UID) {
		s.pastLogs(w, r, past, opts)
		return
	}
	if !ok {
		http.Error(w, errNoPod, http.StatusNotFound)
		return
	}
	o, problem := chosen(&p, container, opts.previous)
	if problem != "" && past.UID != "" { // its containers are being removed
		s.pastLogs(w, r, past, opts)
		return
	}
	if problem != "" {
		http.Error(w, problem, http.StatusBadRequest)
		return
	}
	ended := func() bool {
		now, ok := s.Pods.Find(ns, name)
		if !ok || now.Pod.UID != p.Pod.UID {
			return true
		}
		for i := range now.Observed.Containers {
			if c := &now.Observed.Containers[i]; c.ID == o.ID {
				return c.State != record.Running
			}
		}
		return true
	}
	send(w, r, logs.File{Dir: s.LogsDir, Path: o.LogPath}, opts, ended)
}

// Past names the log of a pod that is gone.
type Past struct {
	Namespace, Pod, UID, Container string
	Previous                       bool
}

// pastLogs shows the log of a pod that is gone, as long as it is kept.
func (s *Server) pastLogs(w http.ResponseWriter, r *http.Request, what Past, o logOptions) {
	if s.PastLogs != nil {
		if file, ok := s.PastLogs(what); ok {
			send(w, r, file, o, func() bool { return true })
			return
		}
	}
	http.Error(w, fmt.Sprintf("logs of container %q of the deleted pod %q (UID %s) are not kept, or no longer",
		what.Container, what.Namespace+"/"+what.Pod, what.UID), http.StatusNotFound)
}

// send writes a log as a response.
func send(w http.ResponseWriter, r *http.Request, file logs.File, o logOptions, ended func() bool) {
	out := &logs.Output{W: w, Flush: func() {}, Limit: o.limit}
	if f, ok := w.(http.Flusher); ok {
		out.Flush = f.Flush
	}
	w.Header().Set("Content-Type", "text/plain")
	err := logs.Read(r.Context(), file, o.Options, out, ended)
	if err != nil && !errors.Is(err, logs.ErrFull) && r.Context().Err() == nil {
		fmt.Fprintf(out, "failed to read the log: %v\n", err)
	}
	out.Flush()
}

// chosen picks the run of a container whose log is wanted, or says why there
// is none.
func chosen(p *Pod, container string, previous bool) (*record.Observation, string) {
	var runs []*record.Observation
	for i := range p.Observed.Containers {
		if o := &p.Observed.Containers[i]; o.Name == container {
			runs = append(runs, o)
		}
	}
	pod := p.Pod.Name
	if previous {
		switch {
		case len(runs) > 0 && endedBeforeNext(p.Pod, runs[0], len(runs) == 1):
			return runs[0], ""
		case len(runs) > 1:
			return runs[1], ""
		}
		return nil, fmt.Sprintf("previous terminated container %q in pod %q not found", container, pod)
	}
	if len(runs) > 0 {
		return runs[0], ""
	}
	s := &p.Pod.Status
	for _, st := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses) {
		if st.Name != container || st.State.Waiting == nil {
			continue
		}
		why := st.State.Waiting.Reason
		switch why {
		case "ErrImagePull":
			why = "image can't be pulled"
		case "ImagePullBackOff":
			why = "trying and failing to pull image"
		}
		return nil, fmt.Sprintf("container %q in pod %q is waiting to start: %s", container, pod, why)
	}
	return nil, fmt.Sprintf("container %q in pod %q is not available", container, pod)
}

// endedBeforeNext tells whether a container's newest run is the one before a run that is
// still to come, as the pod's status has it: the last state of a container that waits. The
// status may be from a moment before, when it ran; that is said of an only run.
func endedBeforeNext(p *corev1.Pod, o *record.Observation, only bool) bool {
	if o.State != record.Exited {
		return false
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses,
		p.Status.EphemeralContainerStatuses} {
		for i := range list {
			st := &list[i]
			if st.Name != o.Name {
				continue
			}
			last := st.LastTerminationState.Terminated
			return st.State.Waiting != nil && last != nil && strings.HasSuffix(last.ContainerID, "://"+o.ID) ||
				only && st.State.Running != nil && o.Attempt > 0
		}
	}
	return false
}
