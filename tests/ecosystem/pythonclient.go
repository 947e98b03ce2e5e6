package main

import (
	"fmt"
	"strings"
)

// pythonClient is a program on Debian's Python client that manages its own
// namespace from a pod.
var pythonClient = subject{
	name: "python-client",
	software: []software{{name: "python-client", images: []image{{
		ref: "localhost/python-client:1", packages: "python3-kubernetes,busybox", script: noDocs, user: "999",
	}}}},
	run: func(r *rig) {
		r.check("a pod creates, watches, scales, reads logs, runs commands, deletes", func() (string, error) {
			if err := r.apply("python-client.yaml"); err != nil {
				return "", err
			}
			_, err := r.do("-n python wait --for=condition=Complete job/client --timeout=120s")()
			log, logErr := r.Kubectl("", "-n", "python", "logs", "job/client")
			if err == nil {
				err = logErr
			}
			if err == nil && !strings.HasSuffix(log, "done\n") {
				err = fmt.Errorf("the program did not come to its end")
			}
			if err != nil {
				return "", fmt.Errorf("%w\n%s%s", err, log, r.state("python"))
			}
			return strings.Join(strings.Fields(log), " "), nil
		})
	},
}
