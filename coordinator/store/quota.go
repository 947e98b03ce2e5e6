package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
)

// etcd's database grows to a quota. A write beyond it is refused, and from then on all
// writes, everything that compacts the database by itself among them, until somebody has
// compacted, defragmented and disarmed it: here nobody could, as etcd has no socket. So
// writes are refused a little before (space), old versions are dropped at once then instead
// of minutes later, and an alarm that was raised all the same ends here.
const (
	quotaBytes = 8 << 30
	// roomEvery is how often is looked whether room is to be made. etcd tells nobody of an
	// alarm; to look takes no request.
	roomEvery = 10 * time.Second
)

// keepRoom makes room in the database when it is full, until ctx ends.
func (s *Store) keepRoom(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	told := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !s.etcd.disk.crowded() && !s.alarmed() {
			told = false
			continue
		}
		if err := s.makeRoom(ctx); err != nil && ctx.Err() == nil && !told {
			told = true
			s.etcd.disk.log.Error("the store takes no writes: delete what is not needed", "err", err)
		}
	}
}

// alarmed tells whether this member's alarm has all of them refuse writes.
func (s *Store) alarmed() bool {
	r, release := s.etcd.acquire()
	defer release()
	for _, a := range r.etcd.Server.Alarms() {
		if a.Alarm == etcdserverpb.AlarmType_NOSPACE && a.MemberID == uint64(r.etcd.Server.MemberID()) {
			return true
		}
	}
	return false
}

// makeRoom drops old versions, and ends this member's alarm if there is room then.
func (s *Store) makeRoom(ctx context.Context) error {
	if err := s.dropHistory(ctx); err != nil {
		return err
	}
	if !s.alarmed() {
		return nil
	}
	r, release := s.etcd.acquire()
	defer release()
	backend, most := r.etcd.Server.Backend(), s.etcd.disk.quota-spaceToCreate
	if inUse := backend.SizeInUse(); inUse > most {
		return fmt.Errorf("%s of %s are in use", mebibytes(inUse), mebibytes(s.etcd.disk.quota))
	}
	if backend.Size() > most { // etcd counts the file's length
		if err := r.defragment(s.etcd.disk.dir); err != nil {
			return err
		}
	}
	_, err := r.etcd.Server.Alarm(ctx, &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_DEACTIVATE, MemberID: uint64(r.etcd.Server.MemberID()),
		Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	if err == nil {
		s.etcd.disk.log.Info("the store has room again: all writes are taken", "inUse", mebibytes(backend.SizeInUse()))
	}
	return err
}

// noRoom tells whether etcd refused a write for its quota.
func noRoom(err error) bool {
	return errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, etcderrors.ErrNoSpace)
}
