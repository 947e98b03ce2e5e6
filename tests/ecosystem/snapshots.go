package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/shoal-project/shoal/tests/upstream"
)

// snapshotter is external-snapshotter, as docs/snapshots installs it.
var snapshotter = []software{
	{
		name:   "external-snapshotter",
		module: upstream.Snapshotter,
		// It names an older one, in whose place its repository has a directory.
		pins: []string{"github.com/kubernetes-csi/external-snapshotter/client/v8@v8.6.0"},
		programs: []upstream.Program{
			{Name: "csi-snapshotter", Package: "./cmd/csi-snapshotter", LDFlags: "-X main.version=v8.6.0"},
			{Name: "snapshot-controller", Package: "./cmd/snapshot-controller", LDFlags: "-X main.version=v8.6.0"},
		},
		images: []image{
			{ref: "registry.k8s.io/sig-storage/csi-snapshotter:v8.6.0", program: "csi-snapshotter",
				entrypoint: "/csi-snapshotter"},
			{ref: "registry.k8s.io/sig-storage/snapshot-controller:v8.6.0", program: "snapshot-controller",
				entrypoint: "/snapshot-controller"},
		},
	},
	{name: "external-snapshotter-client", module: upstream.SnapshotterClient},
}

// snapshots goes through what Kubernetes documents of snapshots and their classes.
var snapshots = subject{name: "snapshots", software: snapshotter, run: runSnapshots}

func runSnapshots(r *rig) {
	if r.volumes == "" {
		r.check("the machine has mkfs.xfs", func() (string, error) {
			return "", errors.New("it is in Debian's xfsprogs")
		})
		return
	}
	s := &snapshotChecks{rig: r}
	for _, c := range []struct {
		what string
		run  func() (string, error)
	}{
		// The driver of the second node would make its volumes on the same machine's other disk.
		{"a claim has something to keep", s.begin},
		{"are installed", r.installSnapshots},
		{"a snapshot's content tells of it", s.taken},
		{"what is kept stays when its snapshot is deleted", s.retained},
		{"a content that is made by hand is found, and then its snapshot", s.byHand},
		{"a snapshot waits for its content", s.early},
		{"a device is made of a file system with permission only", s.modes},
		{"what cannot be is refused", s.refused},
		{"the driver refuses a class's parameter by name", s.parameter},
		{"a claim stays until its snapshot is taken", s.protected},
		{"nothing is left", s.end},
	} {
		if !r.check(c.what, c.run) {
			break // the others need it
		}
	}
	_, _ = r.do("uncordon " + nodes[1])()
}

// snapshotChecks are the checks, in a namespace of their own.
type snapshotChecks struct {
	*rig
	handle string // of the snapshot that is kept
}

const inCopies = "-n copies "

func (s *snapshotChecks) manifest(text string) error {
	_, err := s.Kubectl(text, "-n", "copies", "apply", "-f", "-")
	return err
}

// field is what a JSONPath finds in an object.
func (s *snapshotChecks) field(object, path string) (string, error) {
	return s.Kubectl("", "-n", "copies", "get", object, "-o", "jsonpath="+path)
}

// snapshotOf is a snapshot of a claim.
func snapshotOf(claim, name, class string) string {
	return fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %s}
spec: {source: {persistentVolumeClaimName: %s}, volumeSnapshotClassName: %s}
`, name, claim, class)
}

// contentOf is a content for a snapshot that is there, and bound a snapshot that names one.
func contentOf(name, handle, more string) string {
	return fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {name: %s}
spec:
  driver: local.shoal-project.io
  source: {snapshotHandle: %s}
  volumeSnapshotRef: {name: %[1]s, namespace: copies}
%[3]s
`, name, handle, more)
}

func bound(name string) string {
	return fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %s}
