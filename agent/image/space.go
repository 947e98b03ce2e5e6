package image

import (
	"context"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/host"
)

// spaceEvery is how often the disk is looked at while an image is unpacked:
// a fast disk takes some ten megabytes in this time. Looking costs microseconds.
const spaceEvery = 10 * time.Millisecond

// maxSpare is how many bytes more than eviction keeps are kept from images at most. Between
// two looks, and until what was written is removed, less is left than at the look: without
// something to spare, a neighbour would be evicted for an image that does not fit.
const maxSpare = 64 << 20

// withSpace runs work, and ends it when less space is left on the store's
// file system than is kept for others: what a layer unpacks to is not known
// before. The error is Full.
func (s *Store) withSpace(ctx context.Context, work func(context.Context) error) error {
	if s.cfg.KeepFree == nil {
		return work(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := s.space(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(spaceEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := s.space(); err != nil {
				cancel(err)
				return
			}
		}
	}()
	err := work(ctx)
	if cause := context.Cause(ctx); err != nil && Full(cause) {
		err = cause
	}
	cancel(nil)
	<-ended
	return err
}

// space tells whether more may be written.
func (s *Store) space() error {
	has, err := s.fileSystem()
	if err != nil {
		return err
	}
	free, keep, spare := has.Available, s.cfg.KeepFree(has.Bytes), min(has.Bytes/32, maxSpare)
	if free < keep+spare {
		return fmt.Errorf("the image does not fit: %d MiB are left on the image file system, and evictionHard keeps %d MiB (imagefs.available), with %d MiB to spare: %w",
			free>>20, keep>>20, spare>>20, unix.ENOSPC)
	}
	if s.cfg.KeepInodes == nil || has.Inodes == 0 { // some file systems have no number of them
		return nil
	}
	if keep, spare := s.cfg.KeepInodes(has.Inodes), has.Inodes/64; has.InodesFree < keep+spare {
		return fmt.Errorf("the image does not fit: %d inodes are left on the image file system, and evictionHard keeps %d (imagefs.inodesFree), with %d to spare: %w",
			has.InodesFree, keep, spare, unix.ENOSPC)
	}
	return nil
}

// capacity is how many bytes the store's file system can hold. Some have no
// end of their own, such as a tmpfs without a size.
func (s *Store) capacity() (uint64, error) {
	has, err := s.fileSystem()
	if err == nil && has.Bytes == 0 {
		return math.MaxUint64, nil
	}
	return has.Bytes, err
}

func (s *Store) fileSystem() (host.FileSystem, error) {
	has, err := host.Space(s.cfg.Dir)
	if err != nil {
		err = fmt.Errorf("image file system: %w", err)
	}
	return has, err
}
