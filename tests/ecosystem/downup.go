package main

import (
	"fmt"
	"strings"
	"time"
)

// downUp stops the first machine with all that is installed on it and starts
// it again.
var downUp = subject{name: "down-up", run: runDownUp}

// downUpPods are on the machine; what the software lacks of them are web servers.
const downUpPods = 28

// downUpLimit is how long the pods may take to be ready again.
const downUpLimit = time.Minute

func runDownUp(r *rig) {
	var before map[string]string
	filled := r.check(fmt.Sprintf("%d pods are ready on the first machine", downUpPods), func() (string, error) {
		ready, err := r.readyPods()
		if err != nil {
			return "", err
		}
		if err := r.apply("web.yaml"); err != nil {
			return "", err
		}
		scale := fmt.Sprintf("scale deployment/web --replicas=%d", max(1, downUpPods-len(ready)))
		if _, err := r.do(scale)(); err != nil {
			return "", err
		}
		if err := r.rollout("default", "deployment/web"); err != nil {
			return "", err
		}
		before, err = r.readyPods()
		return fmt.Sprintf("%d of software, %d web servers", len(ready), len(before)-len(ready)), err
	})
	if !filled {
		return
	}
	r.check("after `shoal down` and `shoal up` all are ready in a minute", func() (string, error) {
		if err := r.Down(); err != nil {
			return "", err
		}
		began := time.Now()
		if err := r.Up(); err != nil {
			return "", err
		}
		up := time.Since(began)
		_, err := r.until(downUpLimit-up, func() (string, error) {
			after, err := r.readyPods()
			if err != nil {
				return "", err
			}
			for pod, container := range before {
				// A condition from before the stop stays until the node reports.
				if after[pod] == "" || after[pod] == container {
					return "", fmt.Errorf("%s is not ready, of %d pods", pod, len(before))
				}
			}
			return "", nil
		})
		ready := time.Since(began).Seconds()
		return fmt.Sprintf("up took %.1f s, the pods were ready after %.1f s", up.Seconds(), ready), err
	})
}

// readyPods returns the first machine's ready pods, with the id of a container.
func (r *rig) readyPods() (map[string]string, error) {
	out, err := r.Kubectl("", "get", "pods", "-A", "--field-selector=spec.nodeName="+nodes[0]+",status.phase=Running",
		"-o", `jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} `+
			`{.status.containerStatuses[0].containerID} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
	if err != nil {
		return nil, err
	}
	ready := map[string]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "True" {
			ready[f[0]] = f[1]
		}
	}
	return ready, nil
}
