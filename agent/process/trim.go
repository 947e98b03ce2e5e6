package process

import (
	"bufio"
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// burstOver is how often a process is looked at. Nothing tells when a burst of
	// work is over.
	burstOver = 10 * time.Second
	// idleBytes is how much a process may allocate between two looks when it has
	// nothing to do; worthBytes is how much memory a trim must be able to give back.
	idleBytes, worthBytes = 8 << 20, 6 << 20
)

// Trim trims the process once it has started, and whenever a burst of work is
// over, until ctx ends. It does nothing that a reader of its results could
// notice, but the first use of trimmed code is a little slower.
func Trim(ctx context.Context) {
	var kept, allocated uint64
	for wait := startTime; ; wait = burstOver {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		now := read()
		if kept == 0 || now.allocated-allocated < idleBytes && now.held > kept+worthBytes {
			giveBack()
			kept = read().held
		}
		allocated = now.allocated
	}
}

// usage is memory of the Go runtime, in bytes.
type usage struct {
	held      uint64 // from the kernel
	allocated uint64 // so far, garbage included
}

func read() usage {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return usage{held: s[0].Value.Uint64() - s[1].Value.Uint64(), allocated: s[2].Value.Uint64()}
}

// giveBack returns freed heap and the pages of the binary. Code that runs again
// is mapped again from the page cache, at the price of a minor fault.
func giveBack() {
	debug.FreeOSMemory()
	for _, m := range binaryMappings() {
		// Nothing there is the process's own, so that a failure only keeps memory.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED)
	}
}

type mapping struct{ start, end uintptr }

// binaryMappings returns the read-only mappings of the executable of which no
// page was ever written (smaps: Anonymous 0).
func binaryMappings() []mapping {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	var out []mapping
	var current mapping
	candidate := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 6 && strings.Contains(fields[0], "-"):
			current, candidate = parseMapping(fields[0])
			candidate = candidate && fields[5] == exe && strings.HasPrefix(fields[1], "r-")
		case len(fields) == 3 && fields[0] == "Anonymous:" && candidate && fields[1] == "0":
			out = append(out, current)
		}
	}
	return out
}

func parseMapping(s string) (mapping, bool) {
	a, b, _ := strings.Cut(s, "-")
	start, err := strconv.ParseUint(a, 16, 64)
	if err != nil {
		return mapping{}, false
	}
	end, err := strconv.ParseUint(b, 16, 64)
	return mapping{start: uintptr(start), end: uintptr(end)}, err == nil
}
