package image

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
)

// A view is one read-only snapshot for each image that is in use. All
// containers of the image share its layers and have their writable layer
// elsewhere, so that starting one touches no database.
func viewKey(chainID string) string { return "view/" + chainID }

// Lower returns the directories of an image's layers, top first, and keeps
// them from garbage collection until Release.
func (s *Store) Lower(ctx context.Context, chainID string) ([]string, error) {
	s.mu.RLock()
	dirs, ok := s.lower[chainID]
	s.mu.RUnlock()
	if ok {
		return dirs, nil
	}
	unlock := s.pulls.lock(viewKey(chainID))
	defer unlock()
	ctx = namespaces.WithNamespace(ctx, namespace)
	mounts, err := s.snaps.Mounts(ctx, viewKey(chainID))
	if errdefs.IsNotFound(err) {
		mounts, err = s.snaps.View(ctx, viewKey(chainID), chainID,
			snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "in use"}))
	}
	if err != nil {
		return nil, fmt.Errorf("layers of image: %w", err)
	}
	dirs = layerDirs(mounts)
	if len(dirs) == 0 {
		return nil, fmt.Errorf("layers of image: unexpected mounts %v", mounts)
	}
	s.mu.Lock()
	s.lower[chainID] = dirs
	s.mu.Unlock()
	return dirs, nil
}

func layerDirs(mounts []mount.Mount) []string {
	if len(mounts) != 1 {
		return nil
	}
	if mounts[0].Type == "bind" {
		return []string{mounts[0].Source}
	}
	for _, o := range mounts[0].Options {
		if dirs, ok := strings.CutPrefix(o, "lowerdir="); ok {
			return strings.Split(dirs, ":")
		}
	}
	return nil
}

// Release lets an image's layers go once no container uses them.
func (s *Store) Release(ctx context.Context, chainID string) error {
	unlock := s.pulls.lock(viewKey(chainID))
	defer unlock()
	s.mu.Lock()
	delete(s.lower, chainID)
	s.mu.Unlock()
	err := s.snaps.Remove(namespaces.WithNamespace(ctx, namespace), viewKey(chainID))
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("release layers: %w", err)
	}
	return nil
}

// ReleaseUnused lets go of the layers of an image that is neither there nor
// used any more, after its last container was removed.
func (s *Store) ReleaseUnused(ctx context.Context, chainID string) error {
	for _, i := range s.List() {
		if i.ChainID == chainID {
			return nil
		}
	}
	if err := s.Release(ctx, chainID); err != nil {
		return err
	}
	return s.collect(ctx)
}

// Usage is what all layers together take on the disk.
func (s *Store) Usage(ctx context.Context) (bytes, inodes int64, err error) {
	ctx = namespaces.WithNamespace(ctx, namespace)
	var keys []string
	err = s.snaps.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind == snapshots.KindCommitted {
			keys = append(keys, info.Name)
		}
		return nil
	})
	for _, k := range keys {
		u, uerr := s.snaps.Usage(ctx, k)
		if uerr != nil {
			continue // removed meanwhile
		}
		bytes += u.Size
		inodes += u.Inodes
	}
	if err != nil {
		return 0, 0, fmt.Errorf("image usage: %w", err)
	}
	return bytes, inodes, nil
}

// Dir is where the store is kept.
func (s *Store) Dir() string { return s.cfg.Dir }