spec: {source: {volumeSnapshotContentName: %[1]s}}
`, name)
}

// user is a pod with a claim, made of a snapshot or empty.
func user(name, snapshot, mode string) string {
	source := ""
	if snapshot != "" {
		source = "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: " + snapshot + "}"
	}
	mount := "volumeMounts: [{name: data, mountPath: /data}]"
	if mode == "Block" {
		mount = "volumeDevices: [{name: data, devicePath: /dev/data}]"
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  accessModes: [ReadWriteOnce]
  volumeMode: %s
  resources: {requests: {storage: 32Mi}}
  %s
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "3600"], %[4]s}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: %[1]s}}]
`, name, mode, source, mount)
}

// uses makes a user, and waits until it runs.
func (s *snapshotChecks) uses(name, snapshot, mode string) error {
	if err := s.manifest(user(name, snapshot, mode)); err != nil {
		return err
	}
	_, err := s.do(inCopies + "wait pod/" + name + " --for=condition=Ready --timeout=90s")()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, s.state("copies"))
	}
	return err
}

func (s *snapshotChecks) ready(object string) error {
	_, err := s.do(inCopies + "wait " + object + " --for=jsonpath={.status.readyToUse}=true --timeout=90s")()
	return err
}

// kept are the snapshots that the driver has.
func (s *snapshotChecks) kept() ([]string, error) {
	return filepath.Glob(filepath.Join(s.volumes, "snapshots", "*"))
}

func (s *snapshotChecks) begin() (string, error) {
	if _, err := s.do("cordon "+nodes[1], "create namespace copies")(); err != nil {
		return "", err
	}
	if err := s.uses("source", "", "Filesystem"); err != nil {
		return "", err
	}
	return s.Kubectl("", "-n", "copies", "exec", "source", "--", "sh", "-c", "echo shoal >/data/fish && sync")
}

func (s *snapshotChecks) taken() (string, error) {
	err := s.manifest(snapshotOf("source", "taken", "local"))
	if err == nil {
		err = s.ready("volumesnapshot/taken")
	}
	if err != nil {
		return "", err
	}
	uid, err1 := s.field("volumesnapshot/taken", "{.metadata.uid}")
	pv, err2 := s.field("pvc/source", "{.spec.volumeName}")
	volume, err3 := s.field("pv/"+pv, "{.spec.csi.volumeHandle}")
	got, err4 := s.field("volumesnapshotcontent/snapcontent-"+uid, "{.spec.deletionPolicy} {.spec.driver} "+
		"{.spec.source.volumeHandle} {.spec.sourceVolumeMode} {.spec.volumeSnapshotClassName} "+
		"{.spec.volumeSnapshotRef.namespace}/{.spec.volumeSnapshotRef.name}={.spec.volumeSnapshotRef.uid}")
	want := "Delete local.shoal-project.io " + volume + " Filesystem local copies/taken=" + uid
	if err := errors.Join(err1, err2, err3, err4); err != nil || got != want {
		return "", errors.Join(err, fmt.Errorf("got %q, want %q", got, want))
	}
	if _, err := s.do(inCopies + "delete volumesnapshot/taken --timeout=60s")(); err != nil {
		return "", err
	}
	if left, err := s.kept(); err != nil || len(left) > 0 {
		return "", errors.Join(err, fmt.Errorf("left: %v", left))
	}
	return got, nil
}

