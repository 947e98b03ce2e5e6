package joining

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	bootstrap "k8s.io/cluster-bootstrap/token/api"

	"github.com/shoal-project/shoal/coordinator/auth/identity"
	"github.com/shoal-project/shoal/coordinator/joinapi"
)

// Config is what the handlers answer from.
type Config struct {
	Client kubernetes.Interface
	// CA and GossipKeys read the files, which rotations replace.
	CA         func() ([]byte, error)
	GossipKeys func() ([]byte, error)
	// Gossip are members that live, by host:port.
	Gossip func() []string
	// Node has the parts that the coordinator's configuration gives.
	Node joinapi.Node
	Log  *slog.Logger
}

// Handlers are served beside the API at joinapi's paths.
func Handlers(c Config) map[string]http.Handler {
	return map[string]http.Handler{
		joinapi.CAPath:      only(c.ca, http.MethodGet),
		joinapi.ClusterPath: only(c.cluster, http.MethodGet),
		joinapi.NodePath:    only(c.node, http.MethodGet, http.MethodDelete),
	}
}

// refused is an answer that is no fault of the server's.
type refused struct {
	code    int
	message string
}

func (r refused) Error() string { return r.message }

func only(handle func(http.ResponseWriter, *http.Request) error, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(methods, r.Method) {
			http.Error(w, "use "+strings.Join(methods, " or "), http.StatusMethodNotAllowed)
			return
		}
		err := handle(w, r)
		if r, ok := err.(refused); ok {
			http.Error(w, r.message, r.code)
		} else if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
}

func answer(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	return json.NewEncoder(w).Encode(v)
}

func (c Config) ca(w http.ResponseWriter, _ *http.Request) error {
	data, err := c.CA()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-pem-file")
	_, err = w.Write(data)
	return err
}

// cluster tells a token whether the machine can join under a name.
func (c Config) cluster(w http.ResponseWriter, r *http.Request) error {
	secret, err := c.token(r.Context())
	if err != nil {
		return err
	}
	name := r.URL.Query().Get(joinapi.NameParameter)
	node, err := c.Client.CoreV1().Nodes().Get(r.Context(), name, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	attempt := joinapi.Attempt{
		Name: name, Alive: err == nil && Alive(node),
		Replace: string(secret.Data[joinapi.ReplaceKey]), Uses: string(secret.Data[joinapi.UsesKey]),
	}
	answered := joinapi.Cluster{Time: time.Now()}
	answered.Refused, answered.Message = attempt.Refusal()
	return answer(w, answered)
}

// token is the Secret of the join token that asks.
func (c Config) token(ctx context.Context) (*corev1.Secret, error) {
	who, ok := request.UserFrom(ctx)
	if !ok || !slices.Contains(who.GetGroups(), joinapi.NodesGroup) {
		return nil, refused{http.StatusForbidden, "this answers join tokens only"}
	}
	id, ok := strings.CutPrefix(who.GetName(), bootstrap.BootstrapUserPrefix)
	if !ok {
		return nil, refused{http.StatusForbidden, "this answers join tokens only"}
	}
	secret, err := c.Client.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, bootstrap.BootstrapTokenSecretPrefix+id,
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, refused{http.StatusUnauthorized, "the token has been deleted"}
	}
	return secret, err
}

// node answers a node, and deletes its Node when it leaves.
func (c Config) node(w http.ResponseWriter, r *http.Request) error {
	who, _ := request.UserFrom(r.Context())
	name, isNode := identity.Node(who)
	if !isNode || name == "" {
		return refused{http.StatusForbidden, "this answers nodes only"}
	}
	if r.Method == http.MethodDelete {
		return c.leave(r.Context(), name, who)
	}
	out := c.Node
	var err error
	if out.Servers, err = c.servers(r.Context()); err != nil {
		return err
	}
	if out.GossipKeys, err = c.GossipKeys(); err != nil {
		return err
	}
	out.Gossip = c.Gossip()
	return answer(w, out)
}

// servers are where the API is served, from the slices of the Service kubernetes.
func (c Config) servers(ctx context.Context) ([]string, error) {
	list, err := c.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=kubernetes", ResourceVersion: "0",
	})
	if err != nil {
		return nil, err
	}
	return Servers(list.Items), nil
}

// leave deletes the Node of the node that asks. What only an administrator may give a
// Node, its taints, would be lost with it, and a node that comes back would be without
// them: that is an administrator's to delete.
func (c Config) leave(ctx context.Context, name string, who user.Info) error {
	nodes := c.Client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if taints := lasting(node.Spec.Taints); len(taints) > 0 {
		return refused{http.StatusConflict, fmt.Sprintf("Node %s has taints that a node may not take off (%s): delete it with "+
			"an administrator's credential, kubectl delete node %s", name, strings.Join(taints, ", "), name)}
	}
	err = nodes.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
		UID: &node.UID, ResourceVersion: &node.ResourceVersion,
	}})
	if apierrors.IsConflict(err) { // its agent or a controller wrote; or it got a taint
		return refused{http.StatusServiceUnavailable, "the Node changes just now; try again"}
	}
	if err == nil || apierrors.IsNotFound(err) {
		c.Log.Info("a node has left the cluster", "node", name, "user", who.GetName())
		return nil
	}
	return err
}
