package locality

import (
	"errors"
	"strings"
	"testing"
)

func TestSnapshotNode(t *testing.T) {
	const bound = `{"metadata": {"uid": "u"}, "status": {"boundVolumeSnapshotContentName": "c"}}`
	const here = `{"metadata": {"labels": {"snapshot.storage.kubernetes.io/managed-by": "n1"}},
		"spec": {"driver": "local.shoal-project.io", "volumeSnapshotRef": {"uid": "u"}}}`
	for name, tt := range map[string]struct{ snapshot, content, node, err string }{
		"known":       {snapshot: bound, content: here, node: "n1"},
		"not told":    {snapshot: bound, content: strings.Replace(here, "managed-by", "x", 1)},
		"missing":     {err: "read snapshot s: not found"},
		"waiting":     {snapshot: `{"metadata": {"uid": "u"}}`, err: "snapshot s is not bound yet"},
		"no content":  {snapshot: bound, err: "read the content of snapshot s: not found"},
		"no JSON":     {snapshot: "[", err: "read snapshot s: its JSON is not as expected"},
		"another's":   {snapshot: bound, content: strings.Replace(here, `"u"`, `"v"`, 1), err: "bound to another snapshot"},
		"of a driver": {snapshot: bound, content: strings.Replace(here, "local.", "x.", 1), err: "is one of driver x."},
	} {
		node, err := SnapshotNode(func(path string) ([]byte, error) {
			text := map[string]string{
				"/apis/snapshot.storage.k8s.io/v1/namespaces/ns/volumesnapshots/s": tt.snapshot,
				"/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/c":        tt.content,
			}[path]
			if text == "" {
				return nil, errors.New("not found")
			}
			return []byte(text), nil
		}, "ns", "s")
		if node != tt.node || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %q, %v", name, node, err)
		}
	}
}
