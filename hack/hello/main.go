// Command hello is the workload of the example image: a web page that names
// the pod and the node that served it. It learns both from its service account
// token (KEP-4193 puts pod and node into the claims), so that it needs no
// configuration, and falls back to the hostname. `hello get URL` prints another
// page instead, so that one image also tries a Service from inside the cluster.
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const tokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// claims are the parts of a service account token that the page shows.
type claims struct {
	Kubernetes struct {
		Namespace string `json:"namespace"`
		Pod       struct {
			Name string `json:"name"`
		} `json:"pod"`
		Node struct {
			Name string `json:"name"`
		} `json:"node"`
	} `json:"kubernetes.io"`
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "get" {
		if err := get(os.Args[2]); err != nil {
			fail(err)
		}
		return
	}
	addr := ":8080"
	if port := os.Getenv("PORT"); port != "" {
		addr = ":" + port
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-stop
		os.Exit(0)
	}()
	http.HandleFunc("/", page)
	http.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	if err := http.ListenAndServe(addr, nil); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "hello:", err)
	os.Exit(1)
}

func get(url string) error {
	resp, err := (&http.Client{Timeout: 5 * time.Second}).Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

func page(w http.ResponseWriter, r *http.Request) {
	c := read()
	fmt.Fprintf(w, "Hello from pod %s on node %s.\n", c.Kubernetes.Pod.Name, c.Kubernetes.Node.Name)
}

func read() claims {
	var c claims
	if token, err := os.ReadFile(tokenFile); err == nil {
		if parts := strings.Split(string(token), "."); len(parts) == 3 {
			if payload, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil {
				_ = json.Unmarshal(payload, &c) // a token of another form: the fallbacks below serve
			}
		}
	}
	if c.Kubernetes.Pod.Name == "" {
		c.Kubernetes.Pod.Name, _ = os.Hostname()
	}
	if c.Kubernetes.Node.Name == "" {
		c.Kubernetes.Node.Name = "(unknown)"
	}
	return c
}
