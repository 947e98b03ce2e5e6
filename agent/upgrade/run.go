package upgrade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Units of an installation, in the order in which they start.
const (
	CoordinatorUnit = "shoal-coordinator.service"
	AgentUnit       = "shoal-agent.service"
)

// Machine is what an upgrade changes. Each of its deeds may be repeated.
type Machine interface {
	// Stop ends a unit's process; an error of one that did not end in good order.
	Stop(ctx context.Context, unit string) error
	// Kill ends a unit's process at once, however it is.
	Kill(ctx context.Context, unit string) error
	// Start starts a unit that does not run, and returns when it says that it is ready.
	Start(ctx context.Context, unit string) error
	// KeepStore copies the store of a coordinator that is stopped.
	KeepStore(ctx context.Context) error
	// OldStore puts the copy back in the place of the store.
	OldStore(ctx context.Context) error
	// Install makes a package's files those of the machine. Nothing is restarted.
	Install(ctx context.Context, file string) error
	// Well returns when the node does what it did with this version: Ready, its
	// containers the same.
	Well(ctx context.Context, version string) error
	// Steady fails when a unit's process is another one than when Start returned.
	Steady(ctx context.Context, unit string) error
}

// Upgrade is one upgrade of this machine.
type Upgrade struct {
	Machine Machine
	Dir     Dir
	Record  *Record
	// Boot is the machine's present one.
	Boot string
	// Patience is how long the new programs have to get well; Settle how long they must
	// stay so; OldPatience how long the old ones have with the store as it is.
	Patience, Settle, OldPatience time.Duration
	// Files is called when the programs are those that stay, before they are started.
	Files func()
	Say   func(format string, args ...any)
}

// ErrReturned is of an upgrade that went back to the old programs.
var ErrReturned = errors.New("the old version runs again")

// Run goes on with what the record says: forward from Prepared; what was interrupted
// it undoes. When ctx ends, the record stays for the next start.
func (u *Upgrade) Run(ctx context.Context) error {
	r := u.Record
	switch {
	case r.Phase.Over():
		u.Files()
		return nil
	case r.Phase == Prepared && r.Boot == u.Boot:
		u.Files()
	case r.Phase == Prepared || r.Phase == Stopping:
		r.Why = "it was interrupted before anything was replaced"
		u.Files()
		err := u.each(ctx, u.Machine.Start, u.coordinator()...)
		return u.end(ctx, Returned, errors.Join(ErrReturned, err))
	default:
		return u.back(ctx, errors.New("it was interrupted"))
	}
	switched := time.Time{}
	err := u.forward(ctx, &switched)
	if !switched.IsZero() {
		r.Tried = time.Since(switched).Seconds()
	}
	if err == nil {
		return u.end(ctx, Done, nil)
	}
	return u.back(ctx, err)
}

// phase writes down what comes next.
func (u *Upgrade) phase(p Phase) error {
	u.Record.Phase = p
	return u.Dir.Save(u.Record)
}

// coordinator is its unit if it ran.
func (u *Upgrade) coordinator() []string {
	if slices.Contains(u.Record.Units, CoordinatorUnit) {
		return []string{CoordinatorUnit}
	}
	return nil
}

func (u *Upgrade) each(ctx context.Context, do func(context.Context, string) error, units ...string) error {
	var errs []error
	for _, unit := range units {
		errs = append(errs, do(ctx, unit))
	}
	return errors.Join(errs...)
}

// forward goes to the new programs; an error is why they are not well.
func (u *Upgrade) forward(ctx context.Context, switched *time.Time) error {
	if err := u.phase(Stopping); err != nil {
		return err
	}
	if len(u.coordinator()) > 0 {
		if err := u.Machine.Stop(ctx, CoordinatorUnit); err != nil {
			return err
		}
		if u.Record.Alone {
			if err := u.Machine.KeepStore(ctx); err != nil {
				return err
			}
			u.Record.Kept = true
			u.Say("the coordinator is stopped, its store copied")
		} else {
			u.Say("the coordinator is stopped")
		}
	}
	if err := u.phase(Switching); err != nil {
		return err
	}
	*switched = time.Now()
	if err := u.Machine.Install(ctx, u.Record.New); err != nil {
		return err
	}
	u.Say("%s is installed", u.Record.To)
	if err := u.phase(Watching); err != nil {
		return err
	}
	watched, cancel := context.WithTimeout(ctx, u.Patience)
	defer cancel()
	for _, unit := range u.Record.Units {
		if unit != CoordinatorUnit {
			_ = u.Machine.Stop(watched, unit) // however the old agent ends: its pods run on
		}
		if err := u.Machine.Start(watched, unit); err != nil {
			return u.late(ctx, watched, err)
		}
		if unit == CoordinatorUnit {
			u.Record.Served = true
			if err := u.phase(Watching); err != nil {
				return err
			}
		}
		u.Say("%s runs", strings.TrimSuffix(unit, ".service"))
	}
	if err := u.well(watched); err != nil {
		return u.late(ctx, watched, err)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(u.Settle):
	}
	if err := u.each(ctx, u.Machine.Steady, u.Record.Units...); err != nil {
		return err
	}
	again, cancel := context.WithTimeout(ctx, u.OldPatience)
	defer cancel()
	if err := u.well(again); err != nil {
		return fmt.Errorf("it did not stay well: %w", err)
	}
	return nil
}

// steadyEach is how often units are looked at that should run.
const steadyEach = time.Second

// well waits for the node with the new version, but not longer than its units run.
func (u *Upgrade) well(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(steadyEach):
			}
			if err := u.each(ctx, u.Machine.Steady, u.Record.Units...); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		}
	})
	err := u.Machine.Well(ctx, u.Record.To)
	if fell := context.Cause(ctx); err != nil && fell != nil && !errors.Is(fell, context.DeadlineExceeded) {
		err = fell
	}
	cancel(nil)
	looking.Wait()
	return err
}

