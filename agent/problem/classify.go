package problem

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kind is what a message of the kernel means.
type kind int

const (
	nothing    kind = iota
	hungTask        // a task waits without an end
	lockup          // a processor is stuck
	filesystem      // a file system has an error
	other           // only an event
)

// message is a line of the kernel's log that means something.
type message struct {
	kind   kind
	reason string // of the event
	task   int    // hungTask: its number
}

// rules are in the order in which they are tried: expressions that begin at the line's
// begin, so that a name in it, which a process chose, makes no other message of it. The
// reasons are node-problem-detector's and the kubelet's where they have one.
var rules = []struct {
	kind    kind
	reason  string
	pattern *regexp.Regexp
}{
	// A name has 15 bytes, each up to four characters (\x20); the number is the last.
	{hungTask, "TaskHung", regexp.MustCompile(`^INFO: task .{1,64}:(\d{1,9}) blocked( in I/O wait)? for more than \d+ seconds`)},
	{lockup, "CPULockup", regexp.MustCompile(`^(watchdog: )?BUG: soft lockup - CPU#\d+ stuck for `)},
	{lockup, "CPULockup", regexp.MustCompile(`^(NMI )?watchdog: (Watchdog detected|CPU\d+: Watchdog detected) hard LOCKUP `)},
	{lockup, "CPULockup", regexp.MustCompile(`^(rcu: )?INFO: rcu_\w+ (self-detected stall|detected (expedited )?stalls) on CPU`)},
	{lockup, "CPULockup", regexp.MustCompile(`^BUG: workqueue lockup - pool`)},
	{other, "KernelOops", regexp.MustCompile(`^(BUG: (unable to handle|kernel NULL pointer)|kernel BUG at |Oops: |general protection fault|divide error: |Unable to handle kernel )`)},
	{filesystem, "FilesystemError", regexp.MustCompile(`^EXT[234]-fs error |^EXT[234]-fs \(.{1,64}\): (Remounting filesystem read-only|failed to convert)|^Aborting journal on device `)},
	{filesystem, "FilesystemError", regexp.MustCompile(`^XFS \(.{1,64}\): .*([Ss]hutting down|[Ss]hut down|[Cc]orruption|metadata I/O error|log I/O error)`)},
	{filesystem, "FilesystemError", regexp.MustCompile(`^BTRFS:? (error|critical) \(device |^BTRFS info \(device .{1,64}\): forced readonly`)},
	{filesystem, "FilesystemError", regexp.MustCompile(`^F2FS-fs \(.{1,64}\): .*(error|corrupt|[Ss]top checkpoint)|^SQUASHFS error: `)},
	{filesystem, "IOError", regexp.MustCompile(`^((blk_update_request: )?(critical )?(I/O|medium|target|nexus) error, dev |Buffer I/O error on dev)`)},
	{other, "MemoryReadError", regexp.MustCompile(`^(Memory failure: 0x|EDAC .*(CE|UE) |\{?\d*\}?\[Hardware Error\]|mce: \[Hardware Error\])`)},
	{other, "UnregisterNetDevice", regexp.MustCompile(`^unregister_netdevice: waiting for \S+ to become free`)},
	// Twice its name, and in which network by newer kernels.
	{other, "ConntrackFull", regexp.MustCompile(`^(nf_conntrack: ){1,2}table full[ ,]`)},
	{other, "SystemOOM", regexp.MustCompile(`^Out of memory: Killed process `)},
}

// begins are how lines begin that a rule may match: most lines are none, and a start reads
// some thousands.
var begins = []string{"INFO: ", "watchdog: ", "NMI watchdog: ", "rcu: ", "BUG: ", "kernel BUG at ", "Oops: ",
	"general protection fault", "divide error: ", "Unable to handle kernel ", "EXT", "Aborting journal ", "XFS (", "BTRFS",
	"F2FS-fs (", "SQUASHFS error", "blk_update_request: ", "critical ", "I/O error", "medium error", "target error",
	"nexus error", "Buffer I/O error", "Memory failure: ", "EDAC ", "{", "[Hardware Error]", "mce: ",
	"unregister_netdevice: ", "nf_conntrack: ", "Out of memory: "}

// classify tells what a line means; the kernel's lines are bounded (host.KernelLine).
func classify(text string) message {
	if !slices.ContainsFunc(begins, func(b string) bool { return strings.HasPrefix(text, b) }) {
		return message{}
	}
	for _, r := range rules {
		found := r.pattern.FindStringSubmatch(text)
		if found == nil {
			continue
		}
		m := message{kind: r.kind, reason: r.reason}
		if m.kind == hungTask {
			var err error
			if m.task, err = strconv.Atoi(found[1]); err != nil || m.task < 1 {
				return message{}
			}
		}
		return m
	}
	return message{}
}
