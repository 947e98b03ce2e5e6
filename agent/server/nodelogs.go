package server

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
)

// nodeLogs shows the files of the node's log directory (/var/log), as the kubelet's
// /logs/ does. Links are followed inside the directory only: pods may be able to
// make some there, and whoever may read the logs may not read all of the node.
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
	http.StripPrefix("/logs/", http.FileServerFS(root.FS())).ServeHTTP(w, r)
}
