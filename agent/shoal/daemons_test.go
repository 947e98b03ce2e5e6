package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/process"
	coordinatorconfig "github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// The fakes of the two daemons speak what the command hears: readiness, keys,
// kubeconfigs, an API with one node, the sockets of images. They read the
// configuration as the daemons do, and note in the file calls beside bin/ how
// they were called.

// play notes a call, and runs what it is for until the process is told to end.
func play(run func(ctx context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := note()
	if err == nil {
		err = run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func note() error {
	bin, name := filepath.Split(os.Args[0])
	f, err := os.OpenFile(filepath.Join(bin, "../calls"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, name, strings.Join(os.Args[1:], " ")); err != nil {
		return err
	}
	if text, err := os.ReadFile(os.Args[0] + ".fails"); err == nil && os.Args[1] != "cleanup" {
		return fmt.Errorf("%s", text)
	}
	return nil
}

// following is the argument after a flag, "" when it is not there.
func following(flag string) string {
	if i := slices.Index(os.Args, flag); i > 0 && i+1 < len(os.Args) {
		return os.Args[i+1]
	}
	return ""
}

func fakeCoordinator() {
	play(func(ctx context.Context) error {
		if os.Args[1] == "secrets" {
			fmt.Println("the coordinator's program says what it finds")
			return nil
		}
		cfg, err := coordinatorconfig.Load(following("--config"))
		if err == nil {
			err = cfg.Validate()
		}
		if err != nil {
			return err
		}
		keys := pki.Dir(cfg.KeysDir())
		if os.Args[1] == "credentials" {
			return writeCredentials(keys)
		}
		if err := keys.Ensure(pki.Cluster{}, time.Now()); err != nil {
			return err
		}
		return serveAPI(ctx, cfg, keys)
	})
}

// writeCredentials does what standard input asks for.
func writeCredentials(keys pki.Dir) error {
	ca, err := keys.CA()
	if err != nil {
		return err
	}
	var list []credential
	if err := json.NewDecoder(os.Stdin).Decode(&list); err != nil {
		return err
	}
	for _, c := range list {
		spec := pki.Spec{User: c.User, Groups: c.Groups}
		if c.Admin {
			spec = pki.Spec{User: pki.AdminUser, Groups: []string{pki.AdminGroup}, Lifetime: pki.AdminLifetime}
		}
		data, err := ca.Kubeconfig(c.Server, spec, time.Now())
		if err != nil {
			return err
		}
		if err := pki.WriteFile(c.Out, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// serveAPI is an API server that knows one node, and two pods of which one is
// ready. It refuses who has no certificate of its CA.
func serveAPI(ctx context.Context, cfg coordinatorconfig.Config, keys pki.Dir) error {
	pair, err := tls.LoadX509KeyPair(keys.Path("apiserver.crt"), keys.Path("apiserver.key"))
	if err != nil {
		return err
	}
	const ready = `"status": {"conditions": [{"type": "Ready", "status": "True"}],
		"nodeInfo": {"kubeletVersion": "v1", "containerRuntimeVersion": "shoal://0"}}`
	node := fmt.Sprintf(`{"metadata": {"name": %q}, %s}`, cfg.NodeName, ready)
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("watch") == "" {
			fmt.Fprintf(w, `{"items": [%s]}`, node)
		} else if r.FormValue("fieldSelector") == "metadata.name="+cfg.NodeName {
			fmt.Fprintf(w, `{"type": "ADDED", "object": %s}`, node)
		}
	})
	mux.HandleFunc("/api/v1/pods", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"items": [{%s}, {}]}`, ready)
	})
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(cfg.Port)))
	if err != nil {
		return err
	}
	ca, err := keys.CA()
	if err != nil {
		return err
	}
	clients := x509.NewCertPool()
	clients.AddCert(ca.Cert)
	server := &http.Server{Handler: mux, TLSConfig: &tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    clients,
	}}
	go func() { _ = server.ServeTLS(l, "", "") }()
	return untilEnd(ctx)
}

// untilEnd tells that the daemon is ready.
func untilEnd(ctx context.Context) error {
	manager, err := process.TakeServiceManager()
	if err != nil {
		return err
	}
	manager.Ready()
	<-ctx.Done()
	return nil
}

func fakeAgent() {
	play(func(ctx context.Context) error {
		if os.Args[1] == "cleanup" {
			_, err := agentconfig.ParseKnown([]string{"--config", following("--config")})
			return err
		}
		cfg, err := agentconfig.Parse([]string{"--config", following("--config")})
		if err == nil {
			err = cfg.Validate()
		}
		if err != nil {
			return err
		}
		if err := serveImages(cfg.RunDir); err != nil {
			return err
		}
		return untilEnd(ctx)
	})
}

// serveImages is a runtime with two images.
func serveImages(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var sockets []net.Listener
	for _, name := range []string{"cri.sock", "images.sock"} {
		_ = os.Remove(filepath.Join(dir, name))
		l, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			return err
		}
		sockets = append(sockets, l)
	}
	server := grpc.NewServer()
	criv1.RegisterImageServiceServer(server, fakeImages{})
	go func() { _ = server.Serve(sockets[0]) }()
	go func() {
		_ = http.Serve(sockets[1], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			path := r.FormValue("path")
			if !strings.HasSuffix(path, ".tar") {
				http.Error(w, path+" is no archive", http.StatusUnprocessableEntity)
				return
			}
			fmt.Fprintf(w, `{"images": ["localhost/%s:1"]}`, strings.TrimSuffix(filepath.Base(path), ".tar"))
		}))
	}()
	return nil
}

type fakeImages struct {
	criv1.UnimplementedImageServiceServer
}

var theImages = []*criv1.Image{
	{Id: "sha256:0123456789abcdef", RepoTags: []string{"localhost/hello:1", "localhost/hello:2"}, Size: 6_500_000},
	{Id: "sha256:fedcba9876543210", RepoDigests: []string{"localhost/nginx@sha256:1"}, Size: 123_456_789},
	{Id: "sha256:7", Size: 1},
}

func (fakeImages) ListImages(context.Context, *criv1.ListImagesRequest) (*criv1.ListImagesResponse, error) {
	return &criv1.ListImagesResponse{Images: theImages}, nil
}

func (fakeImages) ImageStatus(_ context.Context, r *criv1.ImageStatusRequest) (*criv1.ImageStatusResponse, error) {
	for _, i := range theImages {
		if slices.Contains(i.RepoTags, r.Image.Image) {
			return &criv1.ImageStatusResponse{Image: i}, nil
		}
	}
	return &criv1.ImageStatusResponse{}, nil
}

func (fakeImages) RemoveImage(context.Context, *criv1.RemoveImageRequest) (*criv1.RemoveImageResponse, error) {
	return &criv1.RemoveImageResponse{}, nil
}
