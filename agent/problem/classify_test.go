package problem

import (
	"strings"
	"testing"
)

func TestClassify(t *testing.T) {
	for text, want := range map[string]message{
		"INFO: task dd:4711 blocked for more than 120 seconds.":                     {hungTask, "TaskHung", 4711},
		"INFO: task dd:4711 blocked in I/O wait for more than 122 seconds.":         {hungTask, "TaskHung", 4711},
		`INFO: task kworker/u8:2:31 blocked for more than 120 seconds.`:             {hungTask, "TaskHung", 31},
		`INFO: task a:1 blocked fo:77 blocked for more than 120 seconds.`:           {hungTask, "TaskHung", 77},
		"INFO: task :9 blocked for more than 120 seconds.":                          {},
		"INFO: task dd:0 blocked for more than 120 seconds.":                        {},
		"INFO: task dd:99999999999 blocked for more than 120 seconds.":              {},
		"INFO: task " + strings.Repeat("x", 65) + ":9 blocked for more than 120 s":  {},
		"usb 1-1: Product: INFO: task dd:4711 blocked for more than 120 seconds.":   {},
		"watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [stress:123]":            {kind: lockup, reason: "CPULockup"},
		"NMI watchdog: Watchdog detected hard LOCKUP on cpu 3":                      {kind: lockup, reason: "CPULockup"},
		"watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 4":                    {kind: lockup, reason: "CPULockup"},
		"rcu: INFO: rcu_preempt self-detected stall on CPU":                         {kind: lockup, reason: "CPULockup"},
		"rcu: INFO: rcu_sched detected stalls on CPUs/tasks:":                       {kind: lockup, reason: "CPULockup"},
		"rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-... }": {kind: lockup, reason: "CPULockup"},
		"BUG: workqueue lockup - pool cpus=1 node=0 flags=0x0 nice=0":               {kind: lockup, reason: "CPULockup"},
		"BUG: kernel NULL pointer dereference, address: 0000000000000000":           {kind: other, reason: "KernelOops"},
		"BUG: unable to handle page fault for address: ffffea0000000000":            {kind: other, reason: "KernelOops"},
		"Oops: Oops: 0000 [#1] PREEMPT SMP NOPTI":                                   {kind: other, reason: "KernelOops"},
		"kernel BUG at mm/slub.c:4000!":                                             {kind: other, reason: "KernelOops"},
		"EXT4-fs error (device loop0): ext4_lookup:1855: inode #2: comm ls: bad":    {kind: filesystem, reason: "FilesystemError"},
		"EXT4-fs (vda1): Remounting filesystem read-only":                           {kind: filesystem, reason: "FilesystemError"},
		"EXT4-fs (vda1): mounted filesystem with ordered data mode":                 {},
		"Aborting journal on device vda1-8.":                                        {kind: filesystem, reason: "FilesystemError"},
		"XFS (dm-0): Filesystem has been shut down due to log error (0x2).":         {kind: filesystem, reason: "FilesystemError"},
		"XFS (loop1): User initiated shutdown received.":                            {},
		"XFS (sdb): Corruption of in-memory data (0x8) detected at x":               {kind: filesystem, reason: "FilesystemError"},
		"XFS (sdb): Ending clean mount":                                             {},
		"BTRFS info (device vdb: state EA): forced readonly":                        {kind: filesystem, reason: "FilesystemError"},
		"BTRFS error (device vdb): bdev /dev/vdb errs: wr 1, rd 0, flush 0":         {kind: filesystem, reason: "FilesystemError"},
		"BTRFS: error (device vdb) in btrfs_commit_transaction:2494: errno=-5":      {kind: filesystem, reason: "FilesystemError"},
		"BTRFS info (device vdb): using crc32c (crc32c-intel) checksum algorithm":   {},
		"I/O error, dev sda, sector 12345 op 0x0:(READ) flags 0x80700":              {kind: filesystem, reason: "IOError"},
		"blk_update_request: I/O error, dev sda, sector 0":                          {kind: filesystem, reason: "IOError"},
		"critical medium error, dev sda, sector 7":                                  {kind: filesystem, reason: "IOError"},
		"Buffer I/O error on dev vdb, logical block 3, lost async page write":       {kind: filesystem, reason: "IOError"},
		"EDAC MC0: 1 CE memory read error on CPU_SrcID#0":                           {kind: other, reason: "MemoryReadError"},
		"Memory failure: 0x12345: recovery action for dirty page: Recovered":        {kind: other, reason: "MemoryReadError"},
		"mce: [Hardware Error]: Machine check events logged":                        {kind: other, reason: "MemoryReadError"},
		"{1}[Hardware Error]: Hardware error from APEI Generic Hardware":            {kind: other, reason: "MemoryReadError"},
		"unregister_netdevice: waiting for lo to become free. Usage count = 1":      {kind: other, reason: "UnregisterNetDevice"},
		"Out of memory: Killed process 77 (x) total-vm:1kB":                         {kind: other, reason: "SystemOOM"},
		"nf_conntrack: nf_conntrack: table full, dropping packet":                   {kind: other, reason: "ConntrackFull"},
		"nf_conntrack: table full in netns 4026531840, dropping packet":             {kind: other, reason: "ConntrackFull"},
		"nf_conntrack: default automatic helper assignment has been turned off":     {},
		"Memory cgroup out of memory: Killed process 77 (x) total-vm:1kB":           {},
		"":                    {},
		"device eth0 entered": {},
	} {
		if got := classify(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func FuzzClassify(f *testing.F) {
	f.Add("INFO: task dd:4711 blocked for more than 120 seconds.")
	f.Add("BTRFS error (device vdb): bdev /dev/vdb errs: wr 1, rd 0, flush 0")
	f.Fuzz(func(t *testing.T, text string) {
		m := classify(text)
		if (m.kind == nothing) != (m.reason == "") || (m.kind == hungTask) != (m.task > 0) {
			t.Errorf("%q: %+v", text, m)
		}
		if s := shown(text); len(s) > maxShown {
			t.Errorf("%d bytes are shown", len(s))
		}
	})
}
