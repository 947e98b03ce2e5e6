package server

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"

	"golang.org/x/sys/unix"
)

// nodeLogs shows the files of the node's log directory (/var/log), as the kubelet's
// /logs/ does, and what queries ask for. Links are followed inside the directory only:
// pods may be able to make some there, and whoever may read the logs may not read all of
// the node.
func (s *Server) nodeLogs(w http.ResponseWriter, r *http.Request) {
	if s.NodeLogsDir == "" {
		http.Error(w, "logs endpoint is disabled.", http.StatusMethodNotAllowed)
		return
	}
	root, err := os.OpenRoot(s.NodeLogsDir)
	if errors.Is(err, fs.ErrNotExist) {
		http.NotFound(w, r)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer root.Close()
	if s.NodeLogQueries {
		answered, file := s.queriedLogs(w, r, root)
		if answered {
			return
		}
		if file != "" {
			r = r.Clone(r.Context())
			r.URL.Path, r.URL.RawPath = "/logs/"+file, ""
		}
	}
	http.StripPrefix("/logs/", http.FileServerFS(logFiles{root})).ServeHTTP(w, r)
}

// logFiles are the directories and regular files of a directory: to open a named pipe would
// wait for whoever writes to it.
type logFiles struct{ root *os.Root }

// Open opens a file, fs.ErrNotExist for one of another kind.
func (l logFiles) Open(name string) (fs.File, error) {
	f, err := l.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.IsDir() && !st.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// copyFile writes a file of the directory; fs.ErrNotExist where there is none but a directory.
func copyFile(w io.Writer, root *os.Root, name string) error {
	f, err := logFiles{root}.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.IsDir() {
		return errors.Join(err, fs.ErrNotExist)
	}
	_, err = io.Copy(w, f)
	return err
}
