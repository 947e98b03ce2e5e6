package persistentvolume_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	restfake "k8s.io/client-go/rest/fake"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/persistentvolume"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

func TestScenarios(t *testing.T) { controllertest.Play(t, build) }

func build(env controller.Env) (*controller.Loop, error) {
	return persistentvolume.New(env, persistentvolume.Recyclers{
		HostPath: persistentvolume.Recycler{Least: 60, EachGiB: 30},
		NFS:      persistentvolume.Recycler{Least: 300, EachGiB: 30},
	})
}

// In these, a file has the pod that empties hostPath volumes.
func TestTemplateScenarios(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pod.yaml")
	const text = `{apiVersion: v1, kind: Pod, metadata: {namespace: tools, generateName: x-}, spec: {
		containers: [{name: wipe, image: wiper, volumeMounts: [{name: data, mountPath: /d}]}],
		volumes: [{name: data, emptyDir: {}}, {name: other, emptyDir: {}}]}}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	pod, err := persistentvolume.ReadTemplate(file)
	if err != nil {
		t.Fatal(err)
	}
	controllertest.PlayDir(t, "testdata/template", func(env controller.Env) (*controller.Loop, error) {
		return persistentvolume.New(env, persistentvolume.Recyclers{
			HostPath: persistentvolume.Recycler{Template: pod, Least: 5, EachGiB: 7}})
	})
}

// In these, snapshot s is at node n1, nobody tells where anywhere is, and others are
// not there.
func TestSnapshotScenarios(t *testing.T) {
	controllertest.PlayDir(t, "testdata/snapshots", func(env controller.Env) (*controller.Loop, error) {
		env.Client = withSnapshots{env.Client}
		return build(env)
	})
}

type withSnapshots struct{ kubernetes.Interface }

// Discovery implements kubernetes.Interface.
func (c withSnapshots) Discovery() discovery.DiscoveryInterface {
	return extension{c.Interface.Discovery()}
}

type extension struct{ discovery.DiscoveryInterface }

// RESTClient implements discovery.DiscoveryInterface.
func (extension) RESTClient() rest.Interface {
	const content = `"spec": {"driver": "local.shoal-project.io", "volumeSnapshotRef": {"uid": "u"}}}`
	const snapshot = `{"metadata": {"uid": "u"}, "status": {"boundVolumeSnapshotContentName": `
	objects := map[string]string{
		"namespaces/a/volumesnapshots/s": snapshot + `"of-s"}}`,
		"volumesnapshotcontents/of-s": `{"metadata": {"labels": {"snapshot.storage.kubernetes.io/managed-by": "n1"}}, ` +
			content,
		"namespaces/a/volumesnapshots/anywhere": snapshot + `"x"}}`,
		"volumesnapshotcontents/x":              `{` + content,
	}
	return &restfake.RESTClient{
		NegotiatedSerializer: scheme.Codecs,
		Client: restfake.CreateHTTPClient(func(r *http.Request) (*http.Response, error) {
			text, ok := objects[strings.TrimPrefix(r.URL.Path, "/apis/snapshot.storage.k8s.io/v1/")]
			status := http.StatusOK
			if !ok {
				status = http.StatusNotFound
			}
			return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(text))}, nil
		}),
	}
}
