package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/shoal-project/shoal/agent/evict"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/runtime"
	"github.com/shoal-project/shoal/agent/server"
	"github.com/shoal-project/shoal/agent/serving"
	"github.com/shoal-project/shoal/agent/stats"
)

// pressure is what the node is short of now.
func (a *agent) pressure() map[v1.NodeConditionType]bool {
	return evict.Pressure(a.cfg.EvictionHard, evict.Measure(a.cfg.RootDir, a.cfg.DataDir,
		evict.Signal{Available: node.MemoryAvailable(), Capacity: a.facts.MemoryBytes}))
}

// serve runs the kubelet's API until ctx ends.
func (a *agent) serve(ctx context.Context) error {
	cas, err := a.clientCAs()
	if err != nil {
		return err
	}
	sessions := server.Sessions{URLs: a.runtime}
	if a.builtin != nil {
		sessions.Streams = streams{a.builtin}
	}
	s := &server.Server{
		Addr: net.JoinHostPort(a.cfg.Address, strconv.Itoa(a.cfg.Port)), Certificate: a.serving, ClientCAs: cas,
		Auth:     &server.Auth{Client: a.client, ClientCAs: cas, NodeName: a.cfg.NodeName},
		Pods:     podsView{a.pods},
		Sessions: sessions, Config: a.cfg, Log: a.log,
		LogsDir: a.cfg.PodLogsDir,
		Stats: &stats.Provider{NodeName: a.cfg.NodeName, Runtime: a.runtime, NodeDir: a.cfg.RootDir, ImageDir: a.cfg.DataDir,
			MemoryBytes: a.facts.MemoryBytes, Available: node.MemoryAvailable, Shutdown: a.shutdownTimes},
	}
	return s.Run(ctx)
}

// rotate keeps container logs small until ctx ends.
func (a *agent) rotate(ctx context.Context) error {
	size, err := resource.ParseQuantity(a.cfg.ContainerLogMaxSize)
	if err != nil {
		return err
	}
	r := &server.Rotator{Pods: podsView{a.pods}, Dir: a.cfg.PodLogsDir, Reopen: a.runtime.ReopenContainerLog, MaxBytes: size.Value(),
		MaxFiles: a.cfg.ContainerLogMaxFiles, Log: a.log}
	return r.Run(ctx)
}

// podsView is the pods as the server sees them.
type podsView struct{ m *pod.Manager }

func (v podsView) List() []*v1.Pod { return v.m.Pods() }

func (v podsView) Find(namespace, name string) (server.Pod, bool) {
	f, ok := v.m.Find(namespace, name)
	return server.Pod{Pod: f.Pod, Observed: f.Observed}, ok
}

// streams enters containers of the runtime in process.
type streams struct{ r *runtime.Runtime }

func join(in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) runtime.Streams {
	s := runtime.Streams{Stdin: in, TTY: tty, Resize: resize}
	if out != nil {
		s.Stdout = out
	}
	if errOut != nil {
		s.Stderr = errOut
	}
	return s
}

func (s streams) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	return s.r.ExecIn(ctx, id, cmd, join(in, out, errOut, tty, resize))
}

func (s streams) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	return s.r.AttachTo(ctx, id, join(in, out, errOut, tty, resize))
}

func (s streams) PortForward(ctx context.Context, sandbox string, port int32, stream io.ReadWriteCloser) error {
	return s.r.ForwardPort(ctx, sandbox, port, stream)
}

// clientCAs is whose certificates callers may show: the configured CA, or the
// API server's.
func (a *agent) clientCAs() (*x509.CertPool, error) {
	var data []byte
	var err error
	switch {
	case a.cfg.ClientCAFile != "":
		if data, err = os.ReadFile(a.cfg.ClientCAFile); err != nil {
			return nil, fmt.Errorf("client CA: %w", err)
		}
	case a.rest != nil:
		if data, err = a.clusterCA(); err != nil {
			return nil, err
		}
	}
	pool := x509.NewCertPool()
	if len(data) > 0 && !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("client CA %s: no certificate in it", a.cfg.ClientCAFile)
	}
	return pool, nil
}

// clusterCA is the CA that the kubeconfig names.
func (a *agent) clusterCA() ([]byte, error) {
	c := rest.CopyConfig(a.rest)
	if err := rest.LoadTLSFiles(c); err != nil {
		return nil, fmt.Errorf("CA of kubeconfig %s: %w", a.cfg.Kubeconfig, err)
	}
	return c.CAData, nil
}

// buildServing chooses the certificate of the kubelet's API: the configured one, or
// one that the cluster signs, or else a self-signed one that lives as long as the
// process.
func (a *agent) buildServing(context.Context) error {
	if a.cfg.Port == 0 {
		return nil
	}
	if a.cfg.TLSCertFile != "" {
		c, err := tls.LoadX509KeyPair(a.cfg.TLSCertFile, a.cfg.TLSPrivateKeyFile)
		if err != nil {
			return fmt.Errorf("serving certificate: %w", err)
		}
		a.serving = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &c, nil }
		return nil
	}
	c, err := a.selfSigned()
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	a.serving = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c, nil }
	if a.client == nil || !a.cfg.BootstrapsTLS() {
		return nil
	}
	ca, err := a.clusterCA()
	if err != nil {
		return err
	}
	a.certificates = &serving.Manager{
		Client:     a.client,
		NodeName:   a.cfg.NodeName,
		File:       filepath.Join(a.cfg.DataDir, "kubelet-serving.pem"),
		Cluster:    ca,
		SelfSigned: c,
		Log:        a.log,
	}
	a.serving = a.certificates.Certificate
	return nil
}

func (a *agent) selfSigned() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: a.cfg.NodeName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), DNSNames: []string{a.cfg.NodeName},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, s := range a.facts.IPs {
		t.IPAddresses = append(t.IPAddresses, net.ParseIP(s))
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
