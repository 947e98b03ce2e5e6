package persistentvolume_test

import (
	"io"
	"net/http"
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

func TestScenarios(t *testing.T) { controllertest.Play(t, persistentvolume.New) }

// In these, snapshot s is at node n1, nobody tells where anywhere is, and others are
// not there.
func TestSnapshotScenarios(t *testing.T) {
	controllertest.PlayDir(t, "testdata/snapshots", func(env controller.Env) (*controller.Loop, error) {
		env.Client = withSnapshots{env.Client}
		return persistentvolume.New(env)
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
