package main

import (
	"fmt"
	"strings"
)

// javaScriptClient is a program on Kubernetes' own JavaScript client, of npm's
// registry, that manages its namespace from a pod.
var javaScriptClient = subject{
	name: "javascript-client",
	software: []software{{name: "javascript-client", images: []image{{
		ref: "localhost/javascript-client:1", packages: "nodejs,busybox", user: "999",
		script: noDocs + "npm install --no-audit --no-fund --silent --prefix program @kubernetes/client-node@1.4.0\n",
	}}}},
	run: func(r *rig) {
		r.check("a pod creates, watches, scales, reads logs, runs commands, deletes", func() (string, error) {
			if err := r.apply("javascript-client.yaml"); err != nil {
				return "", err
			}
			_, err := r.do("-n javascript wait --for=condition=Complete job/client --timeout=120s")()
			log, logErr := r.Kubectl("", "-n", "javascript", "logs", "job/client")
			if err == nil {
				err = logErr
			}
			if err == nil && !strings.HasSuffix(log, "done\n") {
				err = fmt.Errorf("the program did not come to its end")
			}
			if err != nil {
				return "", fmt.Errorf("%w\n%s%s", err, log, r.state("javascript"))
			}
			return strings.Join(strings.Fields(log), " "), nil
		})
	},
}