func (s *snapshotChecks) retained() (string, error) {
	err := s.manifest(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: kept}
driver: local.shoal-project.io
deletionPolicy: Retain
parameters:
` + "---" + snapshotOf("source", "kept", "kept"))
	if err == nil {
		err = s.ready("volumesnapshot/kept")
	}
	if err != nil {
		return "", err
	}
	content, err := s.field("volumesnapshot/kept", "{.status.boundVolumeSnapshotContentName}")
	if err != nil {
		return "", err
	}
	if s.handle, err = s.field("volumesnapshotcontent/"+content, "{.status.snapshotHandle}"); err != nil {
		return "", err
	}
	if _, err := s.do(inCopies+"delete volumesnapshot/kept --timeout=60s", "get volumesnapshotcontent/"+content,
		"delete volumesnapshotcontent/"+content+" --timeout=60s")(); err != nil {
		return "", err
	}
	if left, err := s.kept(); err != nil || len(left) != 1 {
		return "", errors.Join(err, fmt.Errorf("the driver has %v", left))
	}
	return s.handle, nil
}

func (s *snapshotChecks) byHand() (string, error) {
	err := s.manifest(contentOf("by-hand", s.handle, "  deletionPolicy: Delete\n  sourceVolumeMode: Filesystem"))
	if err == nil {
		err = s.ready("volumesnapshotcontent/by-hand")
	}
	if err != nil {
		return "", err
	}
	const label = `{.metadata.labels.snapshot\.storage\.kubernetes\.io/managed-by}`
	if node, err := s.field("volumesnapshotcontent/by-hand", label); err != nil || node != nodes[0] {
		return "", errors.Join(err, fmt.Errorf("it is on %q", node))
	}
	if err := s.manifest(bound("by-hand")); err != nil {
		return "", err
	}
	if err := s.ready("volumesnapshot/by-hand"); err != nil {
		return "", err
	}
	if err := s.uses("restored", "by-hand", "Filesystem"); err != nil {
		return "", err
	}
	got, err := s.Kubectl("", "-n", "copies", "exec", "restored", "--", "cat", "/data/fish")
	if err != nil || got != "shoal\n" {
		return "", errors.Join(err, fmt.Errorf("it has %q", got))
	}
	err = s.manifest(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: at-once}
provisioner: local.shoal-project.io
volumeBindingMode: Immediate
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: at-once}
spec:
  storageClassName: at-once
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 32Mi}}
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: by-hand}
`)
	if err != nil {
		return "", err
	}
	return s.do(inCopies + "wait pvc/at-once --for=jsonpath={.status.phase}=Bound --timeout=90s")()
}

func (s *snapshotChecks) early() (string, error) {
	if err := s.manifest(bound("early")); err != nil {
		return "", err
	}
	if _, err := s.shows(time.Minute, inCopies+"get events", "SnapshotContentMissing")(); err != nil {
		return "", err
	}
	if state, err := s.field("volumesnapshot/early", "{.status.readyToUse}"); err != nil || state == "true" {
		return "", errors.Join(err, errors.New("it is ready without a content"))
	}
	if err := s.manifest(contentOf("early", s.handle, "  deletionPolicy: Retain")); err != nil {
		return "", err
	}
	return "", s.ready("volumesnapshot/early")
}

func (s *snapshotChecks) modes() (string, error) {
	if err := s.uses("unknown-mode", "early", "Block"); err != nil { // its content tells no mode
		return "", err
	}
	if err := s.manifest(user("other-mode", "by-hand", "Block")); err != nil {
		return "", err
	}
	const allow = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
	if _, err := s.shows(time.Minute, inCopies+"get events", "modifies the mode of the source volume")(); err != nil {
		return "", err
	}
	// As a list, as documentation has it, annotations are none.
	listed := strings.Replace(contentOf("listed", s.handle, "  deletionPolicy: Retain"), "{name: listed}",
		"{name: listed, annotations: [{"+allow+": \"true\"}]}", 1)
	_, err := s.Kubectl(listed, "create", "-f", "-")
	if err == nil || !strings.Contains(err.Error(), "annotations") {
		return "", fmt.Errorf("annotations that are a list: %w", err)
	}
	_, err = s.do("annotate volumesnapshotcontent/by-hand "+allow+"=true",
		inCopies+"wait pod/other-mode --for=condition=Ready --timeout=120s")()
	return "", err
}

func (s *snapshotChecks) refused() (string, error) {
	both := strings.Replace(bound("both"), "source: {", "source: {persistentVolumeClaimName: source, ", 1)
	if _, err := s.Kubectl(both, "-n", "copies", "create", "-f", "-"); err == nil {
		return "", errors.New("a snapshot of two sources was taken")
	}
	_, err := s.Kubectl("", "-n", "copies", "patch", "volumesnapshot/early", "--type=merge", "-p",
		`{"spec":{"source":{"volumeSnapshotContentName":"other"}}}`)
	if err == nil || !strings.Contains(err.Error(), "volumeSnapshotContentName is immutable") {
		return "", fmt.Errorf("another source: %w", err)
	}
	return "", nil
}

