package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shoal-project/shoal/tests/upstream"
)

var argoRollouts = subject{
	name: "argo-rollouts",
	software: []software{{
		name:     "argo-rollouts",
		module:   "github.com/argoproj/argo-rollouts@v1.10.0",
		programs: []upstream.Program{{Name: "rollouts-controller", Package: "./cmd/rollouts-controller"}},
		images: []image{{
			ref:     "quay.io/argoproj/argo-rollouts:v1.10.0",
			program: "rollouts-controller", entrypoint: "/bin/rollouts-controller", user: "999",
		}},
	}},
	run: runArgoRollouts,
}

func runArgoRollouts(r *rig) {
	if !r.installed("argo-rollouts", "deployment/argo-rollouts", func() error {
		text, err := os.ReadFile(filepath.Join(r.source("argo-rollouts"), "manifests", "install.yaml"))
		if err != nil {
			return err
		}
		if _, err := r.Kubectl("", "create", "namespace", "argo-rollouts"); err != nil {
			return err
		}
		// The latest version is asked for, which would be pulled: name this one.
		manifest := strings.NewReplacer("argo-rollouts:latest", "argo-rollouts:v1.10.0",
			"imagePullPolicy: Always", "imagePullPolicy: IfNotPresent").Replace(string(text))
		// Its definitions are larger than an annotation may be.
		_, err = r.Kubectl(manifest, "-n", "argo-rollouts", "apply", "--server-side", "-f", "-")
		return err
	}) {
		return
	}
	healthy := func(version string, limit time.Duration) (string, error) {
		return r.until(limit, func() (string, error) {
			out, err := r.Kubectl("", "get", "rollout", "canary", "-o",
				"jsonpath={.status.phase} {.status.updatedReplicas} {.status.availableReplicas}")
			if err == nil && out != "Healthy 4 4" {
				err = fmt.Errorf("the rollout is %s", out)
			}
			if err != nil {
				return "", err
			}
			pods, err := r.Kubectl("", "get", "pods", "-l", "app=canary", "-o",
				`jsonpath={.items[*].spec.containers[0].env[0].value}`)
			if err == nil && pods != strings.TrimSpace(strings.Repeat(version+" ", 4)) {
				err = fmt.Errorf("pods are of versions %s", pods)
			}
			return pods, err
		})
	}
	r.check("a Rollout becomes healthy", func() (string, error) {
		if err := r.apply("rollout.yaml"); err != nil {
			return "", err
		}
		return healthy("one", time.Minute)
	})
	r.check("a new version waits as a canary with half of the pods", func() (string, error) {
		_, err := r.Kubectl("", "patch", "rollout", "canary", "--type=json", "-p",
			`[{"op":"replace","path":"/spec/template/spec/containers/0/env/0/value","value":"two"}]`)
		if err != nil {
			return "", err
		}
		const paused = "jsonpath={.status.pauseConditions[0].reason}=CanaryPauseStep"
		return r.do("wait --for="+paused+" rollout/canary --timeout=60s",
			"get rollout canary -o jsonpath={.status.phase}")()
	})
	r.check("when it is promoted, all pods are of the new version", func() (string, error) {
		// What `kubectl argo rollouts promote` sends.
		_, err := r.Kubectl("", "patch", "rollout", "canary", "--subresource=status", "--type=merge", "-p",
			`{"status":{"pauseConditions":null}}`)
		if err != nil {
			return "", err
		}
		return healthy("two", 90*time.Second)
	})
}
