package sandbox

import (
	"encoding/json"

	"google.golang.org/protobuf/proto"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const damagedRecord = "a sandbox record is damaged; it has been moved aside and its pod is started anew"

// record is a Sandbox as it is kept, written whenever the sandbox changes.
type record struct{ *Sandbox }

type recordFile struct {
	Sandbox
	Config []byte // the CRI message
}

// MarshalJSON writes the CRI message as protobuf.
func (r record) MarshalJSON() ([]byte, error) {
	config, err := proto.Marshal(r.Config)
	if err != nil {
		return nil, err
	}
	f := recordFile{Sandbox: *r.Sandbox, Config: config}
	f.Sandbox.Config = nil
	return json.Marshal(f)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (r *record) UnmarshalJSON(b []byte) error {
	var f recordFile
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	r.Sandbox = &f.Sandbox
	r.Config = &criv1.PodSandboxConfig{}
	return proto.Unmarshal(f.Config, r.Config)
}
