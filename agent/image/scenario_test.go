package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/shoal-project/shoal/tests/transcript"
)

// TestScenarios plays the files of testdata: lives of images. A line "> command" is
// done, and the lines up to the next one are what came of it.
//
//	registry NAME has FILE...  its image NAME:1 is one with a layer for each of the files
//	registry NAME goes|comes   whether it answers
//	pull NAME
//	archive FILE of NAME       an archive of the registry's image is put into the directory of archives
//	archive FILE is cut        half of it
//	import                     what is in that directory
//	list                       the images and their names
//	use NAME                   a container uses its layers
//	unuse NAME
//	remove NAME
//	layers                     how many are on the disk
//	store restarts|breaks      the agent's; "breaks": its database is damaged meanwhile
//
// Images are told by the files in them. After a wanted change:
// go test ./agent/image -update, and read the diff.
func TestScenarios(t *testing.T) {
	transcript.Files(t, "testdata/*.txt", func(t *testing.T, text string) string { return newRig(t).play(text) })
}

// rig is a node's images, with registries to pull from.
type rig struct {
	t          *testing.T
	dir        string
	store      *Store
	registries map[string]*rogue
	files      map[string]string // image ID -> the files in it
	used       map[string]bool   // chain IDs
}

func newRig(t *testing.T) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root unpacks the layers of an image with their owners")
	}
	r := &rig{
		t:          t,
		dir:        t.TempDir(),
		registries: map[string]*rogue{},
		files:      map[string]string{},
		used:       map[string]bool{},
	}
	r.open()
	t.Cleanup(func() {
		if err := r.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) open() {
	r.t.Helper()
	var err error
	r.store, err = Open(r.t.Context(), Config{Dir: filepath.Join(r.dir, "store"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) play(script string) string {
	return transcript.Play(script, func(command string) string {
		text, err := r.do(strings.Fields(command))
		if err != nil {
			text += "error: " + err.Error() + "\n"
		}
		return r.plain(text)
	})
}

// plain says names where there are addresses and digests.
func (r *rig) plain(text string) string {
	for name, registry := range r.registries {
		host, _, _ := strings.Cut(registry.name(), "/")
		text = strings.ReplaceAll(text, host+"/lib/x", name)
		text = strings.ReplaceAll(text, host, name)
	}
	return digests.ReplaceAllString(strings.ReplaceAll(text, r.dir, "DIR"), "DIGEST")
}

var digests = regexp.MustCompile(`[0-9a-f]{64}`)

func (r *rig) do(words []string) (string, error) {
	r.t.Helper()
	switch what := words[0]; what {
	case "registry":
		r.registry(words[1], words[2], words[3:])
	case "pull":
		id, err := r.store.Pull(r.t.Context(), r.registries[words[1]].name(), nil)
		if err != nil {
			return "", err
		}
		return "it is " + r.files[id] + "\n", nil
	case "archive":
		return "", r.archive(words)
	case "import":
		return "", r.store.ImportDir(r.t.Context(), filepath.Join(r.dir, "archives"))
	case "list":
		return r.list(), nil
	case "use", "unuse":
		return "", r.use(words[1], what == "use")
	case "remove":
		inUse := func(chain string) bool { return r.used[chain] }
		return "", r.store.Remove(r.t.Context(), r.reference(words[1]), inUse)
	case "layers":
		layers, err := filepath.Glob(filepath.Join(r.dir, "store", "snapshots", "snapshots", "*", "fs", "*"))
		names := []string{}
		for _, l := range layers {
			names = append(names, filepath.Base(l))
		}
		if len(names) == 0 {
			return "none\n", err
		}
		slices.Sort(names)
		return strings.Join(names, " ") + "\n", err
	case "store":
		r.restart(words[1])
	default:
		r.t.Fatalf("command %q", words)
	}
	return "", nil
}

// reference is an image's name as its users say it.
func (r *rig) reference(name string) string {
	if registry := r.registries[name]; registry != nil {
		return registry.name()
	}
	return name
}

func (r *rig) registry(name, verb string, files []string) {
	registry := r.registries[name]
	switch {
	case registry == nil:
		registry = newRogue(r.t)
		r.registries[name] = registry
	case verb == "goes":
		registry.away.Store(true)
		return
	case verb == "comes":
		registry.away.Store(false)
		return
	}
	var layers [][]byte
	for _, f := range files {
		layers = append(layers, layer(r.t, &tar.Header{Name: f, Typeflag: tar.TypeReg, Size: 10}))
	}
	registry.image(r.t, nil, layers...)
	r.files[registry.config.String()] = strings.Join(files, "+")
}

// archive writes an OCI layout.
func (r *rig) archive(words []string) error {
	path := filepath.Join(r.dir, "archives", words[1])
	if words[2] == "is" {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		return os.Truncate(path, info.Size()/2)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, r.registries[words[3]].layout(r.t), 0o600)
}

func (r *rig) list() string {
	var lines []string
	for _, i := range r.store.List() {
		var names []string
		for _, t := range i.Tags {
			names = append(names, r.plain(t))
		}
		for _, d := range i.Digests {
			name, _, _ := strings.Cut(d, "@")
			names = append(names, r.plain(name+"@"))
		}
		slices.Sort(names)
		if i.Pinned {
			names = append(names, "(pinned)")
		}
		lines = append(lines, fmt.Sprintf("%s: %s\n", r.files[i.ID], strings.Join(names, " ")))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func (r *rig) use(name string, used bool) error {
	if !used {
		for chain := range r.used {
			delete(r.used, chain)
			if err := r.store.ReleaseUnused(r.t.Context(), chain); err != nil {
				return err
			}
		}
		return nil
	}
	img, err := r.store.Find(r.reference(name))
	if err != nil {
		return err
	}
	r.used[img.ChainID] = true
	_, err = r.store.Lower(r.t.Context(), img.ChainID)
	return err
}

func (r *rig) restart(how string) {
	if err := r.store.Close(); err != nil {
		r.t.Error(err)
	}
	if how == "breaks" {
		database := filepath.Join(r.dir, "store", "meta.db")
		if err := os.WriteFile(database, []byte("no database"), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	r.open()
}

// lateList is a store of names whose first list is handed over late.
type lateList struct {
	images.Store
	listed  chan struct{} // closed when the first list was read
	later   chan struct{} // closed when it may be handed over
	another atomic.Bool
}

func (l *lateList) List(ctx context.Context, filters ...string) ([]images.Image, error) {
	list, err := l.Store.List(ctx, filters...)
	if l.another.CompareAndSwap(false, true) {
		close(l.listed)
		select {
		case <-l.later:
		case <-time.After(300 * time.Millisecond): // nobody else lists until then
		}
	}
	return list, err
}

// TestTwoAtOnce: an image that comes while the index is read for another is known
// afterwards.
func TestTwoAtOnce(t *testing.T) {
	r := newRig(t)
	r.registry("a", "has", []string{"one"})
	r.registry("b", "has", []string{"two"})
	late := &lateList{Store: r.store.images, listed: make(chan struct{}), later: make(chan struct{})}
	r.store.images = late
	pulled := make(chan error, 1)
	go func() {
		_, err := r.store.Pull(t.Context(), r.registries["a"].name(), nil)
		pulled <- err
	}()
	<-late.listed
	_, err := r.store.Pull(t.Context(), r.registries["b"].name(), nil)
	close(late.later)
	if err := errors.Join(err, <-pulled); err != nil {
		t.Fatal(err)
	}
	if got := r.plain(r.list()); got != "one: a:1 a@\ntwo: b:1 b@\n" {
		t.Errorf("got %s", got)
	}
}
