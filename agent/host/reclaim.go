package host

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Reclaim is what the kernel has taken back of used memory since boot, in pages. Since
// tells of two of them for whose want it did so.
//
// The numbers of /proc/vmstat, as mm/vmscan.c of Linux 5.9 and later counts them:
//
//   - pgsteal_anon and pgsteal_file are all that was taken, for whatever reason.
//   - pgsteal_kswapd, pgsteal_direct and the others by who took it leave out what was taken
//     for the limit of a control group ("if (!cgroup_reclaim(sc))", of v1 and v2 alike).
//     Since "mm: move pgscan, pgsteal, pgrefill to node stats" of 2026 they do not: there
//     they come before pgpgin, the first of the events. kswapd works for the machine alone.
//   - allocstall_* are calls for the machine in all versions (do_try_to_free_pages).
//   - workingset_restore_* are pages in use that were taken and read again (mm/workingset.c),
//     whatever they were taken for. They get the flag for which the kernel counts the wait
//     for their reading as one for memory (PG_workingset, mm/filemap.c).
type Reclaim struct {
	// All was taken in any case: Machine because the machine ran short of memory, Unclear
	// perhaps because of that.
	All, Machine, Unclear uint64
	// Calls is how often a task had to take memory itself because the machine ran short.
	Calls uint64
	// Restored is how much of what was taken was in use, and came back.
	Restored uint64
}

// ReadReclaim tells what has been taken until now.
func ReadReclaim() (Reclaim, error) { return reclaim(proc) }

func reclaim(proc string) (r Reclaim, err error) {
	found, events := 0, false
	err = vmstat(proc, func(name string, n uint64) {
		switch {
		case name == "pgpgin":
			events = true
		case name == "pgsteal_anon", name == "pgsteal_file":
			found++
			r.All += n
		case name == "workingset_restore_anon", name == "workingset_restore_file":
			found++
			r.Restored += n
		case name == "pgsteal_kswapd":
			found++
			r.Machine += n
		case strings.HasPrefix(name, "pgsteal_") && events:
			r.Machine += n
		case strings.HasPrefix(name, "pgsteal_"):
			r.Unclear += n
		case strings.HasPrefix(name, "allocstall_"):
			r.Calls += n
		}
	})
	if err == nil && found != 5 {
		err = errors.New("the kernel does not tell for whose want it reclaims memory: Linux 5.9 and later do")
	}
	return r, err
}

// Reclaimed is what was taken in a time, in pages: because the machine ran short, or
// because control groups reached their limits.
type Reclaimed struct{ Machine, Groups, Restored uint64 }

// perCall is how much a call that succeeds takes at least (SWAP_CLUSTER_MAX).
const perCall = 32

// Since is what was taken after old was read. In doubt it was for a group.
func (r Reclaim) Since(old Reclaim) Reclaimed {
	all := grown(r.All, old.All)
	machine := grown(r.Machine, old.Machine) + min(grown(r.Unclear, old.Unclear), perCall*grown(r.Calls, old.Calls))
	machine = min(machine, all) // they are not read at one moment
	return Reclaimed{Machine: machine, Groups: all - machine, Restored: grown(r.Restored, old.Restored)}
}

func grown(now, old uint64) uint64 { return now - min(now, old) }

// maxVMStat is more than the file has in any version: it is some 200 short lines.
const maxVMStat = 64 << 10

// vmstat calls each for every number of /proc/vmstat. Lines that are something else are
// passed over: who needs a number counts what came.
func vmstat(proc string, each func(name string, n uint64)) error {
	f, err := os.Open(filepath.Join(proc, "vmstat"))
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxVMStat+1))
	if err != nil {
		return err
	}
	if len(data) > maxVMStat {
		return fmt.Errorf("%s is longer than %d bytes", f.Name(), maxVMStat)
	}
	parseVMStat(data, each)
	return nil
}

func parseVMStat(data []byte, each func(name string, n uint64)) {
	for l := range bytes.Lines(data) {
		f := bytes.Fields(l)
		if len(f) != 2 {
			continue
		}
		if n, err := strconv.ParseUint(string(f[1]), 10, 64); err == nil {
			each(string(f[0]), n)
		}
	}
}
