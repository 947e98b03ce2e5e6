package dump

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/beneath"
)

// Names of what an image's layer takes away (OCI image specification, "Whiteouts").
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// Attributes of an overlay's upper directories (Documentation/filesystems/overlayfs.rst).
const (
	opaqueAttribute   = "trusted.overlay.opaque"
	redirectAttribute = "trusted.overlay.redirect"
	overlayAttributes = "trusted.overlay."
)

// maxAttribute is the longest value of an extended attribute that the kernel knows (xattr(7)).
const maxAttribute = 64 << 10

// IDs map the users of a container's files back to those that it sees; nil changes none.
type IDs struct{ UIDs, GIDs []specs.LinuxIDMapping }

// Layer writes what lies in an overlay's upper directory as an image's layer, and returns
// the paths in the container of what was deleted there. Sockets are left out: they mean
// nothing elsewhere.
func Layer(ctx context.Context, w io.Writer, upper string, ids IDs) (deleted []string, err error) {
	d, err := beneath.Open(upper)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	l := layer{tar: tar.NewWriter(w), ids: ids, first: map[inode]string{}}
	err = d.Walk(".", func(e *beneath.Entry) error { return errors.Join(ctx.Err(), l.add(e)) })
	if err != nil {
		return nil, fmt.Errorf("read what the container wrote: %w", err)
	}
	if l.some { // a part of them would be taken for all
		l.deleted = nil
	}
	return l.deleted, l.tar.Close()
}

type inode struct{ dev, ino uint64 }

// maxRemembered is how many bytes of paths are remembered: the container decides how many
// files with several links there are, and how many were deleted. Each further link is a
// file of its own then, and the names of what was deleted are in the layer alone.
const maxRemembered = 16 << 20

type layer struct {
	tar        *tar.Writer
	ids        IDs
	first      map[inode]string // of files with several links
	deleted    []string
	remembered int  // bytes of both
	some       bool // not all of deleted could be
}

// remembers tells whether a path may be kept, and counts it.
func (l *layer) remembers(path string) bool {
	const entry = 64 // bytes beside the path, about
	if l.remembered+len(path)+entry > maxRemembered {
		return false
	}
	l.remembered += len(path) + entry
	return true
}

func (l *layer) add(e *beneath.Entry) error {
	h := &tar.Header{
		Format:  tar.FormatPAX,
		Name:    e.Path,
		Mode:    int64(e.Stat.Mode & 0o7777),
		Uid:     inside(l.ids.UIDs, e.Stat.Uid),
		Gid:     inside(l.ids.GIDs, e.Stat.Gid),
		ModTime: time.Unix(e.Stat.Mtim.Sec, e.Stat.Mtim.Nsec),
	}
	switch e.Stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return l.directory(e, h)
	case unix.S_IFLNK:
		target, err := e.Readlink()
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return l.tar.WriteHeader(h)
	case unix.S_IFREG:
		return l.file(e, h)
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFCHR:
		if e.Stat.Rdev == 0 {
			return l.gone(e)
		}
		h.Typeflag = tar.TypeChar
	case unix.S_IFBLK:
		h.Typeflag = tar.TypeBlock
	default:
		return nil
	}
	h.Devmajor, h.Devminor = int64(unix.Major(e.Stat.Rdev)), int64(unix.Minor(e.Stat.Rdev))
	return l.tar.WriteHeader(h)
}

// gone is an overlay's mark of what was deleted from a lower layer.
func (l *layer) gone(e *beneath.Entry) error {
	if l.remembers(e.Path) {
		l.deleted = append(l.deleted, "/"+e.Path)
	} else {
		l.some = true
	}
	dir, name := path.Split(e.Path)
	return l.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dir + whiteout + name, Format: tar.FormatPAX})
}

func (l *layer) directory(e *beneath.Entry, h *tar.Header) error {
	h.Typeflag = tar.TypeDir
	h.Name += "/"
	attributes, err := l.attributes(e, h)
	if err != nil {
		return err
	}
	if attributes[redirectAttribute] != "" {
		return fmt.Errorf("/%s is a renamed directory of the image, which a layer cannot tell "+
			"(the kernel's parameter overlay.redirect_dir is on)", e.Path)
	}
	if err := l.tar.WriteHeader(h); err != nil || attributes[opaqueAttribute] != "y" {
		return err
	}
	return l.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: h.Name + opaque, Format: tar.FormatPAX})
}

func (l *layer) file(e *beneath.Entry, h *tar.Header) error {
	id := inode{e.Stat.Dev, e.Stat.Ino}
	if first, ok := l.first[id]; ok {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return l.tar.WriteHeader(h)
	}
	f, err := e.Open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if e.Stat.Nlink > 1 && l.remembers(e.Path) {
		l.first[id] = e.Path
	}
	h.Typeflag, h.Size = tar.TypeReg, e.Stat.Size
	if _, err := l.attributes(e, h); err != nil && !errors.Is(err, unix.E2BIG) && !errors.Is(err, unix.ERANGE) {
		return err // but more attributes than the kernel tells keep nobody from the rest
	}
	if err := appendFile(l.tar, h, f); err != nil {
		return fmt.Errorf("/%s, %d bytes: %w", e.Path, h.Size, err)
	}
	return nil
}

// attributes adds the file's extended attributes to its header but the overlay's own, and
// those that an archive cannot name. It returns all of them.
func (l *layer) attributes(e *beneath.Entry, h *tar.Header) (map[string]string, error) {
	all, err := e.Xattrs(maxAttribute)
	if err != nil {
		return nil, err
	}
	for name, value := range all {
		if strings.HasPrefix(name, overlayAttributes) || strings.Contains(name, "=") { // no key of PAX has that
			continue
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+name] = value
	}
	return all, nil
}

// inside is the user or group that a container sees for one of the node's; nobody for one
// that it does not have (user_namespaces(7)).
func inside(maps []specs.LinuxIDMapping, id uint32) int {
	if len(maps) == 0 {
		return int(id)
	}
	for _, m := range maps {
		if id >= m.HostID && id-m.HostID < m.Size {
			return int(m.ContainerID + (id - m.HostID))
		}
	}
	return math.MaxUint16 - 1
}

// appendFile adds a file with exactly the size of its header: of one that has grown its
// beginning, of one that has shrunk zeros too.
func appendFile(w *tar.Writer, h *tar.Header, f *os.File) error {
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(w, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size {
		_, err = io.CopyN(w, zeros{}, h.Size-n)
	}
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
