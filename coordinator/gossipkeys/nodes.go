package gossipkeys

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/agent/gossip"
)

// giveTimeout bounds what one node may take.
const giveTimeout = 15 * time.Second

// client reaches nodes through the API.
type client struct{ kubernetes.Interface }

// NewNodes connects to a coordinator.
func NewNodes(c *rest.Config) (Nodes, error) {
	k, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("connect to the API: %w", err)
	}
	return client{k}, nil
}

func (c client) Names(ctx context.Context) (names []string, err error) {
	list, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

func (c client) Give(ctx context.Context, node string, file []byte) (prints []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, giveTimeout)
	defer cancel()
	data, err := c.CoreV1().RESTClient().Put().
		Resource("nodes").Name(node).SubResource("proxy").Suffix(gossip.KeysPath).
		SetHeader("Content-Type", "text/plain").Body(file).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &prints); err != nil {
		return nil, fmt.Errorf("its answer is not understood (is its agent of an earlier version?): %w", err)
	}
	return prints, nil
}
