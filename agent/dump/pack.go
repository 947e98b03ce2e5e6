package dump

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
)

// statsFile is what CRIU says of its work (criu(8)).
const statsFile = "stats-dump"

// Container is what is said of a container beside its processes and files.
type Container struct {
	Config metadata.ContainerConfig
	Status metadata.ContainerdStatus
	// CRI is its status of the CRI, as JSON.
	CRI json.RawMessage
	// SpecFile is its OCI runtime specification.
	SpecFile string
	// Upper is the directory that an overlay writes to, and IDs whose its files are.
	Upper string
	IDs   IDs
}

// Work is a directory for making one archive, on the file system where that is to be.
type Work struct {
	dir string
	// Room is asked before and while something is written there; nil: nobody is.
	Room func() error
}

// workPattern are the names of such directories.
const workPattern = ".checkpoint-*"

// NewWork makes the directory beside the archive.
func NewWork(archive string) (*Work, error) {
	dir, err := os.MkdirTemp(filepath.Dir(archive), workPattern)
	if err != nil {
		return nil, err
	}
	w := &Work{dir: dir}
	if err := os.Mkdir(w.Images(), 0o700); err != nil {
		return nil, errors.Join(err, w.Remove())
	}
	return w, nil
}

// Images is where the OCI runtime has CRIU put its images, Logs where its log goes.
func (w *Work) Images() string { return filepath.Join(w.dir, metadata.CheckpointDirectory) }
func (w *Work) Logs() string   { return w.dir }

// Remove removes the directory.
func (w *Work) Remove() error { return os.RemoveAll(w.dir) }

// Sweep removes such directories that an agent of before left in a directory of archives.
func Sweep(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, workPattern))
	errs := []error{err}
	for _, d := range left {
		errs = append(errs, os.RemoveAll(d))
	}
	return errors.Join(errs...)
}

// Pack makes the archive of what the OCI runtime left in the directory. It is there whole
// or not at all, and takes the place of nothing. What is packed is removed right away, so
// that it does not take its room twice.
func (w *Work) Pack(ctx context.Context, c Container, archive string) error {
	deleted, err := w.layer(ctx, c)
	if err != nil {
		return err
	}
	spec, err := os.ReadFile(c.SpecFile)
	if err != nil {
		return err
	}
	part := filepath.Join(w.dir, "archive")
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	p := packer{tar: tar.NewWriter(w.guarded(ctx, f)), now: time.Now()}
	p.json(metadata.ConfigDumpFile, c.Config)
	p.bytes(metadata.SpecDumpFile, spec)
	p.json(metadata.StatusFile, c.Status)
	p.bytes(metadata.StatusDumpFile, c.CRI)
	p.directory(w.Images(), metadata.CheckpointDirectory)
	for _, name := range []string{metadata.DumpLogFile, statsFile, metadata.RootFsDiffTar} {
		p.file(filepath.Join(w.dir, name), name)
	}
	if len(deleted) > 0 {
		p.json(metadata.DeletedFilesFile, deleted)
	}
	if p.err == nil {
		p.err = p.tar.Close()
	}
	if p.err == nil {
		p.err = f.Sync()
	}
	if err := errors.Join(p.err, f.Close(), ctx.Err()); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return os.Link(part, archive)
}

// layer writes rootfs-diff.tar into the directory.
func (w *Work) layer(ctx context.Context, c Container) (deleted []string, err error) {
	f, err := os.OpenFile(filepath.Join(w.dir, metadata.RootFsDiffTar), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	deleted, err = Layer(ctx, w.guarded(ctx, f), c.Upper, c.IDs)
	slices.Sort(deleted)
	return deleted, errors.Join(err, f.Close())
}

// roomEvery is after how many bytes it is asked again whether there is room, and whether
// somebody waits for the archive.
const roomEvery = 4 << 20

// guarded writes as long as there is room, and somebody waits: a file of the container may
// have a size that no disk has.
func (w *Work) guarded(ctx context.Context, to io.Writer) io.Writer {
	return &guard{ctx: ctx, to: to, room: w.Room}
}

type guard struct {
	ctx   context.Context
	to    io.Writer
	room  func() error
	since int
}

func (g *guard) Write(p []byte) (int, error) {
	if g.since += len(p); g.since >= roomEvery {
		g.since = 0
		if err := g.ctx.Err(); err != nil {
			return 0, err
		}
		if g.room != nil {
			if err := g.room(); err != nil {
				return 0, err
			}
		}
	}
	return g.to.Write(p)
}

// packer writes an archive until the first error.
type packer struct {
	tar *tar.Writer
	now time.Time
	err error
}

func (p *packer) json(name string, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil && p.err == nil {
		p.err = err
	}
	p.bytes(name, b)
}

func (p *packer) bytes(name string, b []byte) {
	if p.err == nil {
		p.err = p.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(b)),
			ModTime: p.now, Format: tar.FormatPAX})
	}
	if p.err == nil {
		_, p.err = p.tar.Write(b)
	}
}

// file adds and removes a file; one that is not there is left out.
func (p *packer) file(path, name string) {
	if p.err != nil {
		return
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		p.err = err
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		p.err = err
		return
	}
	p.err = appendFile(p.tar, &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: info.Size(),
		ModTime: info.ModTime(), Format: tar.FormatPAX}, f)
	if p.err == nil {
		p.err = os.Remove(path)
	}
}

func (p *packer) directory(path, name string) {
	if p.err != nil {
		return
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		p.err = err
		return
	}
	p.err = p.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o700, ModTime: p.now,
		Format: tar.FormatPAX})
	for _, e := range entries {
		if e.Type().IsRegular() {
			p.file(filepath.Join(path, e.Name()), name+"/"+e.Name())
		}
	}
}
