package oci

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Filters keeps what crun translated of seccomp profiles, so that it does each profile
// once: with libseccomp that is more than half of its processor time at a container's
// start (6 of 11 ms with the default profile). crun leaves its translation in its state
// directory, and takes one in the place of a profile's rules (crun(1),
// run.oci.seccomp_bpf_data); versions that do not know this annotation translate as ever.
//
// A newer libseccomp has its say when the agent starts again.
type Filters struct {
	mu    sync.Mutex
	known []filter // most recently used last
}

// Profile identifies a seccomp profile as one runtime translates it; "" is none.
type Profile string

type filter struct {
	of   Profile
	data string // base64 of the program
}

const (
	filterAnnotation = "run.oci.seccomp_bpf_data"
	// filtersKept is for many profiles: each set of capabilities makes one of the default.
	filtersKept = 32
	// A program has up to 4096 instructions of 8 bytes (BPF_MAXINSNS, seccomp(2)).
	instruction = 8
	filterMax   = 4096 * instruction
)

// Use gives the specification the translation of its profile. If there is none it returns
// the profile, to be learned once a container of it was created.
func (f *Filters) Use(rt Runtime, s *specs.Spec) Profile {
	p := s.Linux.Seccomp
	if filepath.Base(rt.Path) != "crun" || p == nil || p.ListenerPath != "" || s.Annotations[filterAnnotation] != "" {
		return ""
	}
	b, err := json.Marshal(p)
	if err != nil {
		return ""
	}
	sum := sha256.New()
	io.WriteString(sum, rt.Installed()+"\x00")
	sum.Write(b)
	of := Profile(sum.Sum(nil))
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.find(of)
	if i < 0 {
		return of
	}
	found := f.known[i]
	f.known = append(slices.Delete(f.known, i, i+1), found)
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[filterAnnotation] = found.data
	return ""
}

// Learn keeps the translation that the runtime made for a container with this profile.
func (f *Filters) Learn(rt Runtime, id string, of Profile) {
	if of == "" {
		return
	}
	file, err := os.Open(filepath.Join(rt.StateDir(id), "seccomp.bpf"))
	if err != nil {
		return // a crun without libseccomp
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, filterMax+1))
	if err != nil || len(b) == 0 || len(b) > filterMax || len(b)%instruction != 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.find(of) >= 0 {
		return
	}
	if len(f.known) == filtersKept {
		f.known = slices.Delete(f.known, 0, 1)
	}
	f.known = append(f.known, filter{of: of, data: base64.StdEncoding.EncodeToString(b)})
}

// find needs f.mu.
func (f *Filters) find(of Profile) int {
	return slices.IndexFunc(f.known, func(k filter) bool { return k.of == of })
}
