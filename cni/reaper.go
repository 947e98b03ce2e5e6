package cni

import (
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// reapGroup is the interface group (ip-link(8)) of what is about to be deleted.
const reapGroup = 0x53484f41

// reaper deletes interfaces, many in one request: the kernel waits some 20 ms
// for its readers in every request, with a lock that all network set-up needs.
type reaper struct {
	mu      sync.Mutex
	busy    bool
	waiting []reapOrder
}

type reapOrder struct {
	names []string
	done  chan error
}

// delete removes interfaces and returns when they are gone; one that is not
// there is no error.
func (r *reaper) delete(names ...string) error {
	o := reapOrder{names, make(chan error, 1)}
	r.mu.Lock()
	r.waiting = append(r.waiting, o)
	if !r.busy {
		r.busy = true
		go r.work()
	}
	r.mu.Unlock()
	return <-o.done
}

// work ends when nothing waits.
func (r *reaper) work() {
	for {
		r.mu.Lock()
		orders := r.waiting
		r.waiting = nil
		r.busy = len(orders) > 0
		r.mu.Unlock()
		if len(orders) == 0 {
			return
		}
		reap(orders)
	}
}

func reap(orders []reapOrder) {
	var found []reapOrder
	for _, o := range orders {
		any := false
		var errs []error
		for _, name := range o.names {
			there, err := condemn(name)
			any, errs = any || there, append(errs, err)
		}
		if err := errors.Join(errs...); err != nil || !any {
			o.done <- err
			continue
		}
		found = append(found, o)
	}
	if len(found) == 0 {
		return
	}
	err := deleteGroup(reapGroup)
	if err != nil && !errors.Is(err, unix.ENODEV) {
		err = fmt.Errorf("delete interfaces: %w", err)
	} else {
		err = nil
	}
	for _, o := range found {
		o.done <- err
	}
}

// condemn puts an interface into the group, telling whether there is one.
func condemn(name string) (bool, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return false, nil
		}
		return false, fmt.Errorf("find %s: %w", name, err)
	}
	if err := netlink.LinkSetGroup(l, reapGroup); err != nil {
		if errors.Is(err, unix.ENODEV) {
			return false, nil
		}
		return false, fmt.Errorf("condemn %s: %w", name, err)
	}
	return true, nil
}

func deleteGroup(group uint32) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
