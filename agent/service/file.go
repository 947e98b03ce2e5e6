package service

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// state is one line of the file: objects that are new or changed, without what
// the tables do not need, and the names of those that are gone. A later line
// outdoes the earlier ones, so that a change costs a line and not a file.
type state struct {
	Services     []*corev1.Service            `json:"services,omitempty"`
	Slices       []*discoveryv1.EndpointSlice `json:"endpointSlices,omitempty"`
	GoneServices []Key                        `json:"goneServices,omitempty"`
	GoneSlices   []Key                        `json:"goneEndpointSlices,omitempty"`
}

// readFile returns nil without an error when there is no file. A last line that
// a power cut left incomplete is as if it had not been written.
func readFile(path string) (*state, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Services: %w", err)
	}
	defer f.Close()
	services, slcs := map[Key]*corev1.Service{}, map[Key]*discoveryv1.EndpointSlice{}
	r := bufio.NewReader(f)
	for n := 0; ; n++ {
		line, err := r.ReadBytes('\n')
		ended := errors.Is(err, io.EOF)
		if err != nil && !ended {
			return nil, fmt.Errorf("read Services: %w", err)
		}
		if ended && n > 0 {
			break
		}
		var st state
		if err := json.Unmarshal(line, &st); err != nil {
			return nil, fmt.Errorf("read Services: line %d: %w", n+1, err)
		}
		for _, k := range st.GoneServices {
			delete(services, k)
		}
		for _, k := range st.GoneSlices {
			delete(slcs, k)
		}
		for _, o := range st.Services {
			services[keyOf(o)] = o
		}
		for _, o := range st.Slices {
			slcs[keyOf(o)] = o
		}
		if ended {
			break
		}
	}
	all := &state{}
	for _, o := range services {
		all.Services = append(all.Services, o)
	}
	for _, o := range slcs {
		all.Slices = append(all.Slices, o)
	}
	return all, nil
}

// writeFile replaces the file in one step by lines, at least one.
func writeFile(path string, lines func(yield func(*state) bool)) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write Services: %w", err)
	}
	enc := json.NewEncoder(f)
	for st := range lines {
		if err = enc.Encode(st); err != nil {
			break
		}
	}
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

// appendFile adds a line to the file, which must exist.
func appendFile(path string, st *state) error {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(st); err != nil {
		return fmt.Errorf("write Services: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("write Services: %w", err)
	}
	_, err = f.Write(b.Bytes())
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write Services: %w", err)
	}
	return nil
}

const (
	// lineMost is the most objects of a kind in one line: what encoding takes
	// in memory.
	lineMost = 256
	// appendMost is how many changes are added before the file is written
	// anew, if it holds fewer objects than that; else as many as it holds.
	appendMost = 1000
)

func (s *Source) toSave() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg.File != "" && s.synced() && len(s.unsaved[serviceKind])+len(s.unsaved[sliceKind]) > 0
}

// save brings the file up to date. One goroutine calls it.
func (s *Source) save() {
	s.mu.Lock()
	ids := s.unsaved
	s.unsaved = [kinds]map[Key]bool{{}, {}}
	n := len(ids[serviceKind]) + len(ids[sliceKind])
	anew := !s.inFile || s.added+n > max(appendMost, len(s.services)+len(s.owner))
	if anew {
		ids = [kinds]map[Key]bool{{}, {}}
		for k := range s.services {
			ids[serviceKind][k] = true
		}
		for k := range s.owner {
			ids[sliceKind][k] = true
		}
	}
	s.mu.Unlock()
	var err error
	if anew {
		err = writeFile(s.cfg.File, s.lines(ids))
		n, s.added = 0, 0
	} else {
		for st := range s.lines(ids) {
			if err = appendFile(s.cfg.File, st); err != nil {
				break // a half line is as if not written, but for one behind it
			}
		}
	}
	s.added += n
	if err == nil {
		s.inFile, s.failing = true, false
		return
	}
	s.inFile = false // all is written the next time
	s.mu.Lock()
	for kind := range ids {
		maps.Copy(s.unsaved[kind], ids[kind])
	}
	s.mu.Unlock()
	if !s.failing {
		s.log.Warn("cannot keep Services for a start without the API server, trying on", "err", err)
	}
	s.failing = true
}

// lines encodes objects as they are now, some at a time.
func (s *Source) lines(ids [kinds]map[Key]bool) func(yield func(*state) bool) {
	return func(yield func(*state) bool) {
		st, n := &state{}, 0
		for kind := range ids {
			for k := range ids[kind] {
				s.mu.Lock()
				s.put(st, kind, k)
				s.mu.Unlock()
				if n++; n%lineMost == 0 {
					if !yield(st) {
						return
					}
					st = &state{}
				}
			}
		}
		yield(st)
	}
}

// put adds an object as it is now to a line, or its name when it is gone; the
// lock is held.
func (s *Source) put(st *state, kind int, k Key) {
	switch kind {
	case serviceKind:
		if o := s.service(k); o != nil {
			st.Services = append(st.Services, o)
		} else {
			st.GoneServices = append(st.GoneServices, k)
		}
	case sliceKind:
		if o := s.slice(k); o != nil {
			st.Slices = append(st.Slices, o)
		} else {
			st.GoneSlices = append(st.GoneSlices, k)
		}
	}
}
