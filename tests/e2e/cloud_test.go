package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/shoal-project/shoal/csi/csitest"
	"github.com/shoal-project/shoal/tests/harness"
)

// cloud is a pod with a volume of a cloud, as it was written before there was CSI.
const cloud = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: cloud}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  awsElasticBlockStore: {volumeID: "aws://z/vol-1", fsType: tmpfs}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  volumeName: cloud
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "localhost/busybox:1", command: [sleep, "3600"], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`

// TestCloudVolume: the volume is attached and mounted by the CSI driver that has taken
// its plugin over. The test is the driver and its attacher.
func TestCloudVolume(t *testing.T) {
	s := newSpace(t)
	d := &csitest.Driver{
		Name:         "ebs.csi.aws.com",
		Mounts:       csitest.Memory{},
		Capabilities: []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}
	told, _ := d.Register(t, filepath.Join(cluster.Dir, "kubelet", "plugins_registry"), d.Serve(t))
	select {
	case answer := <-told:
		if answer != "" {
			t.Fatalf("it is not registered: %s", answer)
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody heard it register")
	}
	s.apply(cloud)
	t.Cleanup(func() { cluster.Must(t, "delete", "pv/cloud", "--wait=false", "--ignore-not-found") })
	name := ""
	harness.Eventually(t, "the cluster asks for the attachment", func() (bool, string) {
		name = strings.TrimSpace(s.k("get", "volumeattachments", "-o",
			`jsonpath={.items[?(@.spec.attacher=="ebs.csi.aws.com")].metadata.name}`))
		return name != "", name
	})
	s.k("patch", "volumeattachment", name, "--subresource=status", "--type=merge", "-p", `{"status":{"attached":true}}`)
	s.k("wait", "pod/p", "--for=condition=Ready", "--timeout=60s")
	staged, ok := d.Last("NodeStageVolume").(*csipb.NodeStageVolumeRequest)
	if !ok || staged.VolumeId != "vol-1" {
		t.Errorf("staged %v", staged)
	}
	s.k("delete", "pod", "p", "--timeout=60s")
	harness.Eventually(t, "it is detached", func() (bool, string) {
		out, state := s.k("get", "volumeattachments", "-o", "name"), d.String()
		return state == "" && !strings.Contains(out, name), out + state
	})
}