// late says what a time-out was for.
func (u *Upgrade) late(ctx, watched context.Context, err error) error {
	if ctx.Err() == nil && watched.Err() != nil {
		return fmt.Errorf("not well within %s: %w", u.Patience, err)
	}
	return err
}

// back goes to the old programs. What the new coordinator wrote is kept when it was
// ready, so that nothing is lost that a client was told of; unless the old one does not
// get ready with it. What one wrote that never was ready is not trusted.
func (u *Upgrade) back(ctx context.Context, why error) error {
	if err := ctx.Err(); err != nil {
		return err // the machine shuts down: the next start goes back
	}
	began := time.Now()
	r := u.Record
	if r.Why == "" {
		r.Why = why.Error()
	}
	replaced := r.Phase != Stopping
	u.Say("going back to %s: %s", r.From, r.Why)
	// A disk that takes no record keeps nobody from going back: what is written there
	// leads to the same.
	if err := u.phase(Returning); err != nil {
		u.Say("%v", err)
	}
	if replaced {
		err := u.each(ctx, u.Machine.Kill, r.Units...)
		if err := errors.Join(err, u.Machine.Install(ctx, r.Old)); err != nil {
			err = fmt.Errorf("%s; and the old package cannot be installed: %w", r.Why, err)
			return u.end(ctx, Failed, u.startAnyway(ctx, err, r.Units))
		}
		u.Say("%s is installed again", r.From)
	}
	if err := u.oldStore(ctx, replaced); err != nil {
		err = fmt.Errorf("%s; and the old store cannot be put back: %w", r.Why, err)
		// A coordinator without its store would make a cluster anew.
		others := slices.DeleteFunc(slices.Clone(r.Units), func(unit string) bool { return unit == CoordinatorUnit })
		return u.end(ctx, Failed, u.startAnyway(ctx, err, others))
	}
	u.Files()
	err := u.startOld(ctx)
	r.Back = time.Since(began).Seconds()
	if err != nil {
		return u.end(ctx, Failed, fmt.Errorf("%s; and the old version does not get well: %w", r.Why, err))
	}
	return u.end(ctx, Returned, fmt.Errorf("%w: %s", ErrReturned, r.Why))
}

// oldStore puts the store of before back where the new coordinator was never ready.
func (u *Upgrade) oldStore(ctx context.Context, replaced bool) error {
	r := u.Record
	if len(u.coordinator()) == 0 || r.Store != "" {
		return nil
	}
	r.Store = "kept"
	if replaced && r.Kept && !r.Served {
		if err := u.Machine.OldStore(ctx); err != nil {
			return err
		}
		r.Store = "old"
		u.Say("the store is that of before")
	}
	if err := u.Dir.Save(r); err != nil {
		u.Say("%v", err)
	}
	return nil
}

// startAnyway starts units with the programs that there are: what is not well may still
// be better than nothing. It returns why the upgrade failed.
func (u *Upgrade) startAnyway(ctx context.Context, why error, units []string) error {
	if ctx.Err() != nil {
		return why // the machine shuts down
	}
	u.Files()
	return errors.Join(why, u.each(ctx, u.start, units...))
}

// startOld starts the units with the old programs, all that can be.
func (u *Upgrade) startOld(ctx context.Context) error {
	r := u.Record
	var errs []error
	for _, unit := range r.Units {
		err := u.start(ctx, unit)
		// One that ends cannot go on with its store. One that is late may wait for the
		// network, or for the majority of other members: its store is not to blame.
		late := errors.Is(err, context.DeadlineExceeded)
		if err != nil && !late && unit == CoordinatorUnit && r.Kept && r.Store == "kept" {
			err = u.instead(ctx, err)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, u.OldPatience)
	defer cancel()
	return u.Machine.Well(ctx, r.From)
}

// instead has the old coordinator start with the store of before, as it ended with that
// which the new one left. The record says first that the store is to be put back.
func (u *Upgrade) instead(ctx context.Context, why error) error {
	u.Say("the old coordinator does not get ready with the store that the new one left: %v", why)
	r := u.Record
	r.Served, r.Store = false, ""
	if err := u.Dir.Save(r); err != nil {
		return err
	}
	if err := u.Machine.Kill(ctx, CoordinatorUnit); err != nil {
		return err
	}
	if err := u.oldStore(ctx, true); err != nil {
		return err
	}
	return u.start(ctx, CoordinatorUnit)
}

// start gives a unit OldPatience; one that is late is context.DeadlineExceeded.
func (u *Upgrade) start(ctx context.Context, unit string) error {
	limited, cancel := context.WithTimeout(ctx, u.OldPatience)
	defer cancel()
	err := u.Machine.Start(limited, unit)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("%s is not ready: %w: %w", unit, limited.Err(), err)
	}
	return err
}

// end writes down how it ended, as soon as the disk takes it, unless the machine is
// shutting down.
func (u *Upgrade) end(ctx context.Context, p Phase, err error) error {
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	r := u.Record
	r.Ended = time.Now()
	if p == Failed {
		r.Why = err.Error()
	}
	for told := false; ; {
		saved := u.phase(p)
		if saved == nil {
			return err
		}
		if !told {
			told = true
			u.Say("it is over, but: %v", saved)
		}
		select {
		case <-ctx.Done():
			return errors.Join(saved, err)
		case <-time.After(saveAgain):
		}
	}
}

// saveAgain is how long is waited for a disk that takes no record.
const saveAgain = 5 * time.Second
