package host

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Files are what processes have open.
type Files struct {
	// Open is how many file descriptors there are, Sockets how many of them are of sockets.
	Open, Sockets int
}

// mostFiles bounds the look at what processes have open: they may have as many as they like.
const mostFiles = 1 << 16

// OpenFiles counts what processes have open, mostFiles at most. Those that end meanwhile, or
// whose files may not be seen, have none.
func OpenFiles(pids []int) Files { return openFiles(proc, pids, mostFiles) }

func openFiles(proc string, pids []int, most int) (out Files) {
	for _, pid := range pids {
		if out.Open >= most {
			break
		}
		countFiles(filepath.Join(proc, strconv.Itoa(pid), "fd"), most, &out)
	}
	return out
}

func countFiles(path string, most int, out *Files) {
	dir, err := os.Open(path)
	if err != nil {
		return
	}
	defer dir.Close()
	var target [8]byte // as much as tells a socket
	for out.Open < most {
		names, err := dir.Readdirnames(min(512, most-out.Open))
		if err != nil {
			return // the end, or that of the process
		}
		for _, name := range names {
			out.Open++
			n, err := unix.Readlinkat(int(dir.Fd()), name, target[:])
			if err == nil && strings.HasPrefix(string(target[:n]), "socket:") {
				out.Sockets++
			}
		}
	}
}

// FileLimit is how many files a process may have open, -1 for any number (proc(5), the soft
// limit); false where that is not known.
func FileLimit(pid int) (int64, bool) { return fileLimit(proc, pid) }

func fileLimit(proc string, pid int) (int64, bool) {
	text, err := readSome(filepath.Join(proc, strconv.Itoa(pid), "limits"))
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(text) {
		rest, found := bytes.CutPrefix(line, []byte("Max open files"))
		fields := bytes.Fields(rest)
		if !found || len(fields) == 0 {
			continue
		}
		if string(fields[0]) == "unlimited" {
			return -1, true
		}
		n, err := strconv.ParseInt(string(fields[0]), 10, 64)
		return n, err == nil
	}
	return 0, false
}
