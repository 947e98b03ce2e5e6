package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// state is the file's content: the objects without what the tables do not need.
type state struct {
	Services []*corev1.Service            `json:"services"`
	Slices   []*discoveryv1.EndpointSlice `json:"endpointSlices"`
}

// readFile returns nil without an error when there is no file.
func readFile(path string) (*state, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Services: %w", err)
	}
	var st state
	if err := json.Unmarshal(b, &st); err != nil {
		return nil, fmt.Errorf("read Services: %w", err)
	}
	return &st, nil
}

// writeFile replaces the file in one step.
func writeFile(path string, st *state) error {
	b, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("write Services: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write Services: %w", err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write Services: %w", err)
	}
	return nil
}
