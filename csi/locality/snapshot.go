package locality

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ManagedBy is the label of the content of a snapshot that names the node whose driver
// has it, where each node has one of its own.
const ManagedBy = "snapshot.storage.kubernetes.io/managed-by"

// SnapshotNode is the node that has a snapshot, "" where the API does not tell. get
// reads an object of the API as JSON.
func SnapshotNode(get func(path string) ([]byte, error), namespace, name string) (string, error) {
	const objects = "/apis/" + SnapshotGroup + "/v1/"
	var snapshot struct {
		Metadata struct{ UID string }
		Status   struct {
			Content string `json:"boundVolumeSnapshotContentName"`
		}
	}
	if err := read(get, objects+"namespaces/"+namespace+"/volumesnapshots/"+name, &snapshot); err != nil {
		return "", fmt.Errorf("read snapshot %s: %w", name, err)
	}
	if snapshot.Status.Content == "" {
		return "", fmt.Errorf("snapshot %s is not bound yet", name)
	}
	var content struct {
		Metadata struct{ Labels map[string]string }
		Spec     struct {
			Driver string
			Of     struct{ UID string } `json:"volumeSnapshotRef"`
		}
	}
	if err := read(get, objects+"volumesnapshotcontents/"+snapshot.Status.Content, &content); err != nil {
		return "", fmt.Errorf("read the content of snapshot %s: %w", name, err)
	}
	switch {
	case content.Spec.Driver != Driver:
		return "", fmt.Errorf("snapshot %s is one of driver %s, not of %s", name, content.Spec.Driver, Driver)
	case content.Spec.Of.UID != snapshot.Metadata.UID:
		return "", fmt.Errorf("content %s is bound to another snapshot than %s", snapshot.Status.Content, name)
	}
	return content.Metadata.Labels[ManagedBy], nil
}

var errNotJSON = errors.New("its JSON is not as expected")

func read(get func(path string) ([]byte, error), path string, into any) error {
	raw, err := get(path)
	if err == nil && json.Unmarshal(raw, into) != nil {
		err = errNotJSON
	}
	return err
}
