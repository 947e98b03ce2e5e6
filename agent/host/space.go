package host

import "golang.org/x/sys/unix"

// FileSystem is the space of one (statfs(2)). Some have no end of their own, such
// as a tmpfs without a size, and some no number of inodes: these are 0.
type FileSystem struct {
	Bytes, Used uint64
	// Available is what users other than root may still write.
	Available          uint64
	Inodes, InodesFree uint64
}

// Space is that of the file system which a directory is on.
func Space(dir string) (FileSystem, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return FileSystem{}, err
	}
	return spaceOf(&st), nil
}

func spaceOf(st *unix.Statfs_t) FileSystem {
	unit := uint64(st.Bsize)
	return FileSystem{
		Bytes:      st.Blocks * unit,
		Used:       (st.Blocks - st.Bfree) * unit,
		Available:  st.Bavail * unit,
		Inodes:     st.Files,
		InodesFree: st.Ffree,
	}
}

// SameDisk tells whether two directories are on one file system. When either cannot be
// told it says so of them.
func SameDisk(a, b string) bool {
	var x, y unix.Stat_t
	if unix.Stat(a, &x) != nil || unix.Stat(b, &y) != nil {
		return true
	}
	return x.Dev == y.Dev
}
