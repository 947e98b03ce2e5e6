package quota

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// firstProject is the first that is given, as upstream's.
const firstProject = 1 << 20

// projectFiles are those in which administrators say whose projects are.
var projectFiles = []string{"/etc/projects", "/etc/projid"}

// maxProjectFile bounds what is read of them.
const maxProjectFile = 1 << 20

// edge is what project quotas need of the kernel.
type edge interface {
	// Set has a directory, and all that is made in it, belong to a project.
	Set(dir *os.File, project uint32) error
	// Limit has a project take at most so many bytes; 0 for no limit.
	Limit(project uint32, bytes int64) error
	Use(project uint32) (Usage, error)
	// On tells whether a directory is on the file system.
	On(dir *os.File) (bool, error)
	// Of tells the project of a directory.
	Of(dir *os.File) (uint32, error)
}

// Usage is what is counted for a project.
type Usage struct{ Bytes, Inodes, Limit int64 }

// projects gives projects to directories.
type projects struct {
	kernel edge
	files  []string

	mu    sync.Mutex
	taken map[uint32]bool
}

func newProjects(k edge) *projects {
	return &projects{kernel: k, files: projectFiles, taken: map[uint32]bool{}}
}

// take gives one that no directory of ours has, no file names, and for which the kernel
// counts nothing.
func (p *projects) take(project uint32) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if project != 0 {
		p.taken[project] = true
		return project, nil
	}
	named := map[uint32]bool{}
	for _, path := range p.files {
		if err := readProjects(path, named); err != nil {
			return 0, err
		}
	}
	for id := uint32(firstProject); id != 0; id++ {
		if p.taken[id] || named[id] {
			continue
		}
		has, err := p.kernel.Use(id)
		if err != nil {
			return 0, err
		}
		if has == (Usage{}) {
			p.taken[id] = true
			return id, nil
		}
	}
	return 0, errors.New("all projects are taken")
}

// give lets others have a project.
func (p *projects) give(project uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.taken, project)
}

// mkdir makes a directory of a project. A limit is there before anything can be in it.
func (p *projects) mkdir(path string, project uint32, bytes int64) error {
	if project == 0 {
		return errors.New("no project was given to " + path)
	}
	if err := p.kernel.Limit(project, bytes); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return p.kernel.Set(dir, project)
}

func (p *projects) used(project uint32) (Usage, error) {
	if project == 0 {
		return Usage{}, ErrNone
	}
	has, err := p.kernel.Use(project)
	if err == nil && has.Limit == 0 {
		return Usage{}, ErrNone
	}
	return has, err
}

// share puts a directory into a project, with all that is made in it from now on.
func (p *projects) share(path string, project uint32) error {
	if project == 0 {
		return errors.New("no project was given to " + path)
	}
	dir, err := openDir(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if there, err := p.kernel.On(dir); err != nil || !there {
		return errors.Join(err, ErrNone)
	}
	return p.kernel.Set(dir, project)
}

// of is the project that mkdir gave a directory, 0 for none: what has that of its parent
// was given it by somebody else.
func (p *projects) of(path string) uint32 {
	tell := func(path string) uint32 {
		dir, err := openDir(path)
		if err != nil {
			return 0
		}
		defer dir.Close()
		project, err := p.kernel.Of(dir)
		if err != nil || project < firstProject {
			return 0
		}
		return project
	}
	if own := tell(path); own != tell(filepath.Dir(path)) {
		return own
	}
	return 0
}

// openDir opens a directory, not what a link at its path leads to.
func openDir(path string) (*os.File, error) {
	return os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// readProjects adds the projects that a file names; there may be no file.
func readProjects(path string, named map[uint32]bool) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return parseProjects(f, path, named)
}

// parseProjects reads lines of projects(5), NUMBER:PATH, and of projid(5), NAME:NUMBER.
// A file that is not understood whole may name any project.
func parseProjects(r io.Reader, path string, named map[uint32]bool) error {
	limited := &io.LimitedReader{R: r, N: maxProjectFile}
	lines := bufio.NewScanner(limited)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		first, last, ok := strings.Cut(line, ":")
		if !ok {
			return fmt.Errorf("%s: line %q has no colon", path, line)
		}
		number, err := strconv.ParseUint(strings.TrimSpace(first), 10, 32)
		if err != nil || !strings.HasPrefix(last, "/") {
			number, err = strconv.ParseUint(strings.TrimSpace(last), 10, 32)
		}
		if err != nil {
			return fmt.Errorf("%s: line %q names no project", path, line)
		}
		named[uint32(number)] = true
	}
	if limited.N == 0 {
		return fmt.Errorf("%s has more than %d bytes", path, maxProjectFile)
	}
	return lines.Err()
}
