package joining

import (
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/joinapi"
)

// TestWho: the handlers look at the user again, whatever RBAC was made to say.
func TestWho(t *testing.T) {
	token := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"},
		Data: map[string][]byte{joinapi.UsesKey: []byte("0")}}
	alive := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	alive.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	c := Config{
		Client: fake.NewClientset(token, alive), Log: slog.New(slog.DiscardHandler),
		CA:         func() ([]byte, error) { return nil, errors.New("the file is gone") },
		GossipKeys: func() ([]byte, error) { return []byte("key"), nil },
		Gossip:     func() []string { return []string{"192.0.2.1:7947"} },
	}
	joins := &user.DefaultInfo{Name: "system:bootstrap:abcdef", Groups: []string{joinapi.NodesGroup}}
	other := &user.DefaultInfo{Name: "system:bootstrap:zzzzzz", Groups: []string{joinapi.NodesGroup}}
	kubeadm := &user.DefaultInfo{Name: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers:kubeadm"}}
	anna := &user.DefaultInfo{Name: "anna", Groups: []string{"system:masters", joinapi.NodesGroup}}
	node := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes"}}
	nameless := &user.DefaultInfo{Name: "n1", Groups: []string{"system:nodes"}}
	for _, tt := range []struct {
		who          user.Info
		method, path string
		code         int
		want         string
	}{
		{nil, "GET", joinapi.CAPath, 500, "the file is gone"},
		{joins, "GET", joinapi.ClusterPath + "?name=n1", 200, joinapi.ReasonTokenUsedUp},
		{joins, "POST", joinapi.ClusterPath, 405, "use GET"},
		{other, "GET", joinapi.ClusterPath, 401, "deleted"},
		{kubeadm, "GET", joinapi.ClusterPath, 403, "join tokens only"},
		{anna, "GET", joinapi.ClusterPath, 403, "join tokens only"},
		{nil, "GET", joinapi.ClusterPath, 403, "join tokens only"},
		{joins, "GET", joinapi.NodePath, 403, "nodes only"},
		{anna, "DELETE", joinapi.NodePath, 403, "nodes only"},
		{nameless, "DELETE", joinapi.NodePath, 403, "nodes only"},
		{nil, "GET", joinapi.NodePath, 403, "nodes only"},
		{node, "GET", joinapi.NodePath, 200, "192.0.2.1:7947"},
		{node, "PUT", joinapi.NodePath, 405, "use GET or DELETE"},
		{node, "DELETE", joinapi.NodePath, 200, ""},
	} {
		r := httptest.NewRequest(tt.method, tt.path, nil)
		if tt.who != nil {
			r = r.WithContext(request.WithUser(r.Context(), tt.who))
		}
		w := httptest.NewRecorder()
		handler := Handlers(c)[strings.SplitN(tt.path, "?", 2)[0]]
		handler.ServeHTTP(w, r)
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%v %s %s: %d %s, want %d %q", tt.who, tt.method, tt.path, w.Code, w.Body, tt.code, tt.want)
		}
	}
	if _, err := c.Client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err == nil {
		t.Error("the node that left is there")
	}
}

func TestServers(t *testing.T) {
	slice := func(port *int32, addresses ...string) discoveryv1.EndpointSlice {
		return discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Port: port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: addresses}}}
	}
	got := Servers([]discoveryv1.EndpointSlice{slice(ptr.To[int32](6443), "192.0.2.2", "192.0.2.1"),
		slice(ptr.To[int32](6443), "2001:db8::1", "192.0.2.1"), slice(nil, "192.0.2.9")})
	if want := "192.0.2.1:6443 192.0.2.2:6443 [2001:db8::1]:6443"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}

func TestLasting(t *testing.T) {
	taint := func(key string) corev1.Taint { return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule} }
	got := lasting([]corev1.Taint{taint(corev1.TaintNodeUnschedulable), taint(corev1.TaintNodeNotReady),
		taint(corev1.TaintNodeMemoryPressure), taint(corev1.TaintNodeOutOfService), taint("example.com/gpu")})
	if want := "node.kubernetes.io/out-of-service:NoSchedule example.com/gpu:NoSchedule"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}
