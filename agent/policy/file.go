package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/shoal-project/shoal/agent/policyfeed"
)

// The file is the stream itself: a state, and the changes since. Changes cost a line
// until they are as many as what there is.

const (
	// saveAfter gathers changes before they are written: what a power cut may take.
	saveAfter = 200 * time.Millisecond
	// appendMost is how many changes are added before the file is written anew, if there
	// are fewer objects than that; else as many as there are.
	appendMost = 1000
)

// recorder is what is known of the file.
type recorder struct {
	path string
	log  *slog.Logger

	unsaved  []*policyfeed.Update
	restored bool // the file was there and read
	whole    bool // it holds all but unsaved
	added    int  // changes in it since it was written anew
	failing  bool // it was told that it cannot be written
}

// pause is how long changes gather; a full disk is not tried at once again.
func (r *recorder) pause() time.Duration {
	if r.failing {
		return retryMax
	}
	return saveAfter
}

// restore takes the state of the file, which counts after settle.
func (e *Engine) restore() {
	if e.cfg.File == "" {
		return
	}
	group, err := readFile(e.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		e.log.Warn("the last known network policies are lost; waiting for a coordinator", "file", e.cfg.File, "err", err)
		return
	}
	e.take(group, recorded)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.record.restored = true
}

// readFile reads what counts. A last line that a power cut left incomplete is as if it
// had not been written.
func readFile(path string) (out []*policyfeed.Update, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := policyfeed.NewReader(f)
	var group []*policyfeed.Update
	for {
		u, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if _, after := r.Read(); errors.Is(after, io.EOF) && len(out) > 0 {
				break
			}
			return nil, err
		}
		if group = append(group, u); !u.More {
			out, group = append(out, group...), nil
		}
	}
	if len(out) == 0 {
		return nil, errors.New("it holds no state")
	}
	return out, nil
}

func (e *Engine) toSave() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cfg.File != "" && len(e.record.unsaved) > 0
}

// save brings the file up to date.
func (e *Engine) save() {
	if !e.toSave() {
		return
	}
	e.mu.Lock()
	r := &e.record
	list, count, anew := r.unsaved, 0, !r.whole
	r.unsaved = nil
	for _, u := range list {
		count += u.Count()
		anew = anew || u.Reset
	}
	world := e.compiler.world
	if anew = anew || r.added+count > max(appendMost, len(world.Pods)); anew {
		list, count = snapshot(world, e.pending), 0
	}
	e.mu.Unlock()

	err := r.write(list, anew)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		if anew {
			r.added = 0
		}
		r.added += count
		r.whole, r.failing = true, false
		return
	}
	r.whole = false // all is written the next time that something changes
	r.unsaved = append(r.unsaved, &policyfeed.Update{Reset: true})
	if !r.failing {
		r.log.Warn("cannot keep network policies for a start without a coordinator, trying on", "err", err)
	}
	r.failing = true
}

// snapshot is a world with what is pending, as a coordinator tells it.
func snapshot(w *World, pending delta) []*policyfeed.Update {
	b := policyfeed.NewBatch(policyfeed.Update{Reset: true})
	merged := w.Clone()
	for k, p := range pending.policies {
		if delete(merged.Policies, k); p != nil {
			merged.Policies[k] = p
		}
	}
	for name, p := range pending.cluster {
		if delete(merged.Cluster, name); p != nil {
			merged.Cluster[name] = p
		}
	}
	for k, p := range pending.namespaces {
		if delete(merged.Namespaces, k); p != nil {
			merged.Namespaces[k] = p.Labels
		}
	}
	for k, p := range pending.pods {
		if delete(merged.Pods, k); p != nil {
			merged.Pods[k] = p
		}
	}
	for _, p := range merged.Policies {
		u := b.Line(p)
		u.Policies = append(u.Policies, *p)
	}
	for _, p := range merged.Cluster {
		u := b.Line(p)
		u.ClusterPolicies = append(u.ClusterPolicies, *p)
	}
	for name, labels := range merged.Namespaces {
		n := policyfeed.Namespace{Name: name, Labels: labels}
		u := b.Line(n)
		u.Namespaces = append(u.Namespaces, n)
	}
	for id, p := range merged.Pods {
		if id.UID == "" {
			u := b.Line(p)
			u.Pods = append(u.Pods, *p)
		}
	}
	return b.Lines
}

// write replaces the file in one step, or adds to it.
func (r *recorder) write(list []*policyfeed.Update, anew bool) error {
	var f *os.File
	var err error
	if anew {
		f, err = os.CreateTemp(filepath.Dir(r.path), "."+filepath.Base(r.path)+"-*")
	} else {
		f, err = os.OpenFile(r.path, os.O_WRONLY|os.O_APPEND, 0)
	}
	if err != nil {
		return fmt.Errorf("write network policies: %w", err)
	}
	for _, u := range list {
		var b bytes.Buffer
		if err = json.NewEncoder(&b).Encode(u); err == nil {
			_, err = f.Write(b.Bytes())
		}
		if err != nil {
			break
		}
	}
	err = errors.Join(err, f.Sync(), f.Close())
	if anew && err == nil {
		err = os.Rename(f.Name(), r.path)
	}
	if err != nil {
		if anew {
			_ = os.Remove(f.Name())
		}
		return fmt.Errorf("write network policies: %w", err)
	}
	return nil
}
