package container

import (
	"encoding/json"

	"google.golang.org/protobuf/proto"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const damagedRecord = "a container record is damaged; it has been moved aside and the container is started anew"

// record is a Container as it is kept, written whenever the container changes.
type record struct{ *Container }

type recordFile struct {
	Container
	Config []byte // the CRI message
}

// MarshalJSON writes the CRI message as protobuf, without what its process is
// given: that may be a Secret's, and is in the bundle for as long as it is used.
func (r record) MarshalJSON() ([]byte, error) {
	message := cloneConfig(r.Config)
	message.Envs, message.Command, message.Args = nil, nil, nil
	config, err := proto.Marshal(message)
	if err != nil {
		return nil, err
	}
	f := recordFile{Container: *r.Container, Config: config}
	f.Container.Config = nil
	return json.Marshal(f)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (r *record) UnmarshalJSON(b []byte) error {
	var f recordFile
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	r.Container = &f.Container
	r.Config = &criv1.ContainerConfig{}
	return proto.Unmarshal(f.Config, r.Config)
}
