package server

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// checkpoint has a container written into an archive on the node (KEP-2008). Codes and
// words are the kubelet's.
func (s *Server) checkpoint(w http.ResponseWriter, r *http.Request) {
	ns, name, container := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	p, ok := s.Pods.Find(ns, name)
	if !ok {
		http.Error(w, errNoPod, http.StatusNotFound)
		return
	}
	if !declares(&p.Pod.Spec, container) {
		http.Error(w, fmt.Sprintf("container %v does not exist", container), http.StatusNotFound)
		return
	}
	var timeout int64
	if all := r.URL.Query()["timeout"]; len(all) > 0 { // the last one counts
		var err error
		if timeout, err = strconv.ParseInt(all[len(all)-1], 10, 64); err != nil {
			http.Error(w, "cannot parse value of timeout parameter", http.StatusNotFound)
			return
		}
	}
	o := p.Observed.Latest(container)
	err := fmt.Errorf("container %v not found", container)
	var path string
	if o != nil && o.State == record.Running {
		path, err = s.Checkpoint(r.Context(), p.Pod, o, timeout)
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("checkpointing of %v/%v/%v failed (%v)", ns, name, container, err),
			http.StatusInternalServerError)
		return
	}
	reply(w, map[string][]string{"items": {path}})
}

// declares tells whether a pod has a container of that name, of whichever kind.
func declares(spec *corev1.PodSpec, name string) bool {
	named := func(c corev1.Container) bool { return c.Name == name }
	return slices.ContainsFunc(spec.Containers, named) || slices.ContainsFunc(spec.InitContainers, named) ||
		slices.ContainsFunc(spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name == name })
}
