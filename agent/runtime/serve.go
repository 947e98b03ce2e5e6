package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/image"
)

// Names of the sockets in RunDir.
const (
	CRISocket    = "cri.sock"
	ImagesSocket = "images.sock"
)

// maxMessage is the largest gRPC message, as in containerd.
const maxMessage = 16 << 20

// Run serves the sockets and imports archives until ctx ends. It does not
// close the runtime.
func (r *Runtime) Run(ctx context.Context) error {
	criListener, err := listen(filepath.Join(r.cfg.RunDir, CRISocket))
	if err != nil {
		return err
	}
	imgListener, err := listen(filepath.Join(r.cfg.RunDir, ImagesSocket))
	if err != nil {
		criListener.Close()
		return err
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	criv1.RegisterRuntimeServiceServer(server, &service{r: r})
	criv1.RegisterImageServiceServer(server, &imageService{r: r})
	web := &http.Server{Handler: r.serveImages(), ReadHeaderTimeout: 10 * time.Second,
		MaxHeaderBytes: 16 << 10}
	var wg sync.WaitGroup
	errs := make(chan error, 3)
	wg.Go(func() { errs <- server.Serve(criListener) })
	wg.Go(func() { errs <- web.Serve(imgListener) })
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { errs <- r.whileWhole(running) })
	wg.Go(func() { r.importArchives(running) })
	wg.Go(func() { r.tellHoles(running) })
	var failed error
	select {
	case <-ctx.Done():
	case err := <-errs:
		if ctx.Err() != nil {
			break
		}
		failed = fmt.Errorf("serve container runtime: %w", err)
	}
	cancel()
	server.Stop()
	web.Close()
	wg.Wait()
	return failed
}

// listen takes the place of a socket that a killed agent left.
func listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

func (r *Runtime) importArchives(ctx context.Context) {
	defer r.importsDone()
	if r.cfg.ImportDir == "" {
		return
	}
	for told := false; ; told = true {
		err := r.images.ImportDir(ctx, r.cfg.ImportDir)
		if err == nil && told && r.Imported != nil { // pods may have tried meanwhile
			r.Imported()
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		if !told {
			r.cfg.Log.Error("some image archives could not be imported", "dir", r.cfg.ImportDir, "err", err)
		}
		if !image.Full(err) {
			return
		}
		if !told {
			r.cfg.Log.Error("the disk is full: free some space; the image archives that are missing are imported then",
				"dir", r.images.Dir())
		}
		r.importsDone()
		select {
		case <-ctx.Done():
			return
		case <-time.After(importAgain): // nothing tells when a disk has space again
		}
	}
}

// importAgain is how often archives that a full disk had no space for are tried.
const importAgain = 15 * time.Second

func (r *Runtime) importsDone() { r.once.Do(func() { close(r.imported) }) }

// awaitImports waits while archives are still imported at start, so that an
// image among them is not pulled. False: there are none.
func (r *Runtime) awaitImports(ctx context.Context) bool {
	if r.cfg.ImportDir == "" {
		return false
	}
	select {
	case <-r.imported:
	case <-ctx.Done():
	}
	return true
}

// serveImages answers POST /import?path=FILE with the names of the images, and GET /pulls
// with how far pulls are.
func (r *Runtime) serveImages() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /import", r.serveImport)
	mux.HandleFunc("GET /pulls", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(r.images.Pulling())
	})
	return mux
}

func (r *Runtime) serveImport(w http.ResponseWriter, req *http.Request) {
	names, err := r.ImportImages(req.Context(), req.URL.Query().Get("path"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string][]string{"images": names})
}

// tellHoles warns of installed OCI runtimes that containers are known to get
// out of.
func (r *Runtime) tellHoles(ctx context.Context) {
	seen := map[string]bool{}
	for _, rt := range r.cfg.Runtimes {
		if seen[rt.Path] {
			continue
		}
		seen[rt.Path] = true
		known, err := rt.KnownHoles(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			r.cfg.Log.Warn("cannot tell whether the OCI runtime has known holes", "program", rt.Installed(), "err", err)
		case known != "":
			r.cfg.Log.Warn("the OCI runtime has known ways out of a container, unless your distribution closed them in this version: upgrade it",
				"program", rt.Installed(), "open", known)
		}
	}
}
