package upgrade

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Phase is how far an upgrade is. It is on the disk before its deeds begin.
type Phase string

// The phases, in their order:
//
//	Prepared ─► Stopping ─► Switching ─► Watching ─► Done
//	               │            └──────────┴──► Returning ─► Returned
//	               └───────────────────────────────────────────► or Failed
const (
	// Prepared: nothing of the machine was touched.
	Prepared Phase = "prepared"
	// Stopping: the coordinator is stopped, and its store copied.
	Stopping Phase = "stopping"
	// Switching: the package is replaced.
	Switching Phase = "switching"
	// Watching: the new programs run, and are not yet known to be well.
	Watching Phase = "watching"
	// Returning: the old package comes back.
	Returning Phase = "returning"
	// Done and Returned are the two ends. Failed is neither: a person is needed.
	Done     Phase = "done"
	Returned Phase = "returned"
	Failed   Phase = "failed"
)

// Over holds for an upgrade that nobody has to go on with.
func (p Phase) Over() bool { return p == Done || p == Returned || p == Failed }

// Record is what is known of an upgrade.
type Record struct {
	Phase Phase `json:"phase"`
	// ID is the wish's that it is for; empty of one that was begun on this machine.
	ID string `json:"id,omitempty"`
	// From and To are versions as the programs tell them: v1.36.3+shoal.
	From string `json:"from"`
	To   string `json:"to"`
	// New and Old are the packages' files.
	New string `json:"new"`
	Old string `json:"old"`
	// Config is the agent's configuration file.
	Config string `json:"config,omitempty"`
	// Node is this machine's, empty where no agent ran; Containers are those that were
	// ready, by their pod's UID and their name.
	Node       string            `json:"node,omitempty"`
	Containers map[string]string `json:"containers,omitempty"`
	// Units are those that ran, in the order in which they start.
	Units []string `json:"units,omitempty"`
	// Boot is the machine's, as the upgrade began: in another one it is not gone on
	// with, only undone.
	Boot string `json:"boot"`
	// Alone: the coordinator's store has no other member, and may be put back.
	Alone bool `json:"alone,omitempty"`
	// Kept: the copy of the store is whole.
	Kept bool `json:"kept,omitempty"`
	// Served: the new coordinator was ready, so that clients may know what it wrote.
	Served bool `json:"served,omitempty"`
	// Store tells which store a return went back to: "kept" or "old".
	Store string `json:"store,omitempty"`
	// Why is the reason of a return, or of a failure.
	Why   string    `json:"why,omitempty"`
	Begun time.Time `json:"begun"`
	Ended time.Time `json:"ended,omitzero"`
	// Tried is how long the new programs had, Back how long the return took.
	Tried float64 `json:"triedSeconds,omitempty"`
	Back  float64 `json:"backSeconds,omitempty"`
}

// Dir holds the record and what an upgrade needs; only root may read it.
type Dir string

// Path of a file in it.
func (d Dir) Path(name string) string { return filepath.Join(string(d), name) }

const recordFile = "record.json"

// maxRecord is more than any record has.
const maxRecord = 4 << 20

// Load returns nil where there never was an upgrade.
func (d Dir) Load() (*Record, error) {
	f, err := os.Open(d.Path(recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the upgrade's record: %w", err)
	}
	defer f.Close()
	r := &Record{}
	if err := json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(r); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", f.Name(), err)
	}
	return r, nil
}

// Save has the record on the disk, whole, when it returns.
func (d Dir) Save(r *Record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := WriteFile(d.Path(recordFile), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the upgrade's record: %w", err)
	}
	return nil
}

// WriteFile replaces a file so that after a power cut it is the old or the new one.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir has the names in a directory on the disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
