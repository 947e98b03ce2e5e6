package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A record is written whenever its sandbox changes. It is replaced in one
// step, so a killed agent leaves the old or the new one. It is not forced to
// the disk: after a power failure the processes it is about are gone too, and
// a record that did not reach the disk leaves only files that Cleanup and the
// next start sweep.
type record struct {
	Sandbox
	Config []byte // the CRI message
}

func save(dir string, s *Sandbox) error {
	config, err := proto.Marshal(s.Config)
	if err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	r := record{Sandbox: *s, Config: config}
	r.Sandbox.Config = nil
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	file := filepath.Join(dir, s.ID+".json")
	if err := os.WriteFile(file+".tmp", b, 0o600); err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	return os.Rename(file+".tmp", file)
}

// load reads all records; one that cannot be read is moved aside with a
// message, and what it was about is swept.
func load(dir string, log *slog.Logger) ([]*Sandbox, error) {
	unfinished, err := filepath.Glob(filepath.Join(dir, "*.json.tmp"))
	if err != nil {
		return nil, err
	}
	for _, f := range unfinished { // of an agent that was killed while it wrote
		if err := os.Remove(f); err != nil {
			return nil, err
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var out []*Sandbox
	for _, f := range files {
		s, err := read(f)
		if err != nil {
			log.Error("a sandbox record is damaged; it has been moved aside and its pod is started anew", "file", f, "err", err)
			_ = os.Rename(f, f+".damaged")
			continue
		}
		out = append(out, s)
	}
	return out, nil
}

func read(file string) (*Sandbox, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, err
	}
	s := r.Sandbox
	s.Config = &cri.PodSandboxConfig{}
	if err := proto.Unmarshal(r.Config, s.Config); err != nil {
		return nil, err
	}
	if s.ID == "" || s.ID+".json" != filepath.Base(file) {
		return nil, errors.New("the record is about something else")
	}
	return &s, nil
}

func forget(dir, id string) error {
	err := os.Remove(filepath.Join(dir, id+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
