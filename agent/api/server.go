package api

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ErrNone is of a node without a kubeconfig.
var ErrNone = errors.New("no API server is configured")

// Load reads a kubeconfig file; nil for no file. The agent names the program in
// requests.
func Load(kubeconfig, agent string) (*rest.Config, error) {
	if kubeconfig == "" {
		return nil, nil
	}
	rc, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	rc.ContentType = "application/vnd.kubernetes.protobuf"
	rc.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	rc.UserAgent = agent
	rc.QPS = -1 // the API server's flow control decides
	return rc, nil
}

// errNoWay is of a kubeconfig that this node does not make connections by itself with.
var errNoWay = errors.New("the kubeconfig has coordinators or the node known by something else than certificates")

// Config of a Server.
type Config struct {
	// Rest is the connection, nil for none; Kubeconfig the file that it is from.
	Rest       *rest.Config
	Kubeconfig string
	NodeName   string
	// Rotated is the file of the certificate that Renew brings; empty: none is asked for.
	Rotated string
	// Authorities is the file of the cluster's CAs, which FollowAuthorities keeps; empty:
	// those of the kubeconfig count.
	Authorities string
	// Known is the file that keeps where coordinators are; empty: it is not kept.
	Known string
	// Failed is called when changed credentials cannot be used; nil: nobody asks.
	Failed func()
	Log    *slog.Logger
}

// Server is the API server as the node knows it.
type Server struct {
	// Client is nil without a kubeconfig.
	Client kubernetes.Interface
	cfg    Config
	way    *transport // nil: client-go makes the connections
	dated  atomic.Pointer[Dated]
	early  atomic.Pointer[x509.Certificate] // not used: it has not begun for the API server

	using    sync.Mutex
	used     Credentials
	replaced chan struct{} // the certificate in use is another one
	renewed  chan struct{} // the files have changed, by Renew or FollowAuthorities
	asking   sync.Mutex    // for the authorities
}

// Connect makes the client; nothing is sent yet.
func Connect(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, replaced: make(chan struct{}, 1), renewed: make(chan struct{}, 1)}
	if cfg.Rest == nil {
		return s, nil
	}
	s.tellRefusals()
	s.hearDates()
	if err := s.connect(); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", cfg.Kubeconfig, err)
	}
	return s, nil
}

func (s *Server) connect() (err error) {
	if s.used, err = s.Credentials(); err != nil {
		return err
	}
	rc := s.cfg.Rest
	if s.way, err = newTransport(rc, s.cfg.NodeName, s.cfg.Known, s.used); err != nil {
		return err
	}
	if s.way != nil {
		rc = s.way.config(rc)
	}
	s.Client, err = kubernetes.NewForConfig(rc)
	return err
}

// SetCoordinators takes where the gossip knows coordinators: the API is asked there
// when the kubeconfig's does not answer, and connections to the dead are closed.
func (s *Server) SetCoordinators(list []Coordinator) {
	if s.way != nil {
		s.way.coordinators.set(list)
	}
}

// Dial connects to one coordinator that the gossip told of, by TLS: it is verified, and
// shown the node's certificate.
func (s *Server) Dial(ctx context.Context, address string) (net.Conn, error) {
	if s.way == nil {
		return nil, errNoWay
	}
	return s.way.to(ctx, address)
}

// Configured tells whether there is a kubeconfig.
func (s *Server) Configured() bool { return s.Client != nil }

// RequestToken asks for a token of a service account.
func (s *Server) RequestToken(
	ctx context.Context, namespace, account string, r *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	if s.Client == nil {
		return nil, ErrNone
	}
	return s.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, r, metav1.CreateOptions{})
}

// Pods writes what the node tells of pods.
type Pods struct{ server *Server }

// Pods are the API's objects of pods.
func (s *Server) Pods() Pods { return Pods{s} }

// PatchStatus merges a patch into a pod's status.
func (p Pods) PatchStatus(ctx context.Context, namespace, name string, patch []byte) (*corev1.Pod, error) {
	if p.server.Client == nil {
		return nil, ErrNone
	}
	pods := p.server.Client.CoreV1().Pods(namespace)
	return pods.Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}

// Delete deletes the object of a pod that has ended, if it is still that of uid.
func (p Pods) Delete(ctx context.Context, namespace, name string, uid types.UID) error {
	if p.server.Client == nil {
		return ErrNone
	}
	now := int64(0)
	return p.server.Client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{
		GracePeriodSeconds: &now,
		Preconditions:      &metav1.Preconditions{UID: &uid},
	})
}
