package gated

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"
)

// Each case is a write, what was stored before, and what is stored after.
func TestDrop(t *testing.T) {
	for _, c := range []struct {
		name, resource     string
		of                 any
		write, old, stored string
	}{{
		name: "a stop signal, and the lifecycle that it leaves empty", resource: "/pods", of: corev1.Pod{},
		write: `{spec: {containers: [{name: a, lifecycle: {stopSignal: SIGINT}},
			{name: b, lifecycle: {stopSignal: SIGINT, preStop: {sleep: {seconds: 1}}}}, {name: c, lifecycle: {}}],
			initContainers: [{name: d, lifecycle: {stopSignal: SIGINT}}],
			ephemeralContainers: [{name: e, lifecycle: {stopSignal: SIGINT}}]}}`,
		stored: `{spec: {containers: [{name: a}, {name: b, lifecycle: {preStop: {sleep: {seconds: 1}}}}, {name: c, lifecycle: {}}],
			initContainers: [{name: d}], ephemeralContainers: [{name: e}]}}`,
	}, {
		name: "any container that has a signal lets all have one", resource: "/pods", of: corev1.Pod{},
		write:  `{spec: {schedulingGroup: {}, containers: [{name: a, lifecycle: {stopSignal: SIGINT}}]}}`,
		old:    `{spec: {initContainers: [{name: d, lifecycle: {stopSignal: SIGHUP}}], containers: [{name: a}]}}`,
		stored: `{spec: {containers: [{name: a, lifecycle: {stopSignal: SIGINT}}]}}`,
	}, {
		name: "sources of a projected volume stay, empty", resource: "apps/deployments", of: appsv1.Deployment{},
		write: `{spec: {template: {spec: {schedulingGroup: {podGroupName: g}, volumes: [{name: v, projected: {sources: [
			{clusterTrustBundle: {path: p}}, {podCertificate: {signerName: s}}, {secret: {name: s}}]}}, {name: w}]}}}}`,
		stored: `{spec: {template: {spec: {volumes: [{name: v, projected: {sources: [{}, {}, {secret: {name: s}}]}}, {name: w}]}}}}`,
	}, {
		name: "one feature in use is not another", resource: "apps/deployments", of: appsv1.Deployment{},
		write: `{spec: {template: {spec: {volumes: [{name: v, projected: {sources: [
			{clusterTrustBundle: {path: p}}, {podCertificate: {signerName: s}}]}}]}}}}`,
		old:    `{spec: {template: {spec: {volumes: [{name: x, projected: {sources: [{podCertificate: {signerName: s}}]}}]}}}}`,
		stored: `{spec: {template: {spec: {volumes: [{name: v, projected: {sources: [{}, {podCertificate: {signerName: s}}]}}]}}}}`,
	}, {
		name: "a CronJob's pods", resource: "batch/cronjobs", of: batchv1.CronJob{},
		write:  `{spec: {jobTemplate: {spec: {template: {spec: {schedulingGroup: {podGroupName: g}}}}}}}`,
		stored: `{}`,
	}, {
		name: "a controller without a template", resource: "/replicationcontrollers", of: corev1.ReplicationController{},
		write:  `{spec: {replicas: 2}}`,
		old:    `{spec: {replicas: 1}}`,
		stored: `{spec: {replicas: 2}}`,
	}, {
		name: "a pod's status", resource: "/pods", of: corev1.Pod{},
		write: `{status: {nodeAllocatableResourceClaimStatuses: [{}], containerStatuses: [{name: a, volumeMounts: [
			{name: v, mountPath: /v, volumeStatus: {image: {imageRef: r}}}]}]}}`,
		stored: `{status: {containerStatuses: [{name: a, volumeMounts: [{name: v, mountPath: /v}]}]}}`,
	}, {
		name: "a StatefulSet's maxUnavailable", resource: "apps/statefulsets", of: appsv1.StatefulSet{},
		write:  `{spec: {updateStrategy: {rollingUpdate: {partition: 1, maxUnavailable: 2}}}}`,
		old:    `{spec: {updateStrategy: {rollingUpdate: {partition: 1}}}}`,
		stored: `{spec: {updateStrategy: {rollingUpdate: {partition: 1}}}}`,
	}, {
		name: "one that it had may change", resource: "apps/statefulsets", of: appsv1.StatefulSet{},
		write:  `{spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 2}}}}`,
		old:    `{spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 1}}}}`,
		stored: `{spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 2}}}}`,
	}, {
		name: "each field of a Lease by itself", resource: "coordination.k8s.io/leases", of: coordinationv1.Lease{},
		write:  `{spec: {strategy: OldestEmulationVersion, preferredHolder: you}}`,
		old:    `{spec: {preferredHolder: me}}`,
		stored: `{spec: {preferredHolder: you}}`,
	}, {
		name: "in a map", resource: "resource.k8s.io/resourceslices", of: resourcev1.ResourceSlice{},
		write: `{spec: {devices: [{name: d, attributes: {a: {ints: [1]}, b: {int: 2}, c: {bools: [], string: x}},
			nodeAllocatableResourceMappings: {cpu: {}}}]}}`,
		stored: `{spec: {devices: [{name: d, attributes: {a: {}, b: {int: 2}, c: {string: x}}}]}}`,
	}, {
		name: "a list in use", resource: "resource.k8s.io/resourceslices", of: resourcev1.ResourceSlice{},
		write:  `{spec: {devices: [{name: d, attributes: {a: {ints: [1]}}}]}}`,
		old:    `{spec: {devices: [{name: e, attributes: {z: {strings: [x]}}}]}}`,
		stored: `{spec: {devices: [{name: d, attributes: {a: {ints: [1]}}}]}}`,
	}, {
		name: "a kind that has none", resource: "/configmaps", of: corev1.ConfigMap{},
		write: `{data: {a: b}}`, stored: `{data: {a: b}}`,
	}} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			fields, err := Of(c.resource, reflect.TypeOf(c.of))
			if err != nil {
				t.Fatal(err)
			}
			got, want := object(t, c.of, c.write), object(t, c.of, c.stored)
			if c.old == "" {
				fields.Drop(got, nil)
			} else {
				fields.Drop(got, object(t, c.of, c.old))
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %s\nwant %s", text(t, got), text(t, want))
			}
		})
	}
}

func object(t *testing.T, of any, text string) any {
	t.Helper()
	out := reflect.New(reflect.TypeOf(of)).Interface()
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(text, "\t", " ")), out); err != nil {
		t.Fatal(err)
	}
	return out
}

func text(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// A path that leads nowhere is found before anything is served.
func TestCompileRefuses(t *testing.T) {
	for _, p := range []string{"spec.colour", "spec.replicas.x", "spec[].replicas", "spec?.replicas", "spec.template.spec.containers.name"} {
		if _, err := compile(reflect.TypeFor[appsv1.Deployment](), p); err == nil {
			t.Errorf("%s leads somewhere", p)
		}
	}
}
