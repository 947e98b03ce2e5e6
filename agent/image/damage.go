package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
)

// checkDatabase reads all of a database before a library opens it whose panics would end
// the agent, some of them in goroutines of its own. One that is missing is made anew.
func checkDatabase(path string) (err error) {
	if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	defer func() { // the database library panics on some damaged pages
		if p := recover(); p != nil {
			err = fmt.Errorf("%s is damaged: %v", path, p)
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // pages that a file was cut off before
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait, ReadOnly: true})
	if errors.Is(err, bolt.ErrTimeout) {
		return ErrInUse
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	return errors.Join(db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return readBucket(b) })
	}), db.Close())
}

// checkFreePages opens a database that keeps the list of its free pages as its library will.
func checkFreePages(path string) (err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s is damaged: %v", path, p)
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait})
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	return db.Close()
}

func readBucket(b *bolt.Bucket) error {
	return b.ForEach(func(k, v []byte) error {
		if child := b.Bucket(k); v == nil && child != nil {
			return readBucket(child)
		}
		return nil
	})
}

// checkWhole tells whether layers are on the disk of which a database knows nothing, because
// it is gone. New ones could not take their places.
func checkWhole(dir string) error {
	layers, err := os.ReadDir(filepath.Join(dir, "snapshots", "snapshots"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(layers) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range []string{"meta.db", filepath.Join("snapshots", "metadata.db")} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return err
		} else if info.Size() == 0 {
			return fmt.Errorf("%s is empty", filepath.Join(dir, name))
		}
	}
	return nil
}

// checkBlobs tells whether blobs can be kept in dir.
func checkBlobs(dir string) error {
	for _, d := range []string{dir, filepath.Join(dir, "blobs"), filepath.Join(dir, "blobs", "sha256")} {
		if info, err := os.Stat(d); err == nil && !info.IsDir() {
			return fmt.Errorf("%s is no directory", d)
		}
	}
	return nil
}

// checkLayers tells whether the layers of the images that are there are on the disk, as far
// as their directories tell.
func (s *Store) checkLayers(ctx context.Context) error {
	ctx = namespaces.WithNamespace(ctx, namespace)
	for _, i := range s.List() {
		if i.ChainID == "" {
			continue
		}
		if _, err := s.snaps.Stat(ctx, i.ChainID); err != nil {
			return fmt.Errorf("layers of image %s: %w", i.ID, err)
		}
		mounts, err := s.snaps.Mounts(ctx, viewKey(i.ChainID))
		if errdefs.IsNotFound(err) {
			continue // it is made when it is used
		}
		if err != nil {
			return fmt.Errorf("layers of image %s: %w", i.ID, err)
		}
		for _, dir := range layerDirs(mounts) {
			if info, err := os.Stat(dir); err != nil {
				return fmt.Errorf("layers of image %s: %w", i.ID, err)
			} else if !info.IsDir() {
				return fmt.Errorf("layers of image %s: %s is no directory", i.ID, dir)
			}
		}
	}
	return nil
}

// smallBlob is up to which size blobs are read at the start: what describes images. Layers
// are read when they are unpacked, or given to other nodes, who look at what they get.
const smallBlob = 1 << 20

// forgetDamaged has blobs that are not what their names say, or are not there, written again
// by the next pull or import, for which they would be there otherwise. It comes before these
// begin.
func (s *Store) forgetDamaged(ctx context.Context) error {
	ctx = namespaces.WithNamespace(ctx, namespace)
	damaged := map[digest.Digest]error{}
	if err := s.content.Walk(ctx, func(i content.Info) error {
		if err := checkFile(filepath.Join(s.cfg.Dir, "content", "blobs"), i); err != nil {
			damaged[i.Digest] = err
		}
		return nil
	}); err != nil {
		return fmt.Errorf("look at blobs: %w", err)
	}
	for name, cause := range damaged {
		s.cfg.Log.Error("a blob of an image is damaged, and is pulled or imported again when it is needed",
			"blob", name, "err", cause)
		for _, err := range []error{s.content.Delete(ctx, name), s.transit.Delete(ctx, name)} {
			if err != nil && !errdefs.IsNotFound(err) {
				return fmt.Errorf("remove damaged blob %s: %w", name, err)
			}
		}
	}
	return nil
}

// checkFile compares a file with what is known of it. One that the disk does not give is
// damaged.
func checkFile(dir string, i content.Info) error {
	path := filepath.Join(dir, i.Digest.Algorithm().String(), i.Digest.Encoded())
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("it is no file")
	case info.Size() != i.Size:
		return fmt.Errorf("it has %d bytes, not %d", info.Size(), i.Size)
	case i.Size > smallBlob:
		return nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if i.Digest.Algorithm().FromBytes(data) != i.Digest {
		return errors.New("it has another digest")
	}
	return nil
}
