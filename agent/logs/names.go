package logs

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/beneath"
)

// PodDir is the directory of a pod's logs.
func PodDir(dir, namespace, name, uid string) string {
	return filepath.Join(dir, namespace+"_"+name+"_"+uid)
}

// Name is that of a log below its pod's directory. Each run of a container has
// its own.
func Name(container string, attempt uint32) string {
	return filepath.Join(container, strconv.Itoa(int(attempt))+".log")
}

// Link is the flat link to a log that collectors look for; "" when links is no
// directory: nobody wants them.
func Link(links, pod, namespace, container, id string) string {
	if links == "" || links == "-" {
		return ""
	}
	return filepath.Join(links, pod+"_"+namespace+"_"+container+"-"+id+".log")
}

// AnnotationMax is that of a container whose monitor begins its log anew by itself, before
// the log has more bytes than it says.
const AnnotationMax = "io.shoal-project.container.log-max-bytes"

// rotatedName is the name that a log gets aside: it sorts by time.
func rotatedName(name string, at time.Time) string {
	return name + "." + at.UTC().Format("20060102-150405.000000000")
}

// isRotated tells whether a file is what a log of the name was before.
func isRotated(file, name string) bool {
	rest, ok := strings.CutPrefix(file, name+".")
	return ok && rest != "" && rest[0] >= '0' && rest[0] <= '9'
}

// nextName is that of the file by which a monitor begins a log anew.
func nextName(name string) string { return name + ".tmp" }

// heldName is the second name of a log that its monitor begins anew by itself. It fits no
// pattern by which collectors look for logs.
func heldName(name string) string { return "." + strings.TrimSuffix(name, ".log") + ".held" }

// errFull: a monitor ends, and its container with it, when it cannot begin a log anew.
var errFull = errors.New("btrfs may refuse to rename a file when it is full")

// CanHold tells whether monitors may begin logs of a directory anew by themselves: files there
// have to have second names, and to be renamed also when the disk is full. The directory is
// made if it is missing.
func CanHold(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	if st.Type == unix.BTRFS_SUPER_MAGIC {
		return errFull
	}
	d, err := beneath.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	const file = ".link-try"
	undo := func() { _, _ = d.Root.Remove(file), d.Root.Remove(heldName(file)) }
	undo() // of an agent that was killed here
	defer undo()
	f, err := d.Root.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), d.Root.Link(file, heldName(file)))
}

// attemptOf is the run of a container whose log has the name, -1 when it is no log's.
func attemptOf(name string) int64 {
	number, ok := strings.CutSuffix(name, ".log")
	n, err := strconv.ParseUint(number, 10, 32)
	if !ok || err != nil || strconv.FormatUint(n, 10) != number {
		return -1
	}
	return int64(n)
}

// MakeDir makes a directory below dir, that of all logs, and dir itself. Pods
// that mount it lead nowhere by links.
func MakeDir(dir, path string) error {
	d, err := OpenDir(dir, path)
	if err != nil {
		return err
	}
	return d.Close()
}

// OpenDir is MakeDir, and opens what was made.
func OpenDir(dir, path string) (*os.File, error) {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	d, err := beneath.Open(dir)
	if err != nil {
		return nil, err
	}
	made := d.MkdirAll(name, 0o755)
	f, err := d.OpenDir(name, beneath.NoLinks)
	if err = errors.Join(made, err, d.Close()); err != nil && f != nil {
		f.Close()
	}
	return f, err
}

// Remove removes a log with all that it was before.
func Remove(file File) error {
	name, err := filepath.Rel(file.Dir, file.Path)
	if err != nil {
		return err
	}
	d, err := beneath.Open(file.Dir)
	if err != nil {
		return nil // there is no log at all
	}
	defer d.Close()
	dir, base := filepath.Split(name)
	names, err := d.Names(dir)
	if err != nil {
		return nil
	}
	var errs []error
	for _, n := range names {
		if n == base || n == heldName(base) || n == nextName(base) || isRotated(n, base) {
			errs = append(errs, d.Root.Remove(filepath.Join(dir, n)))
		}
	}
	return errors.Join(errs...)
}
