package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	agentconfig "github.com/shoal-project/shoal/agent/config"
)

func imagesCommand() *cobra.Command {
	var w where
	c := &cobra.Command{Use: "images", Short: "Import, list and remove container images of this node"}
	c.PersistentFlags().StringVar(&w.dataDir, "data-dir", defaultOptions().DataDir, "the cluster's data directory")
	c.PersistentFlags().StringVar(&w.config, "config", "",
		"the agent's configuration where `shoal up` started none (default: "+installedConfig+")")
	c.AddCommand(
		&cobra.Command{
			Use: "import FILE…", Short: "Import image archives (OCI or docker-archive, plain or compressed)",
			Args: cobra.MinimumNArgs(1),
			RunE: func(cmd *cobra.Command, files []string) error { return importImages(cmd.Context(), w, files) },
		},
		&cobra.Command{
			Use: "list", Short: "List images with their size, and those that are pulled now", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				if err := withImages(cmd.Context(), w, listImages); err != nil {
					return err
				}
				return listPulls(cmd.Context(), w)
			},
		},
		&cobra.Command{
			Use: "remove IMAGE…", Short: "Remove images by name, digest or id", Args: cobra.MinimumNArgs(1),
			RunE: func(cmd *cobra.Command, names []string) error {
				return withImages(cmd.Context(), w,
					func(ctx context.Context, client criv1.ImageServiceClient) error {
						return removeImages(ctx, client, names)
					})
			},
		})
	return c
}

// installedConfig is that of an agent that the service manager runs (make install).
const installedConfig = "/etc/shoal/agent.yaml"

// where tells which agent is asked.
type where struct{ dataDir, config string }

// runDir is the directory of the agent's sockets.
func (w where) runDir() (string, error) {
	file := w.config
	if file == "" {
		o, err := load(w.dataDir)
		if err == nil {
			return o.RunDir, nil
		}
		if _, statErr := os.Stat(installedConfig); statErr != nil || w.dataDir != defaultOptions().DataDir ||
			!errors.Is(err, errNoCluster) {
			return "", err
		}
		file = installedConfig
	}
	c := agentconfig.Default()
	if err := c.LoadKnown(file); err != nil {
		return "", err
	}
	return c.RunDir, nil
}

// importImages has the agent read each archive; the agent must run.
func importImages(ctx context.Context, w where, files []string) error {
	dir, err := w.runDir()
	if err != nil {
		return err
	}
	client := overSocket(dir)
	for _, file := range files {
		path, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		if err := importImage(ctx, client, path); err != nil {
			return err
		}
	}
	return nil
}

// overSocket asks the agent about images.
func overSocket(runDir string) *http.Client {
	socket := filepath.Join(runDir, "images.sock")
	return &http.Client{
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}
}

// listPulls shows how far pulls are, if there are any.
func listPulls(ctx context.Context, w where) error {
	dir, err := w.runDir()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/pulls", nil)
	if err != nil {
		return err
	}
	resp, err := overSocket(dir).Do(req)
	if err != nil {
		return fmt.Errorf("list pulls: %w", err)
	}
	defer resp.Body.Close()
	var list []struct {
		Image    string    `json:"image"`
		Since    time.Time `json:"since"`
		Progress string    `json:"progress"`
	}
	if resp.StatusCode != http.StatusOK {
		return nil // an agent of before does not tell
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list) == 0 {
		return err
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "\nPULLED NOW\tFOR\tPROGRESS")
	for _, p := range list {
		fmt.Fprintf(t, "%s\t%v\t%s\n", p.Image, time.Since(p.Since).Round(time.Second), p.Progress)
	}
	return t.Flush()
}

func importImage(ctx context.Context, client *http.Client, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/import?path="+url.QueryEscape(path), nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("import %s: %w; is the agent running? see `shoal status`", path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(body))) // it names the file
	}
	var answer struct{ Images []string }
	if err := json.Unmarshal(body, &answer); err != nil {
		return err
	}
	for _, name := range answer.Images {
		fmt.Println(name)
	}
	return nil
}

// withImages calls f with a client of the agent's CRI socket.
func withImages(ctx context.Context, w where, f func(context.Context, criv1.ImageServiceClient) error) error {
	dir, err := w.runDir()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "cri.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(ctx, criv1.NewImageServiceClient(conn))
}

func listImages(ctx context.Context, client criv1.ImageServiceClient) error {
	resp, err := client.ListImages(ctx, &criv1.ListImagesRequest{})
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "IMAGE\tID\tSIZE")
	for _, i := range resp.Images {
		names := i.RepoTags
		if len(names) == 0 {
			names = i.RepoDigests
		}
		if len(names) == 0 {
			names = []string{"<none>"}
		}
		id := strings.TrimPrefix(i.Id, "sha256:")
		for _, name := range names {
			fmt.Fprintf(t, "%s\t%s\t%.1f MB\n", name, id[:min(12, len(id))], float64(i.Size)/1e6)
		}
	}
	return t.Flush()
}

func removeImages(ctx context.Context, client criv1.ImageServiceClient, names []string) error {
	for _, name := range names {
		spec := &criv1.ImageSpec{Image: name}
		status, err := client.ImageStatus(ctx, &criv1.ImageStatusRequest{Image: spec})
		if err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
		if status.Image == nil {
			return fmt.Errorf("remove %s: no such image; `shoal images list` shows what there is", name)
		}
		if _, err := client.RemoveImage(ctx, &criv1.RemoveImageRequest{Image: spec}); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
		fmt.Println(name)
	}
	return nil
}

// seedImages copies the archives that the build packs, in images/ beside this
// program, to where the agent imports from. One that is there already, with the
// same size and time, stays.
func seedImages(o *options) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(filepath.Dir(self), "images", "*.tar"))
	if err != nil {
		return err
	}
	for _, from := range archives {
		if err := copyChanged(from, o.path("images", filepath.Base(from))); err != nil {
			return fmt.Errorf("copy image archive: %w", err)
		}
	}
	return nil
}

func copyChanged(from, to string) error {
	source, err := os.Stat(from)
	if err != nil {
		return err
	}
	if there, err := os.Stat(to); err == nil && there.Size() == source.Size() && there.ModTime().Equal(source.ModTime()) {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to + ".tmp") // the agent reads only what ends like an archive
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	if err := os.Chtimes(out.Name(), source.ModTime(), source.ModTime()); err != nil {
		return err
	}
	return os.Rename(out.Name(), to)
}