func (s *snapshotChecks) parameter() (string, error) {
	err := s.manifest(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: fast}
driver: local.shoal-project.io
deletionPolicy: Delete
parameters: {speed: high}
` + "---" + snapshotOf("source", "fast", "fast"))
	if err != nil {
		return "", err
	}
	const command = inCopies + "get volumesnapshot/fast -o jsonpath={.status.error.message}"
	out, err := s.shows(time.Minute, command, "parameter speed is not known")()
	if err != nil {
		return "", err
	}
	_, err = s.do(inCopies + "delete volumesnapshot/fast --timeout=60s")()
	return out, err
}

// protected takes a snapshot while nobody can take it.
func (s *snapshotChecks) protected() (string, error) {
	const snapshotter = "daemonset/local-snapshotter"
	place := func(selector string) error {
		_, err := s.Kubectl("", "-n", "kube-system", "patch", snapshotter, "--type=merge", "-p",
			`{"spec":{"template":{"spec":{"nodeSelector":`+selector+`}}}}`)
		return err
	}
	if err := place(`{"nowhere":"true"}`); err != nil {
		return "", err
	}
	_, err := s.do("-n kube-system wait pod -l app=local-snapshotter --for=delete --timeout=90s")()
	if err == nil {
		err = s.manifest(snapshotOf("source", "slow", "local"))
	}
	if err != nil {
		return "", err
	}
	const finalizers = inCopies + "get pvc/source -o jsonpath={.metadata.finalizers}{.metadata.deletionTimestamp}"
	const guard = "snapshot.storage.kubernetes.io/pvc-as-source-protection"
	if _, err := s.shows(time.Minute, finalizers, guard)(); err != nil {
		return "", err
	}
	_, err = s.do(inCopies+"delete pod/source --timeout=60s", inCopies+"delete pvc/source --wait=false")()
	if err != nil {
		return "", err
	}
	time.Sleep(3 * time.Second) // for a claim that would go
	if _, err := s.shows(time.Second, finalizers, guard, "T")(); err != nil {
		return "", err
	}
	if err := place("null"); err != nil {
		return "", err
	}
	if err := s.ready("volumesnapshot/slow"); err != nil {
		return "", err
	}
	_, err = s.do(inCopies + "wait pvc/source --for=delete --timeout=90s")()
	return "", err
}

func (s *snapshotChecks) end() (string, error) {
	if _, err := s.do(inCopies+"delete volumesnapshot --all --timeout=60s",
		"delete volumesnapshotcontent --all --timeout=60s",
		"delete volumesnapshotclass/kept volumesnapshotclass/fast storageclass/at-once",
		"delete namespace copies --timeout=120s")(); err != nil {
		return "", err
	}
	return s.until(time.Minute, func() (string, error) {
		left, err := filepath.Glob(filepath.Join(s.volumes, "*", "*"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left: %v", left)
		}
		return "", err
	})
}

// installSnapshots does what docs/storage.md says, with sources that are here already.
func (r *rig) installSnapshots() (string, error) {
	if upstream.Have(filepath.Join(r.work, "snapshots")) {
		return "by a subject before", nil
	}
	kustomization, class, err := upstream.Snapshots(filepath.Join(r.work, "snapshots"), r.source("external-snapshotter"),
		r.source("external-snapshotter-client"), filepath.Join(r.Dir, "kubelet"))
	if err != nil {
		return "", err
	}
	_, err = r.do("apply -k "+kustomization,
		"wait crd/volumesnapshotclasses.snapshot.storage.k8s.io crd/volumesnapshots.snapshot.storage.k8s.io "+
			"--for=condition=Established --timeout=60s", "apply -f "+class)()
	if err != nil {
		return "", err
	}
	return "", r.rollout("kube-system", "deployment/snapshot-controller")
}
